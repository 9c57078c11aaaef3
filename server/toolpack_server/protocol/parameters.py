"""Parameter types that several methods share, and the requests that create sessions.

Each type states its limits and its description once. A request for new sessions is passed unchanged from the method to
the session factory, so its model is defined here, below both. Features add parameters to it.
"""

import operator
from functools import partial
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PrivateAttr, SkipValidation
from pydantic_core import PydanticCustomError

MAX_TTL_SECONDS = 10 * 365 * 86_400
MAX_LABELS_BYTES = 16 * 2**10
MAX_CALL_ID = 128
MAX_COUNT = 2**53 - 1  # up to this, integers are exact in every store and JSON parser (RFC 8259, section 6)

SessionId = Annotated[str, Field(description="The session.")]
Version = Annotated[int, Field(ge=0, le=MAX_COUNT, description="A version of the session.")]


def _check_size(labels: dict[str, str]) -> dict[str, str]:
    """Return the labels unchanged. Pydantic reports the error as an invalid parameter if they are too large."""
    size = sum(len(name.encode()) + len(value.encode()) for name, value in labels.items())
    if size > MAX_LABELS_BYTES:
        raise PydanticCustomError(
            "labels_too_large", f"The labels have {size} bytes together; at most {MAX_LABELS_BYTES} are allowed"
        )
    return labels


Labels = Annotated[
    dict[Annotated[str, Field(max_length=256)], Annotated[str, Field(max_length=4096)]],
    Field(max_length=64),
    AfterValidator(_check_size),
]
CallId = Annotated[
    Annotated[str, Field(min_length=1, max_length=MAX_CALL_ID)] | None,
    Field(
        None,
        description="Idempotency key, chosen by the client. A repeated request with the same key returns the first "
        "result and changes nothing.",
    ),
]
TtlSeconds = Annotated[
    float | None,
    Field(
        None,
        gt=0,
        le=MAX_TTL_SECONDS,
        allow_inf_nan=False,
        description="Time to live after the session's last call, in seconds.",
    ),
]
Arguments = SkipValidation[dict[str, Any] | str | None]
"""The arguments of a call as a model wrote them. They aren't validated here: `Parser.arguments` reports mistakes."""

Limit = Annotated[int, Field(100, ge=1, le=1000, description="The maximum number of results.")]


Format = Literal["native", "openai", "anthropic", "gemini", "mcp"]


class Parameters(BaseModel):
    """Parameters of a method, in their positional order."""

    model_config = ConfigDict(strict=True, extra="forbid", protected_namespaces=())


class CreationRequest(Parameters):
    """A request that creates sessions or forks."""

    _resolved: bool = PrivateAttr(False)

    @property
    def resolved(self) -> bool:
        """Whether the request describes an existing session, so that its names don't have to be resolved again."""
        return self._resolved

    def as_resolved(self) -> Self:
        """Mark the request as resolved, and return it."""
        self._resolved = True
        return self


class SessionRequest(CreationRequest):
    """Parameters of a new session."""

    _unused_seconds: float | None = PrivateAttr(None)

    toolpacks: list[str] | None = Field(None, description="Names of the toolpacks. Default: all that aren't opt_in.")
    options: dict[str, dict[str, Any]] = Field(default_factory=dict, description="Options by toolpack.")
    environment: dict[str, Any] = Field(
        default_factory=dict,
        description="Initial environments as JSON, by toolpack. Default: the toolpacks build them.",
    )
    ttl_seconds: TtlSeconds
    labels: Labels = Field(default_factory=dict, description="Labels for finding and closing sessions.")
    call_id: CallId

    @property
    def unused_seconds(self) -> float | None:
        """Seconds after which the session expires if no request reads or calls it. None: its TTL."""
        return self._unused_seconds

    def expire_unused(self, seconds: float) -> None:
        """Let the session expire after this many seconds unless a request reads or calls it."""
        self._unused_seconds = seconds


class ForkRequest(CreationRequest):
    """Parameters of forks."""

    session_id: SessionId
    version: Version | None = Field(None, description="The version to fork. Default: the current one.")
    count: int = Field(1, ge=1, le=1000, description="Number of forks.")
    labels: Labels | None = Field(None, description="Labels of the forks. Default: the session's labels.")
    ttl_seconds: TtlSeconds
    call_id: CallId
    before: int | None = Field(
        None,
        ge=0,
        le=MAX_COUNT,
        description="Fork the session as it was before the record with this index. It replaces `version`.",
        exclude_if=partial(operator.is_, None),  # requests without it keep their digests
        kw_only=True,  # last, after the parameters of features
    )
