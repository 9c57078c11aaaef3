"""Failures of calls, with their causes.

A failure stays an object on its way from the function, through an executor, to the record. It becomes text only for
people and agents, so no code needs to parse an error's text.
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
    """Cause of a failure, for programs. The class of an exception isn't enough: the function may have raised it."""

    NOT_FOUND = "not_found"
    ARGUMENTS = "arguments"
    RAISED = "raised"
    TOO_LARGE = "too_large"
    DEADLINE = "deadline"
    CRASHED = "crashed"
    EPISODE_OVER = "episode_over"
    CANCELLED = "cancelled"


OF_CALLS = frozenset({Failure.NOT_FOUND, Failure.ARGUMENTS, Failure.RAISED, Failure.TOO_LARGE})
"""The causes that `execution.call` can return. Its callers add the others."""

_WHY: Mapping[type[BaseException], Failure] = {
    ToolNotFoundError: Failure.NOT_FOUND,
    ValidationError: Failure.ARGUMENTS,
    TooLargeError: Failure.TOO_LARGE,
}
"""The causes by exception class, for exceptions that the server itself raised."""


@dataclass(frozen=True, slots=True)
class CallFailure:
    """Description of a failed call."""

    kind: str  # the name of the exception's class
    message: str
    why: Failure
    errors: list[Json] | None = None  # the errors of the arguments, each {loc, msg, type}
    similar: Sequence[str] | None = None  # names of similar functions, if the function doesn't exist
    # The exception. It never leaves this process.
    cause: BaseException | None = field(default=None, compare=False, repr=False)
    # The traceback, for the log and the author. It is never part of a reply or a record.
    traceback: str | None = None
    raised_at: str | None = None  # file, line and function that raised; never part of a reply or a record

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
            max_bytes: Maximum length of the text, and of the list of argument errors as JSON.
            keep_cause: Keep the exception, with all objects in the frames of its traceback, and the traceback's text.
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
        return cls(**{**members, "why": Failure(members["why"])})


def cut_error(error: str, max_length: int) -> str:
    """Return an error's text, cut to a maximum number of characters, with a note about the rest."""
    return error if len(error) <= max_length else f"{error[:max_length]}… ({len(error) - max_length} more characters)"


def _argument_errors(error: ValidationError) -> list[Json]:
    """Return the errors of a call's arguments, without their values. Return none if there are too many to list."""
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
