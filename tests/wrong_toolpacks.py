"""Toolpacks with a mistake each, and what `check` says of them: without calling their functions, and with."""

import re

import serving
from command_line import invoke

WRONG = {file.stem: file for file in sorted(serving.PACKS.with_name("wrong_toolpacks").glob("*.py"))}
"""Toolpacks that `check` finds fault with, but for `sound`."""

SAYS = re.compile(r"# (says|call): (.*\n(?:#       .*\n)*)")
"""A line that `check` prints of the file: in any case, or only where it calls the functions.

`…` stands for any text, FILE for the file and MODULE for its name.
"""

SUMMARY = re.compile(r"\d+ toolpacks? with \d+ functions?: no problems\.")


def check(*arguments):
    """Run `check`; get its exit status, its lines without details and summary, and all that it has printed."""
    result = invoke("check", *arguments)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    lines = [line for line in result.output.splitlines() if not line.startswith("    ")]
    return result.exit_code, [line for line in lines if not SUMMARY.fullmatch(line)], result.output


def copied(name, folder, *, called):
    """Copy a file of `WRONG` under a name that no module has, and get what `check` prints of it."""
    code = WRONG[name].read_text(encoding="utf-8")
    file = folder / f"wrong_{name}.py"
    file.write_text(code, encoding="utf-8")
    said = [said for when, said in SAYS.findall(code) if called or when == "says"]
    return file, [each.replace("\n#       ", " ").strip() for each in said]


def assert_said(folder, name, *, called):
    """Check a copy of a file of `WRONG`, and compare what is said of it."""
    file, expected = copied(name, folder, called=called)
    status, lines, output = check("--pack-dir", folder, "--calls" if called else "--no-calls")
    assert len(lines) == len(expected), output
    for line, said in zip(lines, expected, strict=True):
        assert re.fullmatch(pattern(said, file), line), f"\n{line}\n{said}"
    assert status == (0 if all(said.startswith("note: ") for said in expected) else 1)
    assert bool(expected) == (output != "1 toolpack with 1 function: no problems.\n")
    assert "/toolpack_server/" not in output.partition("ImportError")[0]
    return expected


def pattern(said, file):
    text = said.replace("FILE", str(file)).replace("MODULE", file.stem)
    return ".*".join(map(re.escape, text.split("…")))


def write(folder, name, code):
    folder.mkdir(exist_ok=True)
    (folder / f"wrong_{name}.py").write_text(code)
    return folder


def headed(name, code=""):
    return f'from toolpack_server import Toolpack\n\ntoolpack = Toolpack("{name}")\n{code}'


def sound(name):
    return headed(name, f'\n\n@toolpack.function\ndef f_{name}():\n    """Do it."""\n')
