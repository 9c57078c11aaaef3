"""The regular expressions of this project: none takes exponential time on a text of an agent or a client."""

import ast
import itertools
import multiprocessing
import re
from pathlib import Path

import pytest
from serving import PATIENCE

ROOT = Path(__file__).parent.parent
# The number of repeats of a fragment. A pattern with exponential time never ends, and quadratic time is still short.
TIMES = 300


def patterns():
    """Yield each pattern that is written out, with its flags."""
    for path in sorted([*ROOT.glob("server/**/*.py"), *ROOT.glob("toolpacks/*.py")]):
        source = path.read_text()
        if not re.search(r"\bre\.\w+\(", source):  # most files have none, and parsing all takes seconds
            continue
        for node in ast.walk(ast.parse(source)):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args):
                continue
            of_module = isinstance(node.func.value, ast.Name) and node.func.value.id == "re"
            if of_module and isinstance(node.args[0], ast.Constant) and isinstance(node.args[0].value, str | bytes):
                names = [
                    each.attr for each in ast.walk(node) if isinstance(each, ast.Attribute) and each.attr.isupper()
                ]
                flags = sum(getattr(re, name) for name in names)
                yield pytest.param(node.args[0].value, flags, id=f"{path.stem}-{node.lineno}")


def fragments(pattern):
    """Yield texts that parts of a pattern match: its characters, and short sequences of them."""
    text = pattern.decode("latin-1") if isinstance(pattern, bytes) else pattern
    literal = re.sub(r"\\[wdsSWDbBAZ]|[\\()\[\]?*+|{}^$]", " ", text)
    characters = [*dict.fromkeys([*literal.replace(" ", ""), *"a1 \n;*/-"])][:24]
    words = [word for word in literal.split() if len(word) > 1][:8]
    yield from [*characters, *words]
    yield from ("".join(pair) for pair in itertools.permutations([*characters[:12], *words[:4]], 2))
    yield from ("/**/", "--\n", "\\a", '""', "''")


def try_all(pattern, flags):
    compiled, kind = re.compile(pattern, flags), type(pattern)
    for fragment in fragments(pattern):
        for text in (fragment * TIMES, f"a{fragment * TIMES}\0"):
            subject = text.encode("latin-1", "replace") if kind is bytes else text
            compiled.fullmatch(subject)
            compiled.search(subject)


@pytest.mark.parametrize(("pattern", "flags"), [*patterns()])
def test_a_pattern_takes_no_exponential_time(pattern, flags):
    child = multiprocessing.get_context("fork").Process(target=try_all, args=(pattern, flags), daemon=True)
    child.start()
    child.join(PATIENCE)
    ended = child.exitcode
    child.kill()
    assert ended == 0, f"{pattern!r} takes too long on some text"
