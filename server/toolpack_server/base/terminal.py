"""Output of commands on standard output and standard error.

All output goes through `echo`, which escapes control characters. So a text from an agent, a toolpack or a server can't
move the cursor, change the text's direction or forge a line. It escapes as JSON does, so JSON stays the same JSON.
"""

import json
import re
import sys

_OTHERS = re.compile(r"[^ -~]")


def printable(text: str) -> str:
    """Return a text with everything unprintable escaped: controls, line ends, direction marks, zero width."""
    return text if text.isprintable() else _OTHERS.sub(_escaped, text)


def _escaped(match: re.Match[str]) -> str:
    return match[0] if match[0].isprintable() else json.dumps(match[0])[1:-1]


def echo(*lines: str, err: bool = False) -> None:
    """Write lines to standard output, or to standard error. A line break inside a line is escaped."""
    stream = sys.stderr if err else sys.stdout
    stream.write("".join([f"{printable(line)}\n" for line in lines]))
    stream.flush()
