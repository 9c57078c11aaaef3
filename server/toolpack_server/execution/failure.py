"""Why a call has failed.

A failure is this object wherever it travels: out of the function, out of an executor, in a record. Only what
people and agents read is text, and nothing reads that text again.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Self

from pydantic_core import ValidationError

from toolpack_server.base.errors import TooLargeError, ToolNotFoundError, shown
from toolpack_server.functions.tracebacks import raised_at, traceback_text
from toolpack_server.functions_runtime import MAX_LISTED_ERRORS, error_message
from toolpack_server.jsonio.strict import dumps

Json = dict[str, Any]


class Failure(StrEnum):
    """What has made a call fail, for programs: the class of an exception doesn't say who raised it."""

    NOT_FOUND = "not_found"
    ARGUMENTS = "arguments"
    RAISED = "raised"
    TOO_LARGE = "too_large"
    DEADLINE = "deadline"
    CRASHED = "crashed"
    EPISODE_OVER = "episode_over"


OF_CALLS = frozenset({Failure.NOT_FOUND, Failure.ARGUMENTS, Failure.RAISED, Failure.TOO_LARGE})
"""What can come out of running a call; the others are for those who have it run."""

_WHY: Mapping[type[BaseException], Failure] = {
    ToolNotFoundError: Failure.NOT_FOUND,
    ValidationError: Failure.ARGUMENTS,
    TooLargeError: Failure.TOO_LARGE,
}
"""What exceptions mean where no code of a toolpack has raised them."""


@dataclass(frozen=True, slots=True)
class CallFailure:
    """Why a call has failed."""

    kind: str  # the name of the exception's class
    message: str
    why: Failure
    errors: list[Json] | None = None  # what is wrong with the arguments, each {loc, msg, type}
    similar: Sequence[str] | None = None  # names of functions that may have been meant, if there is no such function
    # The exception, if it is at hand; it stays in this process.
    cause: BaseException | None = field(default=None, compare=False, repr=False)
    # Where the function raised, for the log and the author; never part of a reply or a record.
    traceback: str | None = None
    raised_at: str | None = None  # its file, line and function; likewise

    @classmethod
    def of(
        cls,
        error: BaseException,
        why: Failure | None = None,
        max_bytes: int | None = None,
        *,
        keep_cause: bool = True,
    ) -> Self:
        """Describe the exception that has ended a call.

        Args:
            why: What has made the call fail; None if the exception's class says it.
            max_bytes: How long the text, and the list of what is wrong with the arguments, may be.
            keep_cause: Keep it, and with its traceback all that its frames hold; describe that, too.
        """
        kind, message = type(error).__name__, error_message(error)
        errors = similar = None
        why = why or _WHY.get(type(error), Failure.RAISED)
        if why is Failure.NOT_FOUND and isinstance(error, ToolNotFoundError):
            similar = error.similar
        elif why is Failure.ARGUMENTS and isinstance(error, ValidationError):
            errors = _argument_errors(error)
        if max_bytes is not None:
            kind = kind[:max_bytes]
            message = cut_error(message, max(max_bytes - len(kind) - len(": "), 0))
            if errors and len(dumps(errors)) > max_bytes:
                errors = []
        place = raised_at(error)
        if not keep_cause:
            return cls(kind, message, why, errors, similar, raised_at=place)
        return cls(kind, message, why, errors, similar, error, traceback_text(error), place)

    @property
    def text(self) -> str:
        """`ErrorType: message`, as it stands in the envelope; without a kind, the message."""
        return f"{self.kind}: {self.message}" if self.kind else self.message

    def members(self) -> Json:
        """Get it as JSON, without the exception and where it was raised."""
        return {
            "kind": self.kind,
            "message": self.message,
            "why": self.why,
            "errors": self.errors,
            "similar": self.similar,
        }

    @classmethod
    def from_members(cls, members: Json) -> Self:
        return cls(**{**members, "why": Failure(members["why"])})


def cut_error(error: str, most: int) -> str:
    """Get an error's text, cut after so many characters."""
    return error if len(error) <= most else f"{error[:most]}… ({len(error) - most} more characters)"


def _argument_errors(error: ValidationError) -> list[Json]:
    if error.error_count() > MAX_LISTED_ERRORS:
        return []
    return [
        {
            "loc": [shown(part) if isinstance(part, str) else part for part in problem["loc"]],
            "msg": problem["msg"],
            "type": problem["type"],
        }
        for problem in error.errors(include_url=False, include_context=False, include_input=False)
    ]
