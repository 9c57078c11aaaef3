"""Result type of a message's record. Like `protocol/results.py`, the module contains only types."""

from typing import Literal, NotRequired

from typing_extensions import TypedDict  # before Python 3.12, pydantic rejects the TypedDict of typing

from toolpack_server.protocol.results import Json


class MessageRecord(TypedDict):
    """A message. `by` and `to` are set if a participant sent it."""

    index: int
    kind: Literal["message"]
    call_id: NotRequired[str]
    role: Literal["system", "user", "assistant"]
    content: str
    by: NotRequired[str]
    to: NotRequired[str]
    metadata: NotRequired[dict[str, Json]]
    version: int
    started_at: str
    duration_ms: float
