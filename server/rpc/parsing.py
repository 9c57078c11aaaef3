"""Parsing the bodies of requests, within the limits on their JSON.

The rule: a body that is over a limit is refused before its values are created. Large bodies aren't parsed on the event
loop, which all clients share.
"""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, NamedTuple

from server.base.errors import TooLargeError
from server.base.settings import Settings
from server.jsonio.strict import loads
from server.rpc.codes import ERROR_INVALID_REQUEST, ERROR_PARSE_ERROR, Described, describe, standard
from server.rpc.limits import QUICK_BYTES, has_more_values, is_deeper, parsed_bytes

Compute = Callable[[Callable[[], Any], str, str], Awaitable[Any]]
"""Does work that takes much of the processor, for an owner and of a kind, without blocking the event loop."""


class Parsed(NamedTuple):
    """What a body holds.

    Attributes:
        refused: Why the body is refused as a whole; None if it isn't.
        size: An estimate of the memory that the request takes, in bytes.
    """

    value: Any
    refused: Described | None = None
    size: int = 0


class Parser:
    def __init__(self, settings: Settings, compute: Compute) -> None:
        self._settings = settings
        self._compute = compute

    async def parse(self, body: bytes, owner: str) -> Parsed:
        try:
            if len(body) <= QUICK_BYTES:
                return self._parse(body)
            parsed: Parsed = await self._compute(partial(self._parse, body), owner, "parse")
        except Exception as error:  # noqa: BLE001 - `describe` logs unknown exceptions
            return Parsed(None, describe(error))
        return parsed

    def _parse(self, body: bytes) -> Parsed:
        limits = self._settings
        if has_more_values(body, limits.max_json_values):
            too_large = TooLargeError(
                f"The body has more than {limits.max_json_values} values: send less, or raise TOOLPACK_MAX_JSON_VALUES."
            )
            return Parsed(None, describe(too_large))
        try:
            value = loads(body)
        except ValueError as error:
            return Parsed(None, standard(ERROR_PARSE_ERROR, f"The body is not JSON: {error}."))
        if is_deeper(body, value, limits.max_json_depth):
            detail = f"The body is nested more than {limits.max_json_depth} deep: send flatter JSON."
            return Parsed(None, standard(ERROR_INVALID_REQUEST, detail))
        return Parsed(value, None, parsed_bytes(body))
