"""JSON-RPC 2.0: bytes in, bytes out. Batches and dispatch.

Follow the specification (jsonrpc.org/specification) in full. `jsonrpcserver` finds the method and its
parameters, but not where they are named and the method is there: nearly all requests are so, and the answers are the
same without it. It gets neither batches, which it would run concurrently, nor exceptions, whose texts it would send.
"""

import inspect
import time
import warnings
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from pydantic import ValidationError

from toolpack_server.base import errors
from toolpack_server.jsonio.strict import Fragment, dumps, loads
from toolpack_server.observability.log import event, shown_id
from toolpack_server.observability.tracing import AskedBy, asked_by
from toolpack_server.protocol.omission import Omit, omission
from toolpack_server.rpc.caller import Caller
from toolpack_server.rpc.codes import (
    ERROR_INVALID_REQUEST,
    ERROR_METHOD_NOT_FOUND,
    REFUSALS,
    describe,
    error_reply,
    standard,
)
from toolpack_server.rpc.method import App, Method
from toolpack_server.rpc.parsing import Parser

with warnings.catch_warnings():
    # Python 3.11 and 3.12 deprecate the function with which jsonrpcserver reads its schema; later versions don't.
    warnings.filterwarnings("ignore", r"(open|read)_text is deprecated", DeprecationWarning)
    from jsonrpcserver import Success
    from jsonrpcserver.dispatcher import dispatch_request
    from jsonrpcserver.request import Request
    from jsonrpcserver.sentinels import NOID

MAX_LISTED_PROBLEMS = 100
_MISNAMED = frozenset({"missing", "extra_forbidden"})  # what pydantic calls a parameter that isn't there, or unknown

Reserve = Callable[[int], None]
"""Called with the number of bytes that a request takes in memory while it is answered."""

Handle = Callable[[Any, Caller, App], Awaitable[Any]]
"""Answers a method's request."""

Begin = Callable[[Caller, tuple[Any, ...], Mapping[str, Any]], Awaitable[Any]]
"""Begins a method with its parameters, by position or by name; await the result. Both may raise."""


def reply_too_large(size: int, max_bytes: int) -> errors.TooLargeError:
    return errors.TooLargeError(
        f"The answer has {size} bytes; {max_bytes} are allowed here: ask for less, or raise TOOLPACK_MAX_BODY_BYTES: "
        "an answer may have four times as much."
    )


class _AnyArguments(inspect.Signature):
    """A signature that accepts anything: methods check them faster than jsonrpcserver, with better messages."""

    def bind(self, /, *_args: Any, **_kwargs: Any) -> Any:  # a parameter may be called `self`
        return None


class JsonRpc:
    """Answers the requests to one URL path."""

    def __init__(self, methods: Iterable[type[Method]], app: App, parser: Parser) -> None:
        self._begin: dict[str, Begin] = {}
        for method in methods:
            name = method.declared.name
            if name in self._begin:
                raise errors.StartError(f"There are two methods {name}: rename one of them.")
            self._begin[name] = _beginning(method, app)
        self._found = {name: _found(begin) for name, begin in self._begin.items()}
        self._app = app
        self._settings = app.settings
        self._max_reply_bytes = app.settings.max_reply_bytes
        self._parser = parser

    async def answer(self, caller: Caller, body: bytes, reserve: Reserve | None = None) -> bytes | None:
        """Get the response to a request's body; None for notifications alone.

        Args:
            reserve: Called when the body is parsed. What it raises is raised here, and nothing is done.
        """
        try:
            request, size = await self._parser.parse(body, caller.owner)
            if isinstance(request, list):
                self._check_batch(request)
        except Exception as error:  # noqa: BLE001 - `describe` logs unknown exceptions
            return error_reply(None, *describe(error))
        if reserve is not None:
            reserve(size)
        if isinstance(request, list):
            return await self._answer_batch(caller, request)
        return await self._answer_one(caller, request, self._max_reply_bytes)

    async def invoke(self, caller: Caller, name: str, params: Mapping[str, Any]) -> Any:
        """Call a method from within the server, and return its result; what is JSON text in it is parsed.

        Parameters, rights, log lines and limits are those of a request.

        Raises:
            RequestError: It was refused; or another one of `codes.REFUSALS`.
        """
        begin = self._begin.get(name)
        if begin is None:
            raise self._no_method(name)
        if self._app.sessions.tracer is not None:
            asked_by.set(AskedBy("jsonrpc", name, None))
        try:
            result = await begin(caller, (), params)
        except REFUSALS:
            raise
        except Exception as error:  # noqa: BLE001 - `describe` logs unknown exceptions
            describe(error)
            raise errors.InternalError from None
        first = result[0] if type(result) is list and result else result
        if type(first) is not Fragment:
            return result
        text = dumps(result)
        if len(text) > self._max_reply_bytes:
            raise reply_too_large(len(text), self._max_reply_bytes)
        return loads(text)

    def _check_batch(self, batch: list[Any]) -> None:
        if not batch:
            raise errors.RpcRefusedError(ERROR_INVALID_REQUEST, "The batch is empty: send at least one request.")
        if len(batch) > self._settings.max_batch:
            raise errors.TooLargeError(
                f"The batch has {len(batch)} members; {self._settings.max_batch} are allowed: split it."
            )

    async def _answer_batch(self, caller: Caller, batch: list[Any]) -> bytes | None:
        replies: list[bytes] = []
        size = 0
        for member in batch:
            full = size > self._settings.max_body_bytes
            if full and isinstance(member, dict) and "id" in member and not _request_problem(member):
                # Small requests may have large answers: a batch of them must not fill the memory.
                too_large = f"The answers before this one have {size} bytes: send it in another batch."
                reply: bytes | None = error_reply(member["id"], *describe(errors.TooLargeError(too_large)))
            else:
                reply = await self._answer_one(caller, member, self._max_reply_bytes - size)
            if reply is not None:
                replies.append(reply)
                size += len(reply)
        return b"[%b]" % b",".join(replies) if replies else None

    async def _answer_one(self, caller: Caller, request: Any, max_bytes: int) -> bytes | None:
        """Get the response to a request, of at most so many bytes; None for a notification."""
        problem = _request_problem(request)
        if problem:
            return error_reply(None, *standard(ERROR_INVALID_REQUEST, problem))
        name, params, request_id = request["method"], request.get("params"), request.get("id", NOID)
        if self._app.sessions.tracer is not None:
            asked_by.set(AskedBy("jsonrpc", name, request.get("id")))
        begin, args = self._begin.get(name), ()
        try:
            if begin is None or type(params) is not dict:
                begin, args, params = self._find(request)
            result = await begin(caller, args, params)
            if request_id is NOID:  # a notification
                return None
            reply = b'{"jsonrpc":"2.0","result":%b,"id":%b}' % (dumps(result), dumps(request_id))
        except Exception as exception:  # noqa: BLE001 - `describe` logs unknown exceptions
            error = describe(exception)
            errors.without_frames(exception)
            if request_id is NOID:
                return None
            reply = error_reply(request_id, *error)
        if len(reply) <= max_bytes:
            return reply
        return error_reply(request_id, *describe(reply_too_large(len(reply), max_bytes)))

    def _find(self, request: dict[str, Any]) -> tuple[Begin, tuple[Any, ...], Mapping[str, Any]]:
        """Have jsonrpcserver find the method of a request, and what is by position and by name in its parameters."""
        found: list[Any] = []
        parsed = Request(request["method"], request.get("params", []), request.get("id", NOID))
        _, dispatched = dispatch_request(self._found, found, parsed)
        if not found:
            refused = dispatched._error  # noqa: SLF001 - jsonrpcserver has no public accessor
            if refused.code == ERROR_METHOD_NOT_FOUND:
                raise self._no_method(request["method"])
            raise RuntimeError(f"jsonrpcserver has refused what any method takes: {refused.message}")
        begin, args, kwargs = found
        return begin, args, kwargs

    def _no_method(self, name: str) -> errors.RpcRefusedError:
        detail = f"There is no method {errors.shown(name)!r} here: {', '.join(self._found)}."
        return errors.RpcRefusedError(ERROR_METHOD_NOT_FOUND, detail)


def _found(begin: Begin) -> Callable[..., Any]:
    """Get what jsonrpcserver takes for a method: it only notes that it was found, and with what.

    To begin is left to us: jsonrpcserver would send the texts of exceptions, and create a task for each coroutine.
    """

    def method(found: list[Any], /, *args: Any, **kwargs: Any) -> Any:
        found += begin, args, kwargs
        return Success()

    method.__signature__ = _AnyArguments()  # type: ignore[attr-defined]
    return method


def _beginning(method: type[Method], app: App) -> Begin:
    names = method.names()
    implied = "session_id" in method.__class_vars__  # at an agent's address
    has_log_line = method.log_fields is not Method.log_fields
    handle: Handle = _handle_and_log if has_log_line else method.handle
    omit = omission(method.declared.result)
    if omit is not None:
        handle = _omitting(handle, omit)

    def begin(caller: Caller, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Awaitable[Any]:
        request = _bound(method, names, args, kwargs)
        if implied:
            request.__dict__["session_id"] = caller.session_id  # as if it had been sent
        return handle(request, caller, app)

    return begin


async def _handle_and_log(request: Method, caller: Caller, app: App) -> Any:
    """Answer a request, and log who did what to which session, and how it ended."""
    began = time.perf_counter()
    fields: dict[str, Any] = {"outcome": "refused"}
    try:
        result = await request.handle(caller, app)
        fields = {"outcome": "ok", **request.log_fields(result)}
    except errors.ToolpackServerError as error:
        fields["error"] = type(error).__name__
        raise
    finally:
        session = getattr(request, "session_id", None)
        about = {"owner": caller.owner, **({"session": shown_id(session)} if session else {}), **fields}
        event(request.declared.name, **about, duration_ms=round((time.perf_counter() - began) * 1000, 3))
    return result


def _omitting(handle: Handle, omit: Omit) -> Handle:
    async def omitting(request: Any, caller: Caller, app: App) -> Any:
        return omit(await handle(request, caller, app))

    return omitting


def _bound(method: type[Method], names: tuple[str, ...], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Method:
    if len(args) > len(names):
        raise errors.InvalidParamsError(
            f"There are {len(args)} parameters; at most {len(names)} are accepted: {', '.join(names)}."
        )
    try:
        return method.model_validate(dict(zip(names, args, strict=False)) if args else kwargs)
    except ValidationError as error:
        if error.error_count() > MAX_LISTED_PROBLEMS:  # a list of all could take minutes, and much memory
            raise errors.InvalidParamsError(
                f"{error.error_count()} things are wrong with the parameters, too many to list. "
                f"The parameters are: {', '.join(names) or 'none'}."
            ) from None
        problems = [
            f"{'.'.join(errors.shown(str(part)) for part in problem['loc']) or 'params'}: {problem['msg']}"
            for problem in error.errors(include_url=False)
        ]
        misnamed = any(problem["type"] in _MISNAMED and len(problem["loc"]) == 1 for problem in error.errors())
        accepted = f" The parameters are: {', '.join(names) or 'none'}." if misnamed else ""
        raise errors.InvalidParamsError(f"{'; '.join(problems)}.{accepted}") from None


def _request_problem(request: Any) -> str | None:
    """Say why this isn't a request object (specification, section 4); None if it is one."""
    if not isinstance(request, dict):
        return "A request must be an object."
    if request.get("jsonrpc") != "2.0":
        return 'A request must have "jsonrpc": "2.0".'
    if not isinstance(request.get("method"), str):
        return 'A request must have a "method", a string.'
    if not isinstance(request.get("params", {}), dict | list):
        return 'The "params" of a request must be an object or an array.'
    request_id = request.get("id")
    if not (request_id is None or (isinstance(request_id, str | int | float) and not isinstance(request_id, bool))):
        return 'The "id" of a request must be a string, a number or null.'
    return None
