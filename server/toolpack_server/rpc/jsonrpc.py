"""JSON-RPC 2.0 dispatcher, which turns the bytes of a request or a batch into the bytes of the response.

It follows the whole specification (jsonrpc.org/specification). The library `jsonrpcserver` handles positional
parameters and unknown methods. Requests with named parameters, which are nearly all requests, skip the library to save
time. The result is the same. The library never gets batches, because it would run their requests concurrently. It never
gets exceptions, because it would send their messages.
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
from toolpack_server.observability.tracing import RequestOrigin, request_origin
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
from toolpack_server.rpc.method import App, Method, Prepare
from toolpack_server.rpc.parsing import Parser

with warnings.catch_warnings():
    # jsonrpcserver reads its schema with a function that only Python 3.11 and 3.12 deprecate.
    warnings.filterwarnings("ignore", r"(open|read)_text is deprecated", DeprecationWarning)
    from jsonrpcserver import Success
    from jsonrpcserver.dispatcher import dispatch_request
    from jsonrpcserver.request import Request
    from jsonrpcserver.sentinels import NOID

MAX_LISTED_PROBLEMS = 100
_NAME_ERRORS = frozenset({"missing", "extra_forbidden"})  # pydantic's error types for missing and unknown parameters

Reserve = Callable[[int], None]
"""Called with the number of bytes that a request uses in memory while it is answered."""

HandleRequest = Callable[[Any, Caller, App], Awaitable[Any]]
"""Answers a validated request of a method."""

Handler = Callable[..., Awaitable[Any]]
"""Takes the caller, positional and named parameters, and optionally a `Prepare`. Validates the parameters and starts
the method. Both the call and the awaitable can raise errors."""


def reply_too_large(size: int, max_bytes: int) -> errors.TooLargeError:
    """Return the error for a response that exceeds the limit."""
    return errors.TooLargeError(
        f"The answer has {size} bytes; {max_bytes} are allowed here. Request less, or raise TOOLPACK_MAX_BODY_BYTES; "
        "the limit of answers is four times that setting."
    )


class _AnyArguments(inspect.Signature):
    """Signature that accepts all arguments. Methods check them faster than jsonrpcserver, with better messages."""

    def bind(self, /, *_args: Any, **_kwargs: Any) -> Any:  # positional-only, because a parameter can be named `self`
        return None


class JsonRpc:
    """Dispatcher of the requests to one URL path.

    Args:
        methods: The methods of that path.
    """

    def __init__(self, methods: Iterable[type[Method]], app: App, parser: Parser) -> None:
        self._handlers: dict[str, Handler] = {}
        for method in methods:
            name = method.declared.name
            if name in self._handlers:
                raise errors.StartError(f"Two methods are named {name}: rename one of them.")
            self._handlers[name] = _create_handler(method, app)
        self._library_methods = {name: _library_method(handler) for name, handler in self._handlers.items()}
        self._app = app
        self._settings = app.settings
        self._max_reply_bytes = app.settings.max_reply_bytes
        self._parser = parser

    async def answer(self, caller: Caller, body: bytes, reserve: Reserve | None = None) -> bytes | None:
        """Return the response to the body of a request, or None if it has only notifications.

        Args:
            reserve: Called after the body is parsed. If it raises, its exception is raised and no method runs.
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

    async def invoke(self, caller: Caller, name: str, params: Mapping[str, Any], prepare: Prepare | None = None) -> Any:
        """Call a method from within the server, and return its result. JSON text in the result is parsed.

        The same parameters, permissions, log lines and limits apply as to a request from a client.

        Raises:
            RequestError: The method refused the call. Other exceptions of `codes.REFUSALS` are also possible.
        """
        handler = self._handlers.get(name)
        if handler is None:
            raise self._no_method(name)
        if self._app.sessions.tracer is not None:
            request_origin.set(RequestOrigin("jsonrpc", name, None))
        try:
            result = await handler(caller, (), params, prepare)
        except REFUSALS:
            raise
        except Exception as error:  # noqa: BLE001 - `describe` logs unknown exceptions
            describe(error)
            raise errors.InternalError from None
        # JSON text (`Fragment`) is either the whole result or every item of a list.
        first = result[0] if type(result) is list and result else result
        if type(first) is not Fragment:
            return result
        text = dumps(result)
        if len(text) > self._max_reply_bytes:
            raise reply_too_large(len(text), self._max_reply_bytes)
        return loads(text)

    def _check_batch(self, batch: list[Any]) -> None:
        """Raise an `RpcRefusedError` if a batch is empty, or a `TooLargeError` if it has too many requests."""
        if not batch:
            raise errors.RpcRefusedError(ERROR_INVALID_REQUEST, "The batch is empty: send at least one request.")
        if len(batch) > self._settings.max_batch:
            raise errors.TooLargeError(
                f"The batch has {len(batch)} requests; {self._settings.max_batch} are allowed: split it."
            )

    async def _answer_batch(self, caller: Caller, batch: list[Any]) -> bytes | None:
        """Run the requests of a batch in order, and return their responses, or None if all are notifications.

        Once the responses are too large together, each further request gets an error and doesn't run. Notifications
        still run, because they have no response.
        """
        replies: list[bytes] = []
        size = 0
        for member in batch:
            is_full = size > self._settings.max_body_bytes
            if is_full and isinstance(member, dict) and "id" in member and not _request_problem(member):
                # Small requests can have large responses, so the responses of a batch are limited together.
                too_large = f"The batch's earlier answers have {size} bytes: send this request in another batch."
                reply: bytes | None = error_reply(member["id"], *describe(errors.TooLargeError(too_large)))
            else:
                reply = await self._answer_one(caller, member, self._max_reply_bytes - size)
            if reply is not None:
                replies.append(reply)
                size += len(reply)
        return b"[%b]" % b",".join(replies) if replies else None

    async def _answer_one(self, caller: Caller, request: Any, max_bytes: int) -> bytes | None:
        """Return the response to a request, or None for a notification. Over `max_bytes`, return an error response."""
        problem = _request_problem(request)
        if problem:
            return error_reply(None, *standard(ERROR_INVALID_REQUEST, problem))
        name, params, request_id = request["method"], request.get("params"), request.get("id", NOID)
        if self._app.sessions.tracer is not None:
            request_origin.set(RequestOrigin("jsonrpc", name, request.get("id")))
        handler, args = self._handlers.get(name), ()
        try:
            if handler is None or type(params) is not dict:
                handler, args, params = self._match(request)
            result = await handler(caller, args, params)
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

    def _match(self, request: dict[str, Any]) -> tuple[Handler, tuple[Any, ...], Mapping[str, Any]]:
        """Return the handler of a request and its positional and named parameters, as jsonrpcserver finds them.

        This is the slow way, for positional parameters and unknown methods. Raise an `RpcRefusedError` if there is no
        such method.
        """
        matched: list[Any] = []
        parsed = Request(request["method"], request.get("params", []), request.get("id", NOID))
        _, dispatched = dispatch_request(self._library_methods, matched, parsed)
        if not matched:
            error = dispatched._error  # noqa: SLF001 - jsonrpcserver has no public accessor
            if error.code == ERROR_METHOD_NOT_FOUND:
                raise self._no_method(request["method"])
            raise RuntimeError(f"jsonrpcserver refused a valid request: {error.message}")
        handler, args, kwargs = matched
        return handler, args, kwargs

    def _no_method(self, name: str) -> errors.RpcRefusedError:
        detail = f"There is no method {errors.shown(name)!r} here. Methods: {', '.join(self._library_methods)}."
        return errors.RpcRefusedError(ERROR_METHOD_NOT_FOUND, detail)


def _library_method(handler: Handler) -> Callable[..., Any]:
    """Return the function that jsonrpcserver calls for a method. It only stores the handler and the parameters.

    `JsonRpc` calls the handler itself, because jsonrpcserver would send the messages of exceptions, and create a task
    for each coroutine.
    """

    def method(matched: list[Any], /, *args: Any, **kwargs: Any) -> Any:
        matched += handler, args, kwargs
        return Success()

    method.__signature__ = _AnyArguments()  # type: ignore[attr-defined]
    return method


def _create_handler(method: type[Method], app: App) -> Handler:
    """Return the handler of a method, which `JsonRpc` calls for each request.

    It also writes a log line if the method defines `log_fields`, and omits unset fields if the result type needs that.
    """
    names = method.names()
    implies_session = "session_id" in method.__class_vars__  # at an agent's address
    has_log_line = method.log_fields is not Method.log_fields
    handle: HandleRequest = _handle_and_log if has_log_line else method.handle
    omit = omission(method.declared.result)
    if omit is not None:
        handle = _with_omission(handle, omit)

    def handler(
        caller: Caller, args: tuple[Any, ...], kwargs: Mapping[str, Any], prepare: Prepare | None = None
    ) -> Awaitable[Any]:
        """Validate the parameters now, and return an awaitable that runs the method."""
        request = _validate(method, names, args, kwargs)
        if prepare is not None:
            prepare(request)
        if implies_session:
            request.__dict__["session_id"] = caller.session_id  # as if the client had sent it
        return handle(request, caller, app)

    return handler


async def _handle_and_log(request: Method, caller: Caller, app: App) -> Any:
    """Answer a request, and log the method, the owner, the session and the outcome."""
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
        logged = {"owner": caller.owner, **({"session": shown_id(session)} if session else {}), **fields}
        event(request.declared.name, **logged, duration_ms=round((time.perf_counter() - began) * 1000, 3))
    return result


def _with_omission(handle: HandleRequest, omit: Omit) -> HandleRequest:
    """Return a function that removes fields without a value from the result of `handle`."""

    async def handle_and_omit(request: Any, caller: Caller, app: App) -> Any:
        return omit(await handle(request, caller, app))

    return handle_and_omit


def _validate(method: type[Method], names: tuple[str, ...], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Method:
    """Return a method's request from its parameters.

    Raises:
        InvalidParamsError: The parameters are invalid.
    """
    if len(args) > len(names):
        raise errors.InvalidParamsError(
            f"The request has {len(args)} parameters; at most {len(names)} are accepted: {', '.join(names)}."
        )
    try:
        return method.model_validate(dict(zip(names, args, strict=False)) if args else kwargs)
    except ValidationError as error:
        if error.error_count() > MAX_LISTED_PROBLEMS:  # listing all errors could take minutes and much memory
            raise errors.InvalidParamsError(
                f"The parameters have {error.error_count()} errors, too many to list. "
                f"The parameters are: {', '.join(names) or 'none'}."
            ) from None
        problems = [
            f"{'.'.join(errors.shown(str(part)) for part in problem['loc']) or 'params'}: {problem['msg']}"
            for problem in error.errors(include_url=False)
        ]
        wrong_name = any(problem["type"] in _NAME_ERRORS and len(problem["loc"]) == 1 for problem in error.errors())
        accepted = f" The parameters are: {', '.join(names) or 'none'}." if wrong_name else ""
        raise errors.InvalidParamsError(f"{'; '.join(problems)}.{accepted}") from None


def _request_problem(request: Any) -> str | None:
    """Return the reason why a value isn't a request object (specification, section 4), or None if it is one."""
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
