"""Every error that this server raises on purpose, in one tree.

The rule: an error is named for what went wrong, its text is one sentence that says what, where and what to do, and it
knows nothing of JSON-RPC; `jsonrpc.py` alone maps these classes to codes.

    ToolpackServerError
    ├── StartError                  the server can't start
    │   ├── SettingsError           a setting or a flag is wrong
    │   ├── RegistrationError       a toolpack or one of its functions can't be used
    │   └── ToolpackUnavailable     a toolpack module needs a package that isn't installed
    ├── NoEnvironmentError          a function in this process needs an environment, and none was given
    ├── CallError                   goes into the envelope of a call: the agent can react
    │   ├── ToolNotFoundError       no such function in this session
    │   ├── SnapshotError           the environment holds what can't be kept exactly
    │   ├── ResultError             the result has no JSON form
    │   └── TooLargeError           a result, an environment or a request is over its limit
    ├── RequestError                refuses the request: a programmer or an operator can mend it
    │   ├── InvalidParamsError      wrong parameters, unknown packs, bad options, bad pointer
    │   ├── SessionNotFoundError    unknown, closed, expired or another's
    │   ├── VersionConflictError    `expected_version` is not the session's version
    │   ├── OverloadedError         too much waits, or the session's lease was lost; nothing has changed
    │   ├── ClassesChangedError     the state was written by other classes than those loaded
    │   ├── CallIdReusedError       the call_id belongs to another call
    │   ├── DeadlineError           the request itself took too long
    │   ├── VersionNotRetainedError the version is gone from the history
    │   └── StateDamagedError       stored state fails its keyed hash, or can't be read back
    └── ClientError                 what the Python client raises
        ├── ReplyError              the server answered with an error: code, message, data
        ├── NoReplyError            no answer came, however often it was asked
        ├── RemoteFunctionError     a function on the server raised what this process has no exception for
        └── EnvironmentDiffersError an environment here isn't the one on the server
"""

from typing import Any


class ToolpackServerError(Exception):
    """Base class of all errors below."""


class StartError(ToolpackServerError):
    """The server can't start."""


class SettingsError(StartError):
    """A setting or a flag is wrong."""


class RegistrationError(StartError, ValueError):
    """A toolpack or one of its functions can't be used."""


class ToolpackUnavailable(StartError):  # noqa: N818 - no error: the server starts without it
    """Raised by a toolpack module on import where an optional package is missing; the text says how to get it."""


class NoEnvironmentError(ToolpackServerError, ValueError):
    """A function with dependencies was to run on no environment: a programmer's mistake, never told to an agent."""


class CallError(ToolpackServerError):
    """Ends a call; its text goes into the envelope."""


class ToolNotFoundError(CallError):
    """The requested function is not available."""


class SnapshotError(CallError):
    """The environment holds something that can't be kept exactly.

    The text names the path to it and its type.
    """


class ResultError(CallError):
    """The function's result has no JSON form."""


class TooLargeError(CallError):
    """A result, an environment or a request is larger than its limit."""


class RequestError(ToolpackServerError):
    """Refuses a request; nothing has changed and nothing is recorded."""


class InvalidParamsError(RequestError):
    """The parameters of a method are wrong."""


class SessionNotFoundError(RequestError):
    """No session of the caller's has this id."""

    def __init__(self) -> None:
        super().__init__("No session has this id: it is unknown, closed or expired. Create one with create_session.")


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
    """The call_id was used for another function or other arguments."""


class DeadlineError(RequestError):
    """The request took too long, and was given up; nothing has changed."""


class VersionNotRetainedError(RequestError):
    """The version is gone from the history; `oldest` is the oldest one, after version 0, that is kept."""

    def __init__(self, version: int, oldest: int) -> None:
        super().__init__(f"Version {version} is no longer kept. Version 0 is, and those from {oldest} on.")
        self.oldest = oldest


class StateDamagedError(RequestError):
    """Stored state fails its keyed hash, or can't be read back."""


class ClientError(ToolpackServerError):
    """The Python client didn't get what it asked for."""


class ReplyError(ClientError):
    """The server answered with an error.

    Attributes:
        code: Its JSON-RPC code; -32000 for what HTTP refused.
        message: What went wrong.
        data: What the server says beyond that.
    """

    def __init__(self, code: int, message: str, data: dict[str, Any]) -> None:
        detail = data.get("detail")
        super().__init__(f"{message}: {detail} ({code})" if detail else f"{message} ({code})")
        self.code = code
        self.message = message
        self.data = data


class NoReplyError(ClientError):
    """No answer came, however often it was asked; the server may have done what was asked for or not."""


class RemoteFunctionError(ClientError):
    """A function on the server raised an exception of a class that this process doesn't know."""


class EnvironmentDiffersError(ClientError):
    """An environment in this process isn't the one that the session on the server has."""
