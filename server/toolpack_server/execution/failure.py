"""Failures of calls, with their causes.

A failure stays an object on its way from the function, through an executor, to the record. It is formatted as text only
for people and agents, so no code needs to parse an error's text.
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
    """Cause of a failed call, for programs.

    The exception's class doesn't tell the cause, because a function can itself raise, for example, a `ValidationError`.
    """

    NOT_FOUND = "not_found"
    ARGUMENTS = "arguments"
    RAISED = "raised"
    TOO_LARGE = "too_large"
    DEADLINE = "deadline"
    CRASHED = "crashed"
    EPISODE_OVER = "episode_over"
    CANCELLED = "cancelled"


OF_CALLS = frozenset({Failure.NOT_FOUND, Failure.ARGUMENTS, Failure.RAISED, Failure.TOO_LARGE})
"""The causes that `execution.call` can return. The other causes are set by its callers."""

_WHY: Mapping[type[BaseException], Failure] = {
    ToolNotFoundError: Failure.NOT_FOUND,
    ValidationError: Failure.ARGUMENTS,
    TooLargeError: Failure.TOO_LARGE,
}
"""The cause for each exception class, if the server's own code raised the exception."""


@dataclass(frozen=True, slots=True)
class CallFailure:
    """Failure of a call: the exception's name and message for the caller, and details for the log."""

    kind: str  # the name of the exception's class
    message: str
    why: Failure
    errors: list[Json] | None = None  # the validation errors of the arguments, each {loc, msg, type}
    similar: Sequence[str] | None = None  # names of similar functions, if the function doesn't exist
    # The exception. It never leaves this process.
    cause: BaseException | None = field(default=None, compare=False, repr=False)
    # The traceback, for the log and the author. It is never included in a response or a record.
    traceback: str | None = None
    raised_at: str | None = None  # file, line and function that raised; never included in a response or a record

    @classmethod
    def of(
        cls,
        error: BaseException,
        why: Failure | None = None,
        max_bytes: int | None = None,
        *,
        keep_cause: bool = True,
    ) -> Self:
        """Create the failure for an exception that ended a call.

        Args:
            why: The cause. None: derive it from the exception's class.
            max_bytes: Maximum length of `text`, and of the list of argument errors as JSON.
            keep_cause: Keep the exception and the text of its traceback. This keeps all objects in the traceback's
                frames alive.
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
        location = raised_at(error)
        if not keep_cause:
            return cls(kind, message, why, errors, similar, raised_at=location)
        return cls(kind, message, why, errors, similar, error, traceback_text(error), location)

    @property
    def text(self) -> str:
        """The text of the error in the envelope: `ErrorType: message`, or the message alone without a kind."""
        return f"{self.kind}: {self.message}" if self.kind else self.message

    def members(self) -> Json:
        """Return the failure as JSON, without the exception, its traceback and its location."""
        return {
            "kind": self.kind,
            "message": self.message,
            "why": self.why,
            "errors": self.errors,
            "similar": self.similar,
        }

    @classmethod
    def from_members(cls, members: Json) -> Self:
        """Return the failure for a result of `members`."""
        return cls(**{**members, "why": Failure(members["why"])})


def cut_error(error: str, max_length: int) -> str:
    """Return an error's text, cut to a maximum number of characters. A note says how many characters were cut."""
    return error if len(error) <= max_length else f"{error[:max_length]}… ({len(error) - max_length} more characters)"


def _argument_errors(error: ValidationError) -> list[Json]:
    """Return the validation errors of a call's arguments, without the rejected values.

    Return an empty list if there are more than `MAX_LISTED_ERRORS`.
    """
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
