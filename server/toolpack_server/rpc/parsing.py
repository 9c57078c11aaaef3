"""Parser of request bodies, and of arguments that are sent as JSON text, with limits on the number and depth of values.

A few scans of the bytes find a body with too many values before its values are created. The scans are never slower than
parsing. Large bodies are parsed in a thread, because all clients share the event loop. Models write the arguments of a
tool call as JSON text, for which the same limits hold. If the arguments exceed a limit or aren't a JSON object, the
agent made the mistake. So the call fails, just as it does for wrong arguments, but the request isn't rejected.
"""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from toolpack_server.base.errors import RpcRefusedError, TooLargeError
from toolpack_server.base.settings import Settings
from toolpack_server.jsonio.strict import STRING, dumps, loads
from toolpack_server.rpc.codes import ERROR_INVALID_REQUEST, ERROR_PARSE_ERROR

NO_OBJECT = 'the arguments aren\'t a JSON object, like {"name": "value"}'
QUICK_BYTES = 64 * 1024  # JSON text of this size is parsed in less than a millisecond
SMALL_BYTES, SMALL_FACTOR = 1024, 25  # for a small body the memory is estimated without counting its values
VALUE_BYTES = 100  # memory of a small value: up to 50 times the size of its JSON text


def _separators(body: bytes) -> int:
    """Count the characters that precede values, even inside strings. A body with a single value may contain none."""
    return sum(map(body.count, (b",", b"[", b"{")))


def parsed_bytes(body: bytes) -> int:
    """Estimate the memory of a body and its parsed values in bytes, rather too high than too low."""
    if len(body) <= SMALL_BYTES:
        return SMALL_FACTOR * len(body)
    return len(body) + VALUE_BYTES * _separators(body)


def has_more_values(body: bytes, limit: int) -> bool:
    """Return whether JSON text has more values than the limit, which is estimated by the separators between values."""
    # Strings can contain separators too, but removing the strings takes time, and few bodies need it.
    if len(body) <= limit or _separators(body) <= limit:
        return False
    return _separators(STRING.sub(b"", body)) > limit


def is_deeper(body: bytes, value: Any, limit: int) -> bool:
    """Return whether a value is nested more deeply than the limit. `body` is its JSON text."""
    # Most bodies contain fewer brackets than the limit, so they need no further check.
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
"""Runs CPU-bound work in a thread. Takes the work, the owner and the kind of work."""


class Parser:
    """Parser with the limits of the settings. It passes long work to `compute`."""

    def __init__(self, settings: Settings, compute: Compute) -> None:
        self._settings = settings
        self._compute = compute

    async def parse(self, body: bytes, owner: str) -> tuple[Any, int]:
        """Return the parsed body, and an estimate of the memory that it uses, in bytes.

        Raises:
            RpcRefusedError: The body isn't JSON, or is nested too deeply.
            TooLargeError: The body has too many values.
        """
        if len(body) <= QUICK_BYTES:
            return self._parse(body)
        parsed: tuple[Any, int] = await self._compute(partial(self._parse, body), owner, "parse")
        return parsed

    def _parse(self, body: bytes) -> tuple[Any, int]:
        """Do the work of `parse`, on the calling thread."""
        limits = self._settings
        if has_more_values(body, limits.max_json_values):
            raise TooLargeError(f"The body has more than {limits.max_json_values} values: send less.")
        try:
            value = loads(body)
        except ValueError as error:
            raise RpcRefusedError(ERROR_PARSE_ERROR, f"The body isn't JSON: {error}.") from None
        if is_deeper(body, value, limits.max_json_depth):
            detail = f"The body is nested more than {limits.max_json_depth} deep: send flatter JSON."
            raise RpcRefusedError(ERROR_INVALID_REQUEST, detail)
        return value, parsed_bytes(body)

    async def arguments(self, value: Any, owner: str) -> tuple[dict[str, Any], str | None]:
        """Return the arguments of a call and None, or `{"$text": text}` and the reason why they are invalid.

        Null and blank text mean "no arguments", because some models send them for functions without parameters.
        """
        if isinstance(value, dict):
            return value, None
        if value is None:
            return {}, None
        if not isinstance(value, str):
            return {"$text": dumps(value).decode()}, NO_OBJECT
        if len(value) <= QUICK_BYTES:
            return self._arguments(value)
        parsed: tuple[dict[str, Any], str | None] = await self._compute(partial(self._arguments, value), owner, "parse")
        return parsed

    def _arguments(self, text: str) -> tuple[dict[str, Any], str | None]:
        """Parse arguments that are JSON text, on the calling thread. The results are those of `arguments`."""
        body, limits = text.encode(), self._settings
        if has_more_values(body, limits.max_json_values):
            return {"$text": text}, f"the arguments have more than {limits.max_json_values} values: send less"
        try:
            arguments = loads(body) if text.strip() else {}
        except ValueError as error:
            return {"$text": text}, f"the arguments aren't JSON: {error}"
        if not isinstance(arguments, dict):
            return {"$text": text}, NO_OBJECT
        if is_deeper(body, arguments, limits.max_json_depth):
            return {
                "$text": text
            }, f"the arguments are nested more than {limits.max_json_depth} deep: send flatter JSON"
        return arguments, None
