"""Every exception that this server raises on purpose, in one tree.

An exception is named for what went wrong. Its text is one sentence that says what, where and what to do. It
knows nothing of JSON-RPC or HTTP statuses other than its own; `rpc/codes.py` alone maps these classes to codes.

Below `ToolpackServerError` an error's first base says who hears of it:

    StartError      whoever starts the server, which can't start
    CallError       the agent, who can react: it is in the envelope of a call
    RequestError    a programmer or an operator, who can fix it: the request is refused
    ClientError     whoever uses the Python client, which raises it
    InternalSignal  another module of the server; no caller of the server ever sees it

The others are caught where they can be answered. `Interrupted`, which ends a function that has passed its deadline, is
a `BaseException`, so that no `except Exception` in the function keeps it. What only one feature raises and catches is
defined there, below one of these.
"""

from collections.abc import Sequence
from typing import Any, TypeVar

E = TypeVar("E", bound=BaseException)

MAX_SHOWN = 200


def shown(name: str) -> str:
    """Get what an error's text shows of a name that a client has sent: it may be as long as a request."""
    return name if len(name) <= MAX_SHOWN else f"{name[:MAX_SHOWN]}…"


def without_frames(error: E) -> E:
    """Get an exception that holds nothing but its text.

    Its traceback holds the frames that it went through, and they hold what was worked with, however large. Who keeps an
    exception in one of these keeps all of that, in a cycle that only the garbage collector finds, much later.
    """
    error.__traceback__ = error.__context__ = error.__cause__ = None
    return error


class ToolpackServerError(Exception):
    """Base class of all exceptions below, except `Interrupted`."""


class StartError(ToolpackServerError):
    """The server can't start."""


class SettingsError(StartError):
    """A setting or a flag is wrong."""


class StoreInUseError(SettingsError):
    """Another server uses the store."""


class RegistrationError(StartError, ValueError):
    """A toolpack or one of its functions can't be used."""


class ToolpackUnavailable(StartError):  # noqa: N818 - no error: the server starts without it
    """Raised by a toolpack module on import if an optional package is missing; the text says how to install it."""


class NoEnvironmentError(ToolpackServerError, ValueError):
    """A function with dependencies was to run without an environment: a programmer's mistake, never an agent's."""


class CallError(ToolpackServerError):
    """Ends a call; its text goes into the envelope."""


class ToolNotFoundError(CallError):
    """The requested function is not available; those in `similar` are, and may have been meant."""

    def __init__(self, message: str, similar: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.similar = similar


class SnapshotError(CallError):
    """The environment holds something that can't be stored exactly; the text names its path and type.

    `undeclared`: naming its class in the toolpack's `state_types` would help.
    """

    def __init__(self, message: str, *, undeclared: bool = False) -> None:
        super().__init__(message)
        self.undeclared = undeclared


class ResultError(CallError):
    """The function's result has no JSON form."""


class ReadOnlyError(CallError):
    """A function promised `read_only=True`, but changed the environment.

    Attributes:
        change: The path of the first change in the toolpack's environment, and what differs there.
    """

    def __init__(self, message: str, toolpack: str = "", function: str = "", change: str = "") -> None:
        super().__init__(message)
        self.toolpack = toolpack
        self.function = function
        self.change = change


class TooLargeError(CallError):
    """A result, an environment or a request is larger than its limit, or an owner has too many sessions or bytes."""


class CrashedError(CallError):
    """A toolpack's code has ended the process that it ran in."""


class RequestError(ToolpackServerError):
    """Refuses a request; nothing has changed and nothing is recorded."""


class InvalidParamsError(RequestError):
    """The parameters of a method are wrong."""


class SessionNotFoundError(RequestError):
    """The caller has no session with this id, or the address leads to none."""

    def __init__(self) -> None:
        super().__init__(  # at an agent's address nobody can create one
            "No session has this id or address: it is unknown, closed or expired. Whoever created it can create "
            "another, with create_session."
        )


class VersionConflictError(RequestError):
    """`expected_version` is not the session's version."""

    def __init__(self, expected: int, version: int) -> None:
        super().__init__(f"The session is at version {version}, not {expected}. Read it again, then decide.")
        self.version = version


class OverloadedError(RequestError):
    """Nothing was changed; the request can be sent again, with the same call_id.

    `retry_after_seconds` says when.
    """

    def __init__(self, message: str, retry_after_seconds: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds


class ClassesChangedError(RequestError):
    """The stored state was written by other classes than those that are loaded."""


class CallIdReusedError(RequestError):
    """The call_id was used for another request, or with other parameters."""

    def __init__(self, call_id: str, why: str = "was used for another request or with other parameters") -> None:
        super().__init__(f"call_id {call_id!r} {why}: make a new one.")


class DeadlineError(RequestError):
    """The request took too long and was abandoned."""


class VersionNotRetainedError(RequestError):
    """The version is gone from the history, or has never existed.

    Attributes:
        oldest: The oldest version, after version 0, that is kept.
    """

    def __init__(self, version: int, oldest: int, newest: int) -> None:
        if version > newest:
            text = f"There is no version {version}: the session is at version {newest}."
        else:
            text = f"Version {version} is no longer kept. Version 0 is, and those from {oldest} on."
        super().__init__(text)
        self.oldest = oldest


class StateDamagedError(RequestError):
    """Stored state fails its keyed hash, or can't be read back."""


class EvaluationError(RequestError):
    """The evaluator, the solution or the loader of a task failed; that is never a reward of 0.

    Args:
        kind: The name of the class of the exception that it has raised.
        not_finite: That is because its reward is no finite number.
        raised_at: File, line and function, for the author; never part of a reply.
    """

    def __init__(self, message: str, kind: str, *, not_finite: bool = False, raised_at: str | None = None) -> None:
        super().__init__(message)
        self.raised_at = raised_at
        self.kind = kind
        self.not_finite = not_finite


def for_author(error: Exception) -> str:
    """Return the text of an error, and where the author's code raised it, if that is known."""
    raised_at = getattr(error, "raised_at", None)
    return f"{error} (raised at {raised_at})" if raised_at else str(error)


class AnsweredError(RequestError):
    """Another answer was submitted before, on the same path."""


class InternalError(ToolpackServerError):
    """A fault of the server; the log has the details, the caller gets this sentence."""

    def __init__(self) -> None:
        super().__init__("The server failed to handle this request; its log says why.")


class HttpRefusedError(ToolpackServerError):
    """Refuses a request before it reaches JSON-RPC."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class ClientError(ToolpackServerError):
    """The Python client didn't get what it asked for."""


class ReplyError(ClientError):
    """The server answered with an error.

    Attributes:
        code: Its JSON-RPC code; -32000 if the request was refused at the HTTP level.
        message: What went wrong.
        data: Further details.
    """

    def __init__(self, code: int, message: str, data: dict[str, Any]) -> None:
        detail = data.get("detail")
        super().__init__(f"{message}: {detail} ({code})" if detail else f"{message} ({code})")
        self.code, self.message, self.data = code, message, data


class NoReplyError(ClientError):
    """No answer came, however often the request was sent; the server may have handled it or not."""


class RemoteFunctionError(ClientError):
    """A function on the server raised an exception of a class that this process doesn't know."""


class EnvironmentDiffersError(ClientError):
    """An environment in this process isn't the one that the session on the server has."""


class InternalSignal(ToolpackServerError):  # noqa: N818 - a signal, not an error
    """Passes between two modules of the server, which handle it; no caller of the server sees it."""


class UnsupportedObjectError(InternalSignal):
    """One object can't be stored in a snapshot; the text says why, `undeclared` as for a `SnapshotError`."""

    def __init__(self, message: str, *, undeclared: bool = False) -> None:
        super().__init__(message)
        self.undeclared = undeclared


class PlainObjectError(InternalSignal):
    """A value that is to be shown as JSON holds a plain object, or refers to itself through one."""


class CycleError(InternalSignal):
    """An instance that hashes by value is part of a cycle."""


class RpcRefusedError(InternalSignal):
    """No JSON, no valid request, or no such method: for that JSON-RPC has errors of its own. The text is its detail."""

    def __init__(self, code: int, detail: str) -> None:
        super().__init__(detail)
        self.code = code


class CallFailedError(InternalSignal):
    """A call of a toolpack's function failed that is to be answered with a JSON-RPC error.

    Args:
        failure: A `CallFailure`, which says how.
    """

    def __init__(self, failure: Any, toolpack: str) -> None:
        super().__init__(failure.text)
        self.failure, self.toolpack = failure, toolpack


class HeavyReadError(InternalSignal):
    """A read takes so much of the processor that it must wait for its turn."""


class MissingBlobError(InternalSignal, LookupError):
    """A blob that was referred to isn't in the store, or no longer."""


class Interrupted(BaseException):
    """Raised inside a function that has passed its deadline, to end it; nobody else ever sees it."""
