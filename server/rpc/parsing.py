"""Parsing the bodies of requests, within the limits on their JSON.

The rule: a body that is over a limit is refused before its values are created. Large bodies aren't parsed on the event
loop, which all clients share.
"""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from server.base.errors import RpcRefusedError, TooLargeError
from server.base.settings import Settings
from server.jsonio.strict import loads
from server.rpc.codes import ERROR_INVALID_REQUEST, ERROR_PARSE_ERROR
from server.rpc.limits import QUICK_BYTES, has_more_values, is_deeper, parsed_bytes

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
