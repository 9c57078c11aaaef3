"""JSON-RPC 2.0: bytes in, bytes out. Batches and dispatch.

The rule: follow the specification (jsonrpc.org/specification) in full. `jsonrpcserver` finds the method and its
parameters. It gets neither batches, which it would run concurrently, nor exceptions, whose texts it would send.
"""

import inspect
import warnings
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from pydantic import ValidationError

from server import errors
from server.errors import StartError
from server.jsonio.strict import dumps
from server.observability.tracing import AskedBy, asked_by
from server.rpc.caller import Caller
from server.rpc.codes import ERROR_INVALID_REQUEST, ERROR_METHOD_NOT_FOUND, Described, describe, error_reply, standard
from server.rpc.events import handle_and_log
from server.rpc.method import App, Method
from server.rpc.parsing import Parser

with warnings.catch_warnings():
    # Python 3.11 and 3.12 deprecate the function with which jsonrpcserver reads its schema; later versions don't.
    warnings.filterwarnings("ignore", r"(open|read)_text is deprecated", DeprecationWarning)
    from jsonrpcserver import Error, Success
    from jsonrpcserver.dispatcher import dispatch_request
    from jsonrpcserver.request import Request
    from jsonrpcserver.sentinels import NOID

MAX_LISTED_PROBLEMS = 100

Reserve = Callable[[int], None]
"""Called with the number of bytes that a request takes in memory while it is answered."""


def reply_too_large(size: int, max_bytes: int) -> errors.TooLargeError:
    return errors.TooLargeError(
        f"The answer has {size} bytes; {max_bytes} are allowed here: ask for less, or raise "
        f"TOOLPACK_MAX_REPLY_BYTES. What the request has changed is kept."
    )


class _AnyArguments(inspect.Signature):
    """A signature that accepts anything: methods check them faster than jsonrpcserver, with better messages."""

    def bind(self, *_args: Any, **_kwargs: Any) -> Any:
        return None


class JsonRpc:
    """Answers the requests to one URL path."""

    def __init__(self, methods: Iterable[type[Method]], app: App, parser: Parser) -> None:
        self._methods: dict[str, Callable[..., Any]] = {}
        for method in methods:
            name = method.declared.name
            if name in self._methods:
                raise StartError(f"There are two methods {name}: rename one of them.")
            self._methods[name] = _callable(method, app)
        self._app = app
        self._settings = app.settings
        self._parser = parser

    async def answer(self, caller: Caller, body: bytes, reserve: Reserve | None = None) -> bytes | None:
        """Get the response to a request's body; None for notifications alone.

        Args:
            reserve: Called when the body is parsed. What it raises is raised here, and nothing is done.
        """
        request, refused, size = await self._parser.parse(body, caller.owner)
        refused = refused or self._batch_problem(request)
        if refused is not None:
            return error_reply(None, *refused)
        if reserve is not None:
            reserve(size)
        if isinstance(request, list):
            return await self._answer_batch(caller, request)
        return await self._answer_one(caller, request, self._settings.max_reply_bytes)

    def _batch_problem(self, request: Any) -> Described | None:
        if request == []:
            return standard(ERROR_INVALID_REQUEST, "The batch is empty: send at least one request.")
        most = self._settings.max_batch
        if isinstance(request, list) and len(request) > most:
            return describe(
                errors.TooLargeError(f"The batch has {len(request)} members; {most} are allowed: split it.")
            )
        return None

    async def _answer_batch(self, caller: Caller, batch: list[Any]) -> bytes | None:
        replies: list[bytes] = []
        size, settings = 0, self._settings
        for member in batch:
            full = size > min(settings.max_body_bytes, settings.max_reply_bytes)
            if full and isinstance(member, dict) and "id" in member and not _request_problem(member):
                # Small requests may have large answers: a batch of them must not fill the memory.
                too_large = f"The answers before this one have {size} bytes: send it in another batch."
                reply: bytes | None = error_reply(member["id"], *describe(errors.TooLargeError(too_large)))
            else:
                reply = await self._answer_one(caller, member, settings.max_reply_bytes - size)
            if reply is not None:
                replies.append(reply)
                size += len(reply)
        return b"[%b]" % b",".join(replies) if replies else None

    async def _answer_one(self, caller: Caller, request: Any, max_bytes: int) -> bytes | None:
        """Get the response to a request, of at most so many bytes; None for a notification."""
        problem = _request_problem(request)
        if problem:
            return error_reply(None, *standard(ERROR_INVALID_REQUEST, problem))
        call = _Dispatched(caller)
        parsed = Request(request["method"], request.get("params", []), request.get("id", NOID))
        if self._app.tracer is not None:
            asked_by.set(AskedBy("jsonrpc", parsed.method, request.get("id")))
        _, dispatched = dispatch_request(self._methods, call, parsed)
        error = None
        if call.answer is not None:
            try:
                result = await call.answer
            except Exception as exception:  # noqa: BLE001 - `describe` logs unknown exceptions
                error = describe(exception)
                errors.without_frames(exception)
        else:
            refused = dispatched._error  # noqa: SLF001 - jsonrpcserver has no public accessor
            error = refused.code, refused.message, refused.data
            if refused.code == ERROR_METHOD_NOT_FOUND:
                detail = f"There is no method {errors.shown(request['method'])!r} here: {', '.join(self._methods)}."
                error = standard(ERROR_METHOD_NOT_FOUND, detail)
        if parsed.id is NOID:  # a notification
            return None
        if error is not None:
            reply = error_reply(parsed.id, *error)
        else:
            reply = b'{"jsonrpc":"2.0","result":%b,"id":%b}' % (dumps(result), dumps(parsed.id))
        if len(reply) <= max_bytes:
            return reply
        return error_reply(parsed.id, *describe(reply_too_large(len(reply), max_bytes)))


class _Dispatched:
    """The context object that jsonrpcserver passes to a method, which stores its coroutine here.

    It is awaited after the dispatch: jsonrpcserver's async dispatch would create a task for each call.
    """

    __slots__ = ("answer", "caller")

    def __init__(self, caller: Caller) -> None:
        self.caller = caller
        self.answer: Awaitable[Any] | None = None


def _callable(method: type[Method], app: App) -> Callable[..., Any]:
    names = method.names()
    implied = "session_id" in method.__class_vars__  # at an agent's address
    has_log_line = method.log_fields is not Method.log_fields
    handle = handle_and_log if has_log_line else method.handle

    def begin(call: _Dispatched, /, *args: Any, **kwargs: Any) -> Any:
        try:
            request = _bound(method, names, args, kwargs)
            if implied:
                request.__dict__["session_id"] = call.caller.session_id  # as if it had been sent
            call.answer = handle(request, call.caller, app)
        except Exception as error:  # noqa: BLE001 - jsonrpcserver would send the exception's text
            return Error(*describe(error))
        return Success()

    begin.__signature__ = _AnyArguments()  # type: ignore[attr-defined]
    return begin


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
        accepted = ", ".join(names) or "none"
        raise errors.InvalidParamsError(f"{'; '.join(problems)}. The parameters are: {accepted}.") from None


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
