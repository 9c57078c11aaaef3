"""Output of commands on standard output and standard error.

All output goes through `echo`, which escapes control characters. So a string from an agent, a toolpack or a server
can't move the cursor, change the direction of text or forge a line. Characters are escaped in the same way as in JSON,
so that printed JSON keeps its meaning.
"""

import json
import re
import sys

_NOT_ASCII = re.compile(r"[^ -~]")  # also ASCII control characters


def printable(text: str) -> str:
    """Escape the unprintable characters in a string, such as line ends, direction marks and zero-width characters."""
    return text if text.isprintable() else _NOT_ASCII.sub(_escaped, text)


def _escaped(match: re.Match[str]) -> str:
    """Return the matched character, escaped as in a JSON string unless it is printable."""
    return match[0] if match[0].isprintable() else json.dumps(match[0])[1:-1]


def echo(*lines: str, err: bool = False) -> None:
    """Write lines to standard output, or to standard error. A line break inside a line is escaped."""
    stream = sys.stderr if err else sys.stdout
    stream.write("".join([f"{printable(line)}\n" for line in lines]))
    stream.flush()
