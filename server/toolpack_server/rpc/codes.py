"""Table of error codes, and the code, message and data of each exception.

No other module contains an error number; a test checks this. The five codes of the JSON-RPC 2.0 specification (section
5.1) have the messages that it prescribes, so the explanation is in `data.detail`. The server's own codes have the
explanation as their message.
"""

from typing import Any

from toolpack_server.base import errors
from toolpack_server.base.logger import log
from toolpack_server.execution.failure import CallFailure, Failure
from toolpack_server.jsonio.strict import dumps

ERROR_PARSE_ERROR = -32700
ERROR_INVALID_REQUEST = -32600
ERROR_METHOD_NOT_FOUND = -32601
ERROR_INVALID_PARAMS = -32602
ERROR_INTERNAL_ERROR = -32603
ERROR_OF_SERVER = -32000  # for HTTP requests that are refused before JSON-RPC handles them

Described = tuple[int, str, Any]
"""Code, message and data of an error."""

STANDARD = {
    ERROR_PARSE_ERROR: "Parse error",
    ERROR_INVALID_REQUEST: "Invalid Request",
    ERROR_METHOD_NOT_FOUND: "Method not found",
    ERROR_INVALID_PARAMS: "Invalid params",
    ERROR_INTERNAL_ERROR: "Internal error",
}

CODES: dict[type[Exception], int] = {
    errors.InvalidParamsError: ERROR_INVALID_PARAMS,
    errors.InternalError: ERROR_INTERNAL_ERROR,
    errors.SessionNotFoundError: -32001,
    errors.CallError: -32002,
    errors.VersionConflictError: -32005,
    errors.OverloadedError: -32006,
    errors.TooLargeError: -32007,
    errors.ClassesChangedError: -32008,
    errors.CallIdReusedError: -32009,
    errors.DeadlineError: -32010,
    errors.VersionNotRetainedError: -32011,
    errors.StateDamagedError: -32012,
    errors.EvaluationError: -32013,
    errors.AnsweredError: -32014,
}

FAILURE_CODES = {
    Failure.RAISED: -32002,
    Failure.NOT_FOUND: -32003,
    Failure.ARGUMENTS: -32004,
    Failure.TOO_LARGE: -32007,
    Failure.DEADLINE: -32010,
    Failure.CRASHED: -32002,
    Failure.EPISODE_OVER: -32002,
    Failure.CANCELLED: -32002,
}

REFUSALS: tuple[type[Exception], ...] = (*CODES, errors.CallFailedError, errors.RpcRefusedError)
"""Exceptions that have a code. `App.invoke` raises only these."""

# The attribute of an exception that is also sent, as a field of `data` with the same name.
DATA_ATTRIBUTES = {
    errors.VersionConflictError: "version",
    errors.OverloadedError: "retry_after_seconds",
    errors.VersionNotRetainedError: "oldest",
}


def describe(error: Exception) -> Described:
    """Return the code, message and data of an exception. An exception without a code is logged as an internal error."""
    if isinstance(error, errors.CallFailedError):
        return _failed(error.failure, error.toolpack)
    if isinstance(error, errors.RpcRefusedError):
        return standard(error.code, str(error))
    code = next((CODES[kind] for kind in type(error).__mro__ if kind in CODES), None)
    if code is None:
        log.error("A request failed", exc_info=error)
        return standard(ERROR_INTERNAL_ERROR, str(errors.InternalError()))
    message = str(error).encode("utf-8", "replace").decode()
    if code in STANDARD:
        return standard(code, message)
    data: dict[str, Any] = {"type": error.kind if isinstance(error, errors.EvaluationError) else type(error).__name__}
    attribute = DATA_ATTRIBUTES.get(type(error))
    if attribute:
        data[attribute] = getattr(error, attribute)
    return code, message, data


def sentence(error: Exception) -> str:
    """Return the explanation of an exception: `data.detail` for a standard code, otherwise the message."""
    _, message, data = describe(error)
    return str(data.get("detail") or message)


def _failed(failure: CallFailure, toolpack: str) -> Described:
    """Return the code, message and data of a failed call."""
    data: dict[str, Any] = {"type": failure.kind}
    if failure.errors is not None:
        data["errors"] = failure.errors
    if failure.similar is not None:
        data["similar"] = failure.similar
    message = failure.message or failure.kind
    if failure.why is Failure.DEADLINE:  # name the toolpack, as deadline errors of other methods do
        message = f"Toolpack {toolpack!r}: {message}"
    return FAILURE_CODES[failure.why], message, data


def standard(code: int, detail: str) -> Described:
    """Return the code, message and data of an error from the specification, with an explanation."""
    return code, STANDARD[code], {"detail": detail}


def error_reply(request_id: Any, code: int, message: str, data: Any) -> bytes:
    """Return an error response as JSON (specification, section 5)."""
    error = {"code": code, "message": message, "data": data}
    return b'{"jsonrpc":"2.0","error":%b,"id":%b}' % (dumps(error), dumps(request_id))
