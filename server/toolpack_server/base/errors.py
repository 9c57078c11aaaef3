"""The server's exceptions, in one tree.

An exception is named after the fault. Its message is one sentence: what went wrong, where, and what to do. Only
`rpc/codes.py` maps exceptions to JSON-RPC codes.

An exception's base class tells who reads its message:

    StartError      the person who starts the server; it doesn't start
    CallError       the agent, in the envelope of its call
    RequestError    the programmer or operator whose request is refused
    ClientError     the program that uses the Python client
    InternalSignal  another module of the server; no caller sees it

`Interrupted` ends a function that missed its deadline. It is a `BaseException`, so that no `except Exception` in the
function catches it. An exception that only one feature uses is defined in the feature, below one of these bases.
"""

from collections.abc import Sequence
from typing import Any, TypeVar

E = TypeVar("E", bound=BaseException)

MAX_SHOWN = 200


def shown(name: str) -> str:
    """Return a string from a client, shortened for an error message, because it can be as long as a request."""
    return name if len(name) <= MAX_SHOWN else f"{name[:MAX_SHOWN]}…"


def without_frames(error: E) -> E:
    """Remove the traceback, context and cause of an exception, and return it.

    A traceback keeps all local variables in its frames alive. If one of these variables refers to the exception, only
    the garbage collector can free them, much later.
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
    """Raised by a toolpack during its import, if the toolpack needs an optional package that is missing.

    The message says how to install the package.
    """


class NoEnvironmentError(ToolpackServerError, ValueError):
    """A function with dependencies was run without an environment. This is the program's mistake, not the agent's."""


class CallError(ToolpackServerError):
    """A call failed. The message is the `error` of its envelope."""


class ToolNotFoundError(CallError):
    """The session has no function of this name.

    Args:
        message: The message.
        similar: Names of functions that the agent might have meant.
    """

    def __init__(self, message: str, similar: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.similar = similar


class SnapshotError(CallError):
    """The environment contains an object that can't be stored exactly. The message names the object's path and type.

    Attributes:
        undeclared: Whether the object could be stored if its class were in the toolpack's `state_types`.
    """

    def __init__(self, message: str, *, undeclared: bool = False) -> None:
        super().__init__(message)
        self.undeclared = undeclared


class ResultError(CallError):
    """The function's result has no JSON form."""


class ReadOnlyError(CallError):
    """A function with `read_only=True` changed the environment.

    Attributes:
        toolpack: The toolpack.
        function: The function.
        change: The path of the first change in the toolpack's environment, and the difference there.
    """

    def __init__(self, message: str, toolpack: str = "", function: str = "", change: str = "") -> None:
        super().__init__(message)
        self.toolpack = toolpack
        self.function = function
        self.change = change


class TooLargeError(CallError):
    """A result, an environment or a request exceeds its limit, or the owner's quota of sessions or bytes is used up."""


class CrashedError(CallError):
    """A toolpack's code crashed or exited its process."""


class RequestError(ToolpackServerError):
    """A request is refused. Nothing was changed and nothing is recorded."""


class InvalidParamsError(RequestError):
    """The parameters of a method are wrong."""


class SessionNotFoundError(RequestError):
    """The caller owns no session with this id, or no session has this address."""

    def __init__(self) -> None:
        super().__init__(  # the reader might be an agent, which can't create a session
            "No session has this id or address: it is unknown, closed or expired. Its creator can create a new one "
            "with create_session."
        )


class VersionConflictError(RequestError):
    """`expected_version` isn't the session's version: another caller changed the session."""

    def __init__(self, expected: int, version: int) -> None:
        super().__init__(f"The session is at version {version}, not {expected}. Read it again, then decide.")
        self.version = version


class OverloadedError(RequestError):
    """The server can't handle the request now. Nothing was changed; the client can retry with the same call_id.

    Attributes:
        retry_after_seconds: Delay before the retry.
    """

    def __init__(self, message: str, retry_after_seconds: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds


class ClassesChangedError(RequestError):
    """The loaded classes differ from the classes that stored the state."""


class CallIdReusedError(RequestError):
    """The call_id was used for another request, or with other parameters."""

    def __init__(self, call_id: str, why: str = "was used for another request or with other parameters") -> None:
        super().__init__(f"call_id {call_id!r} {why}: create a new one.")


class DeadlineError(RequestError):
    """The request took too long and was abandoned."""


class VersionNotRetainedError(RequestError):
    """The version was removed from the history, or never existed.

    Attributes:
        oldest: The oldest retained version except version 0.
    """

    def __init__(self, version: int, oldest: int, newest: int) -> None:
        if version > newest:
            text = f"There is no version {version}: the session is at version {newest}."
        else:
            text = f"Version {version} is no longer retained. Use version 0, or one from {oldest} on."
        super().__init__(text)
        self.oldest = oldest


class StateDamagedError(RequestError):
    """Stored state fails its HMAC, or can't be read back."""


class EvaluationError(RequestError):
    """The evaluator, the solution or the loader of a task failed. Such a failure never counts as a reward of 0.

    Args:
        message: The message.
        kind: Name of the class of the exception that the task's code raised.
        not_finite: Whether the reward was NaN or infinite.
        raised_at: File, line and function, for the author. Replies never contain it.
    """

    def __init__(self, message: str, kind: str, *, not_finite: bool = False, raised_at: str | None = None) -> None:
        super().__init__(message)
        self.raised_at = raised_at
        self.kind = kind
        self.not_finite = not_finite


def for_author(error: Exception) -> str:
    """Return the message of an error, with the location in the author's code if the error has one."""
    raised_at = getattr(error, "raised_at", None)
    return f"{error} (raised at {raised_at})" if raised_at else str(error)


class AnsweredError(RequestError):
    """The session has ended with an answer or a failure, so the request is refused."""


class InternalError(ToolpackServerError):
    """A bug in the server. The details are in the log, and the caller receives only a general message."""

    def __init__(self) -> None:
        super().__init__("The server failed to handle this request; its log says why.")


class HttpRefusedError(ToolpackServerError):
    """A request is refused before the server parses it as JSON-RPC."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class ClientError(ToolpackServerError):
    """The Python client received an error, or no response."""


class ReplyError(ClientError):
    """The server responded with an error.

    Attributes:
        code: The JSON-RPC code; -32000 if the request was refused at the HTTP level.
        message: The message.
        data: Further details.
    """

    def __init__(self, code: int, message: str, data: dict[str, Any]) -> None:
        detail = data.get("detail")
        super().__init__(f"{message}: {detail} ({code})" if detail else f"{message} ({code})")
        self.code, self.message, self.data = code, message, data


class NoReplyError(ClientError):
    """No response arrived, even after all retries. It is unknown whether the server has handled the request."""


class RemoteFunctionError(ClientError):
    """A function on the server raised an exception of a class that doesn't exist in this process."""


class EnvironmentDiffersError(ClientError):
    """An environment in this process differs from the environment of the session on the server."""


class InternalSignal(ToolpackServerError):  # noqa: N818 - a signal, not an error
    """A signal between two modules of the server. No caller sees it."""


class UnsupportedObjectError(InternalSignal):
    """An object can't be stored in a snapshot. `SnapshotError` documents `undeclared`."""

    def __init__(self, message: str, *, undeclared: bool = False) -> None:
        super().__init__(message)
        self.undeclared = undeclared


class PlainObjectError(InternalSignal):
    """A value needs the slower conversion to JSON, because it contains plain objects, a cycle, or too many levels."""


class CycleError(InternalSignal):
    """An instance that a pickle must build in one step is part of a cycle, so it must be pickled in two steps."""


class RpcRefusedError(InternalSignal):
    """The request isn't JSON, isn't valid, or has an unknown method. JSON-RPC defines a code for each of these."""

    def __init__(self, code: int, detail: str) -> None:
        super().__init__(detail)
        self.code = code


class CallFailedError(InternalSignal):
    """A call failed, and the client asked for a JSON-RPC error instead of an envelope.

    Args:
        failure: The `CallFailure`.
        toolpack: The toolpack of the function.
    """

    def __init__(self, failure: Any, toolpack: str) -> None:
        super().__init__(failure.text)
        self.failure, self.toolpack = failure, toolpack


class HeavyReadError(InternalSignal):
    """A read would use so much CPU time that it must run in a thread, where reads take turns."""


class MissingBlobError(InternalSignal, LookupError):
    """A referenced blob isn't in the store."""


class Interrupted(BaseException):
    """Ends a function that missed its deadline. The server raises this inside the function and catches it outside."""
