"""Type of a message's record. Types only, as in `server/toolpack_server/protocol/results.py`."""

from typing import Literal, NotRequired

from typing_extensions import TypedDict  # pydantic needs this one before Python 3.12

from toolpack_server.protocol.results import Json


class MessageRecord(TypedDict):
    """The record of a message. `by` and `to` are set if a participant sent it."""

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
