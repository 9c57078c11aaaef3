"""Parameters that clients of MCP send as HTTP headers, too, so that a proxy can see them: `x-mcp-header` in the schema.

    region: Annotated[str, Field(json_schema_extra={"x-mcp-header": "Region"})]

MCP lets clients drop a tool whose marks are wrong without a word, so a wrong mark is refused when the
function is registered.
"""

import re
from collections.abc import Iterator
from typing import Any

from toolpack_server.base.errors import RegistrationError

MARK = "x-mcp-header"  # MCP's own Python SDK sends what is marked, and drops tools with wrong marks, since 2.0
TYPES = ("string", "integer", "boolean")
DATA = {"const", "default", "enum", "examples"}  # keywords whose values are no schemas

_TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")  # RFC 9110, section 5.6.2

Path = tuple[str, ...]
"""The names of the properties that lead to a value in the arguments."""


class HeaderMarks:
    """What MCP adds to `Toolpack`."""

    def read_marks(self, schema: dict[str, Any]) -> dict[Path, str]:
        return header_parameters(schema)


def header_parameters(schema: dict[str, Any]) -> dict[Path, str]:
    """Get the marked parameters of a function, each with the name that its mark gives.

    Raises:
        RegistrationError: A mark breaks the rules of MCP.
    """
    marked: dict[Path, str] = {}
    for path, part in _parts(schema, ()):
        if MARK not in part:
            continue
        header = part[MARK]
        if not path:
            raise RegistrationError(
                f"the mark {MARK} = {header!r} is in a nested model or below anyOf, as in `str | None`, where "
                f"MCP allows none: mark a plain string, integer or boolean."
            )
        place = ".".join(path)
        if not isinstance(header, str) or not _TOKEN.fullmatch(header):
            raise RegistrationError(
                f"parameter `{place}`: {MARK} = {header!r} isn't the name of a header: use letters, `-`."
            )
        if part.get("type") not in TYPES:
            raise RegistrationError(f"parameter `{place}`: {MARK} needs a string, an integer or a boolean: remove it.")
        if header.lower() in {known.lower() for known in marked.values()}:
            raise RegistrationError(f"parameter `{place}`: {MARK} = {header!r} is given to two parameters: rename one.")
        marked[path] = header
    return marked


def _parts(schema: Any, path: Path | None) -> Iterator[tuple[Path | None, dict[str, Any]]]:
    """Yield all schemas in a schema, each with its path if only properties lead there."""
    if isinstance(schema, list):
        for member in schema:
            yield from _parts(member, None)
    if not isinstance(schema, dict):
        return
    yield path, schema
    for keyword, value in schema.items():
        if keyword == "properties" and isinstance(value, dict):
            for name, part in value.items():
                yield from _parts(part, None if path is None else (*path, name))
        elif keyword not in DATA and keyword != MARK:
            yield from _parts(value, None)
