"""Parsing the bodies of requests, and arguments that come as text, within the limits on their JSON.

What is over a limit is refused before its values are created, by a few scans of its bytes, which never take
longer than parsing. Large bodies aren't parsed on the event loop, which all clients share. Arguments that come as JSON
text, as models' tool calls carry them, have the same limits. Arguments over a limit, or that aren't a JSON object, are
the agent's mistake at every door, so they fail the call, like wrong arguments, and don't refuse the request.
"""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from toolpack_server.base.errors import RpcRefusedError, TooLargeError
from toolpack_server.base.settings import Settings
from toolpack_server.jsonio.strict import STRING, dumps, loads
from toolpack_server.rpc.codes import ERROR_INVALID_REQUEST, ERROR_PARSE_ERROR

NO_OBJECT = 'the arguments are no JSON object, like {"name": "value"}'
QUICK_BYTES = 64 * 1024  # JSON text up to this is parsed in less than a millisecond
SMALL_BYTES, SMALL_FACTOR = 1024, 25  # the values of a small body aren't counted one by one
VALUE_BYTES = 100  # that a small value takes in memory, up to 50 times its text


def _separators(body: bytes) -> int:
    """Count what comes before a value, in strings too: a body that is a single value may have none."""
    return sum(map(body.count, (b",", b"[", b"{")))


def parsed_bytes(body: bytes) -> int:
    """Estimate the memory that a body takes together with what is parsed out of it; rather too much than too little."""
    if len(body) <= SMALL_BYTES:
        return SMALL_FACTOR * len(body)
    return len(body) + VALUE_BYTES * _separators(body)


def has_more_values(body: bytes, limit: int) -> bool:
    if len(body) <= limit or _separators(body) <= limit:
        return False
    return _separators(STRING.sub(b"", body)) > limit


def is_deeper(body: bytes, value: Any, limit: int) -> bool:
    # Most bodies have fewer brackets than levels allowed, so this is enough.
    if body.count(b"[") + body.count(b"{") <= limit:
        return False
    level = [value]
    for _ in range(limit + 1):
        level = [
            part
            for outer in level
            if isinstance(outer, dict | list)
            for part in (outer.values() if isinstance(outer, dict) else outer)
        ]
        if not level:
            return False
    return True


Compute = Callable[[Callable[[], Any], str, str], Awaitable[Any]]
"""Does work that takes much of the processor, for an owner and of a kind, without blocking the event loop."""


class Parser:
    def __init__(self, settings: Settings, compute: Compute) -> None:
        self._settings = settings
        self._compute = compute

    async def parse(self, body: bytes, owner: str) -> tuple[Any, int]:
        """Get what a body holds, and an estimate of the memory that it takes, in bytes.

        Raises:
            RpcRefusedError: It isn't JSON, or is nested too deeply.
            TooLargeError: It has too many values.
        """
        if len(body) <= QUICK_BYTES:
            return self._parse(body)
        parsed: tuple[Any, int] = await self._compute(partial(self._parse, body), owner, "parse")
        return parsed

    def _parse(self, body: bytes) -> tuple[Any, int]:
        limits = self._settings
        if has_more_values(body, limits.max_json_values):
            raise TooLargeError(f"The body has more than {limits.max_json_values} values: send less.")
        try:
            value = loads(body)
        except ValueError as error:
            raise RpcRefusedError(ERROR_PARSE_ERROR, f"The body is not JSON: {error}.") from None
        if is_deeper(body, value, limits.max_json_depth):
            detail = f"The body is nested more than {limits.max_json_depth} deep: send flatter JSON."
            raise RpcRefusedError(ERROR_INVALID_REQUEST, detail)
        return value, parsed_bytes(body)

    async def arguments(self, given: Any, owner: str) -> tuple[dict[str, Any], str | None]:
        """Return the arguments of a call, or `{"$text": text}` and why they aren't an object.

        Null and a text without any character are no arguments: some models send that.
        """
        if isinstance(given, dict):
            return given, None
        if given is None:
            return {}, None
        if not isinstance(given, str):
            return {"$text": dumps(given).decode()}, NO_OBJECT
        if len(given) <= QUICK_BYTES:
            return self._arguments(given)
        read: tuple[dict[str, Any], str | None] = await self._compute(partial(self._arguments, given), owner, "parse")
        return read

    def _arguments(self, text: str) -> tuple[dict[str, Any], str | None]:
        body, limits = text.encode(), self._settings
        if has_more_values(body, limits.max_json_values):
            return {"$text": text}, f"the arguments have more than {limits.max_json_values} values: send less"
        try:
            arguments = loads(body) if text.strip() else {}
        except ValueError as error:
            return {"$text": text}, f"the arguments are not JSON: {error}"
        if not isinstance(arguments, dict):
            return {"$text": text}, NO_OBJECT
        if is_deeper(body, arguments, limits.max_json_depth):
            return {
                "$text": text
            }, f"the arguments are nested more than {limits.max_json_depth} deep: send flatter JSON"
        return arguments, None
