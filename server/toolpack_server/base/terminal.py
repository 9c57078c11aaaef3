"""What the commands write: on standard output and standard error, line by line.

`echo` alone writes, so nothing that an agent, a toolpack or a server has said can move the terminal's cursor,
turn the direction of its text, or forge a line. What it escapes it escapes as JSON does, so JSON stays the same JSON.
"""

import json
import re
import sys

_OTHERS = re.compile(r"[^ -~]")


def printable(text: str) -> str:
    """Escape what isn't printable, line ends too: controls, marks of direction, what has no width."""
    return text if text.isprintable() else _OTHERS.sub(_escaped, text)


def _escaped(found: re.Match[str]) -> str:
    return found[0] if found[0].isprintable() else json.dumps(found[0])[1:-1]


def echo(*lines: str, err: bool = False) -> None:
    """Write lines to standard output, or to standard error; each stays one line."""
    stream = sys.stderr if err else sys.stdout
    stream.write("".join([f"{printable(line)}\n" for line in lines]))
    stream.flush()
