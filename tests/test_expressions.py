"""Our regular expressions take about linear time, on any text.

The tests use each expression as the code does, on long texts that could cause backtracking. A text repeats characters
and words of the expression, alone and in pairs, and has an end that doesn't match. In linear time a text takes two
thousandths of a second. A test stops after a hundred times as long.
"""

import ast
import fnmatch
import importlib
import itertools
import re
import signal
from functools import partial
from pathlib import Path

import pytest

from toolpack_server.features.evaluation.perturbations.appearance import Appearance
from toolpack_server.features.evaluation.rules import read_rules
from toolpack_server.features.volumes.files import files_glob

ROOT = Path(__file__).parents[1]
FOLDERS = ("server", "toolpacks")
METHODS = {"match", "fullmatch", "search", "findall", "finditer", "sub", "subn", "split"}
LENGTH = 30_000
TRIES = 3
LIMIT_SECONDS = 0.25  # maximum CPU time for one text; an expression with quadratic time takes several times as long
FEW = 5  # number of an expression's characters and words that are tried in pairs
ANYTHING = ["a", "0", " ", "\n", '"', "\\", "é", "_"]  # tried in addition to the characters and words of the expression
# These expressions are never used on texts of agents or other users.
OWN = {"server/toolpack_server/features/evaluation/tasks/report.py": "the console's modules"}


def uses():
    """Find each expression in the code, and the methods that use it."""
    methods_by_expression = {}
    for path in sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")):
        name = str(path.relative_to(ROOT))
        if name in OWN:
            continue
        tree, compiled = ast.parse(path.read_text()), {}
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign) and _method(node.value) == ("re", "compile"):
                compiled[node.targets[0].id if isinstance(node.targets[0], ast.Name) else ""] = node.value
        for node in ast.walk(tree):
            owner, method = _method(node) or ("", "")
            if owner == "re" and method in METHODS and isinstance(node.args[0], ast.Constant):
                methods_by_expression.setdefault((name, node.lineno, repr(node.args[0].value)), set()).add(method)
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in compiled:
                methods_by_expression.setdefault((name, compiled[node.value.id].lineno, node.value.id), set()).add(
                    node.attr
                )
        for owner, value in compiled.items():
            if owner:  # otherwise only other modules may use the expression
                methods_by_expression.setdefault((name, value.lineno, owner), {"finditer"})
    return {each: methods & METHODS for each, methods in methods_by_expression.items()}


def _method(node):
    """Return the name of the called function, as `owner.method`."""
    function = node.func if isinstance(node, ast.Call) else None
    if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name):
        return function.value.id, function.attr
    return None


def pattern_of(name, what):
    """Return a compiled expression, from a module's attribute or from its text."""
    if what[0] in "'\"b" and what[-1] in "'\"":
        return re.compile(ast.literal_eval(what))
    module = name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    return getattr(importlib.import_module(module), what)


def pumps(pattern):
    """Yield texts that could make an expression backtrack."""
    text = pattern.pattern.decode("latin-1") if isinstance(pattern.pattern, bytes) else pattern.pattern
    words = re.findall(r"(?:\\[^\w]|[^\\\[\](){}|?*+^$.]){2,}", text)
    words = [re.sub(r"\\(\W)", r"\1", word) for word in words]
    named = dict.fromkeys([*words, *re.findall(r"[^\\\w\s]", text), *ANYTHING])
    pieces = list(named)[: FEW + len(ANYTHING)]
    return [*pieces, *map("".join, itertools.permutations(pieces[:FEW], 2)), *(w + "a" for w in words)]


def hostile(pattern):
    """Yield texts, each with a beginning, a repeated part and an end that doesn't match."""
    pieces = pumps(pattern)
    for start, pump in itertools.product(["", pieces[0]], pieces):
        text = start + pump * (LENGTH // len(pump)) + "\0"
        yield text.encode() if isinstance(pattern.pattern, bytes) else text


def too_slow(pattern, methods):
    """Return the first text on which an expression takes too long, or None."""
    for text, method in itertools.product(hostile(pattern), sorted(methods)):
        if takes_long(partial(use, pattern, method, text)):
            return method, text[:50], text[-50:]
    return None


def use(pattern, method, text):
    if method in {"sub", "subn"}:
        getattr(pattern, method)(lambda match: match[0], text)
    elif method == "finditer":
        list(pattern.finditer(text))
    else:
        getattr(pattern, method)(text)


def takes_long(work):
    """Return whether some work takes too long in each of several tries.

    The measured CPU time is that of the whole process, so a garbage collection or a leftover thread may slow down a
    single try.
    """
    for _ in range(TRIES):
        signal.setitimer(signal.ITIMER_PROF, LIMIT_SECONDS)
        try:
            work()
        except _TooSlowError:
            continue
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
        return False
    return True


class _TooSlowError(Exception):
    pass


@pytest.fixture
def limited():
    def give_up(*_):
        raise _TooSlowError

    before = signal.signal(signal.SIGPROF, give_up)
    yield
    signal.signal(signal.SIGPROF, before)


@pytest.mark.heavy
@pytest.mark.usefixtures("limited")
def test_no_regular_expression_backtracks():
    expressions = uses()
    assert {"_TOKEN", "_TYPED", "_MEMBER", "_CALL"} <= {what for _, _, what in expressions}
    slow = {
        location: too_slow(pattern_of(location[0], location[2]), methods) for location, methods in expressions.items()
    }
    assert {location: how for location, how in slow.items() if how} == {}


@pytest.mark.heavy
@pytest.mark.usefixtures("limited")
@pytest.mark.parametrize(
    ("pattern", "method"),
    [
        (r"(a+)+b", "search"),
        (r"\s+$", "sub"),
        (r"(\s|--[^\n]*(\n|$)|/\*.*?\*/|;)*vacuum\b", "match"),
        (r"<call>(.*?)</call>", "findall"),
    ],
)
def test_a_backtracking_expression_is_found(pattern, method):
    assert too_slow(re.compile(pattern, re.DOTALL), {method})


@pytest.mark.usefixtures("limited")
def test_patterns_from_users_do_not_backtrack():
    """Patterns that become an expression: of file names, and of functions' names in rules."""
    for piece in ("*a", "*", "?*", "[a-z]*", "*[!a]", "**a"):
        pattern = piece * 60 + "b"
        for fits in (files_glob._matcher(pattern), lambda name, pattern=pattern: fnmatch.fnmatchcase(name, pattern)):
            assert not takes_long(partial(fits, "a" * 255))
            assert not fits("a" * 255)
    names = {"a" * number: "x" for number in range(1, 60)}
    appearance = Appearance(read_rules([{"rename": names}]), {"0": [*names]}, [*names])
    assert too_slow(appearance._names, {"finditer"}) is None
