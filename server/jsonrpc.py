"""JSON-RPC 2.0: bytes in, bytes out. Parsing, batches, dispatch, and the one table of error codes.

The rule: the specification (jsonrpc.org/specification) holds in full, and every request gets an answer it allows,
whatever it holds. `jsonrpcserver` finds and calls the methods; what it does otherwise than the specification or than
safety asks, it isn't asked to do: a batch is split here, in order, and no exception reaches it.
"""

import inspect
import logging
import re
import warnings
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from pydantic import ValidationError

from server import errors
from server.execution import Failure, Outcome
from server.jobs import InternalError
from server.methods import Caller, CallFailedError, Method
from server.parameters import Params
from server.settings import Settings
from server.strict_json import dumps, loads

with warnings.catch_warnings():
    # jsonrpcserver reads its schema by a function that Python 3.11 and 3.12 call deprecated, and later ones don't.
    warnings.filterwarnings("ignore", r"(open|read)_text is deprecated", DeprecationWarning)
    from jsonrpcserver import Error, Success
    from jsonrpcserver.codes import (
        ERROR_INTERNAL_ERROR,
        ERROR_INVALID_PARAMS,
        ERROR_INVALID_REQUEST,
        ERROR_METHOD_NOT_FOUND,
        ERROR_PARSE_ERROR,
    )
    from jsonrpcserver.dispatcher import dispatch_request
    from jsonrpcserver.request import Request
    from jsonrpcserver.sentinels import NOID

log = logging.getLogger("toolpack_server")

# The specification's own, with its own messages; ours come with a sentence instead.
STANDARD = {
    ERROR_PARSE_ERROR: "Parse error",
    ERROR_INVALID_REQUEST: "Invalid Request",
    ERROR_METHOD_NOT_FOUND: "Method not found",
    ERROR_INVALID_PARAMS: "Invalid params",
    ERROR_INTERNAL_ERROR: "Internal error",
}

CODES: dict[type[Exception], int] = {
    errors.InvalidParamsError: ERROR_INVALID_PARAMS,
    InternalError: ERROR_INTERNAL_ERROR,
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
}

FAILURE_CODES = {
    Failure.RAISED: -32002,
    Failure.NOT_FOUND: -32003,
    Failure.ARGUMENTS: -32004,
    Failure.TOO_LARGE: -32007,
    Failure.DEADLINE: -32010,
}

# What an error tells beyond its sentence: attribute of the exception, member of `data`.
DETAILS = {
    errors.VersionConflictError: "version",
    errors.OverloadedError: "retry_after_seconds",
    errors.VersionNotRetainedError: "oldest",
}


MOST_PROBLEMS = 100


class _AnyArguments(inspect.Signature):
    """A signature that jsonrpcserver may bind anything to: `Params` say better, and faster, what is wrong."""

    def bind(self, *_args: Any, **_kwargs: Any) -> Any:
        return None


class JsonRpc:
    """Answers the requests of one address.

    Args:
        methods: The methods that the address has.
        settings: Limits.
    """

    def __init__(self, methods: Iterable[Method], settings: Settings) -> None:
        self._methods = {method.name: _callable(method) for method in methods}
        self._settings = settings

    async def answer(self, caller: Caller, body: bytes) -> bytes | None:
        """Get the reply to a request's body; None where there is nothing to say."""
        if _has_more_values(body, self._settings.max_json_values):
            too_large = errors.TooLargeError(
                f"The body has more than {self._settings.max_json_values} values: send less, or raise "
                f"TOOLPACK_MAX_JSON_VALUES."
            )
            return _error(None, *described(too_large))
        try:
            request = loads(body)
        except ValueError as error:
            return _error(None, *_standard(ERROR_PARSE_ERROR, f"The body is no JSON: {error}."))
        if _is_deeper(body, request, self._settings.max_json_depth):
            detail = f"The body is nested more than {self._settings.max_json_depth} deep: send flatter JSON."
            return _error(None, *_standard(ERROR_INVALID_REQUEST, detail))
        if not isinstance(request, list):
            return await self._answer_one(caller, request)
        if not request:
            return _error(None, *_standard(ERROR_INVALID_REQUEST, "The batch is empty: send at least one request."))
        if len(request) > self._settings.max_batch:
            too_large = errors.TooLargeError(
                f"The batch has {len(request)} members; {self._settings.max_batch} are allowed: send several."
            )
            return _error(None, *described(too_large))
        return await self._answer_batch(caller, request)

    async def _answer_batch(self, caller: Caller, batch: list[Any]) -> bytes | None:
        replies: list[bytes] = []
        size, most = 0, self._settings.max_body_bytes
        for member in batch:
            if size > most and isinstance(member, dict) and "id" in member and not _request_problem(member):
                # What one small request asks for may be large; a thousand of them must not fill the memory.
                full = errors.TooLargeError(f"The answers before this one have {size} bytes: send it in another batch.")
                reply: bytes | None = _error(member["id"], *described(full))
            else:
                reply = await self._answer_one(caller, member)
            if reply is not None:
                replies.append(reply)
                size += len(reply)
        return b"[%b]" % b",".join(replies) if replies else None

    async def _answer_one(self, caller: Caller, request: Any) -> bytes | None:
        problem = _request_problem(request)
        if problem:
            return _error(None, *_standard(ERROR_INVALID_REQUEST, problem))
        call = _Call(caller)
        asked = Request(request["method"], request.get("params", []), request.get("id", NOID))
        _, found = dispatch_request(self._methods, call, asked)
        error = None
        if call.answer is not None:
            try:
                result = await call.answer
            except Exception as exception:  # noqa: BLE001 - `described` logs what it doesn't know
                error = described(exception)
        else:
            refused = found._error  # noqa: SLF001 - jsonrpcserver's result type has no other way in
            error = refused.code, refused.message, refused.data
            if refused.code == ERROR_METHOD_NOT_FOUND:
                detail = f"There is no method {request['method']!r} here: {', '.join(self._methods)}."
                error = _standard(ERROR_METHOD_NOT_FOUND, detail)
        if asked.id is NOID:  # a notification
            return None
        if error is None:
            return b'{"jsonrpc":"2.0","result":%b,"id":%b}' % (dumps(result), dumps(asked.id))
        return _error(asked.id, *error)


class _Call:
    """A call on its way through jsonrpcserver, which finds the method and its parameters.

    It is awaited afterwards, outside: jsonrpcserver's own way to await costs a task for each call.
    """

    __slots__ = ("answer", "caller")

    def __init__(self, caller: Caller) -> None:
        self.caller = caller
        self.answer: Awaitable[Any] | None = None


def _callable(method: Method) -> Callable[..., Any]:
    names = tuple(sorted(method.params.model_fields, key=lambda name: name != "session_id"))

    def begin(call: _Call, /, *args: Any, **kwargs: Any) -> Any:
        try:
            call.answer = method.answer(call.caller, _bound(method.params, names, args, kwargs))
        except Exception as error:  # noqa: BLE001 - jsonrpcserver would send its text out
            return Error(*described(error))
        return Success()

    begin.__signature__ = _AnyArguments()  # type: ignore[attr-defined]
    return begin


def _bound(params: type[Params], names: tuple[str, ...], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Params:
    if len(args) > len(names):
        raise errors.InvalidParamsError(
            f"There are {len(args)} parameters; at most {len(names)} are taken: {', '.join(names)}."
        )
    try:
        return params.model_validate(dict(zip(names, args, strict=False)) if args else kwargs)
    except ValidationError as error:
        if error.error_count() > MOST_PROBLEMS:  # to tell them all would take minutes, and the reply much memory
            raise errors.InvalidParamsError(
                f"{error.error_count()} things are wrong with the parameters, too many to be told. "
                f"The parameters are: {', '.join(names) or 'none'}."
            ) from None
        problems = [f"{'.'.join(map(str, e['loc'])) or 'params'}: {e['msg']}" for e in error.errors(include_url=False)]
        taken = ", ".join(names) or "none"
        raise errors.InvalidParamsError(f"{'; '.join(problems)}. The parameters are: {taken}.") from None


def _request_problem(request: Any) -> str | None:
    """Say why this is no request object, if it is none (specification, section 4)."""
    if not isinstance(request, dict):
        return "A request is an object."
    if request.get("jsonrpc") != "2.0":
        return 'A request has "jsonrpc": "2.0".'
    if not isinstance(request.get("method"), str):
        return 'A request has a "method", which is a string.'
    if not isinstance(request.get("params", {}), dict | list):
        return 'The "params" of a request are an object or an array.'
    request_id = request.get("id")
    if not (request_id is None or (isinstance(request_id, str | int | float) and not isinstance(request_id, bool))):
        return 'The "id" of a request is a string, a number or null.'
    return None


def described(error: Exception) -> tuple[int, str, Any]:
    """Get the code, message and data that tell of an exception."""
    if isinstance(error, CallFailedError):
        return _failed(error.outcome)
    code = next((CODES[kind] for kind in type(error).__mro__ if kind in CODES), None)
    if code is None:
        log.error("A request failed", exc_info=error)
        return _standard(ERROR_INTERNAL_ERROR, str(InternalError()))
    message = str(error).encode("utf-8", "replace").decode()
    if code in STANDARD:
        return _standard(code, message)
    data: dict[str, Any] = {"type": type(error).__name__}
    detail = DETAILS.get(type(error))
    if detail:
        data[detail] = getattr(error, detail)
    return code, message, data


def _failed(outcome: Outcome) -> tuple[int, str, Any]:
    kind, _, message = (outcome.error or "").partition(": ")
    data: dict[str, Any] = {"type": kind}
    if outcome.errors is not None:
        data["errors"] = outcome.errors
    return FAILURE_CODES[outcome.failure or Failure.RAISED], message or kind, data


def _standard(code: int, detail: str) -> tuple[int, str, Any]:
    return code, STANDARD[code], {"detail": detail}


def _error(request_id: Any, code: int, message: str, data: Any) -> bytes:
    error = {"code": code, "message": message, "data": data}
    return b'{"jsonrpc":"2.0","error":%b,"id":%b}' % (dumps(error), dumps(request_id))


# A string, also one that never ends: then it is no JSON, but must not be searched again from each of its quotes.
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)', re.DOTALL)


def _has_more_values(body: bytes, limit: int) -> bool:
    """Count values before anything is built of them: a small value takes up to fifty times its text in memory."""
    if sum(map(body.count, (b",", b"[", b"{"))) <= limit:
        return False
    return sum(map(_STRING.sub(b"", body).count, (b",", b"[", b"{"))) > limit


def _is_deeper(body: bytes, value: Any, limit: int) -> bool:
    # Most bodies have fewer brackets than levels are allowed.
    if body.count(b"[") + body.count(b"{") <= limit:
        return False
    level = [value]
    for _ in range(limit + 1):
        level = [
            part
            for outer in level
            if isinstance(outer, dict | list)
            for part in (outer.values() if isinstance(outer, dict) else outer)
        ]
        if not level:
            return False
    return True
