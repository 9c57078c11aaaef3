"""The types of parameters that several methods share, and what is asked for when sessions are created.

A type, its limits and its description are stated once. A request for sessions goes down whole, from the
method to what creates them, so it is a model of its own here, below both. Features add parameters of theirs to it.
"""

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
    size = sum(len(name.encode()) + len(value.encode()) for name, value in labels.items())
    if size > MAX_LABELS_BYTES:
        raise PydanticCustomError(
            "labels_too_large", f"All labels together have {size} bytes; {MAX_LABELS_BYTES} are allowed"
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
        description="An id made by whoever may send the request again: what it did the first time is answered, "
        "and nothing done twice.",
    ),
]
TtlSeconds = Annotated[
    float | None,
    Field(
        None,
        gt=0,
        le=MAX_TTL_SECONDS,
        allow_inf_nan=False,
        description="Time to live after its last call, in seconds.",
    ),
]
Arguments = SkipValidation[dict[str, Any] | str | None]
"""The arguments of a call, as a model wrote them. Anything passes: `Parser.arguments` says what is wrong with them."""

Limit = Annotated[int, Field(100, ge=1, le=1000, description="The maximum number of results.")]


Format = Literal["native", "openai", "anthropic", "gemini", "mcp"]


class Parameters(BaseModel):
    """Parameters of a method, in their positional order."""

    model_config = ConfigDict(strict=True, extra="forbid", protected_namespaces=())


class CreationRequest(Parameters):
    """A request for new sessions, of their own or forks."""

    _resolved: bool = PrivateAttr(False)

    @property
    def resolved(self) -> bool:
        """Whether it asks for a session that was there before, so that whatever it names was looked up then."""
        return self._resolved

    def as_resolved(self) -> Self:
        self._resolved = True
        return self


class SessionRequest(CreationRequest):
    """What a client asks for with a new session."""

    toolpacks: list[str] | None = Field(None, description="Names of toolpacks; default: all that are not opt_in.")
    options: dict[str, dict[str, Any]] = Field(default_factory=dict, description="Options by toolpack.")
    environment: dict[str, Any] = Field(
        default_factory=dict, description="Initial environments as JSON, by toolpack; default: those of the toolpacks."
    )
    ttl_seconds: TtlSeconds
    labels: Labels = Field(default_factory=dict, description="Labels, to find and close sessions by.")
    call_id: CallId


class ForkRequest(CreationRequest):
    """What a client asks for with forks of a session."""

    session_id: SessionId
    version: Version | None = Field(None, description="The version; default: the current one.")
    count: int = Field(1, ge=1, le=1000, description="How many to create.")
    labels: Labels | None = Field(None, description="Their labels; default: this session's.")
    ttl_seconds: TtlSeconds
    call_id: CallId
