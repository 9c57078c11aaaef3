"""JSON-RPC 2.0: bytes in, bytes out. Parsing, batches and dispatch.

The rule: follow the specification (jsonrpc.org/specification) in full. `jsonrpcserver` finds the method and its
parameters. It gets neither batches, which it would run concurrently, nor exceptions, whose texts it would send. Large
bodies aren't parsed on the event loop, which all clients share.
"""

import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import Any

from jsonrpcserver import Error, Success
from jsonrpcserver.codes import ERROR_INVALID_REQUEST, ERROR_METHOD_NOT_FOUND, ERROR_PARSE_ERROR
from jsonrpcserver.dispatcher import dispatch_request
from jsonrpcserver.request import Request
from jsonrpcserver.sentinels import NOID
from pydantic import ValidationError

from server import errors
from server.jsonio.strict import dumps, loads
from server.rpc.codes import Described, describe, error_reply, standard
from server.rpc.limits import QUICK_BYTES, has_more_values, is_deeper, parsed_bytes
from server.rpc.methods import Caller, Method
from server.rpc.parameters import Params
from server.settings import Settings

MAX_LISTED_PROBLEMS = 100

Compute = Callable[[Callable[[], Any], str], Awaitable[Any]]
"""Does work that takes much of the processor, for a name, without blocking the event loop."""


Reserve = Callable[[int], None]
"""Called with the number of bytes that a request takes in memory while it is answered."""


class _AnyArguments(inspect.Signature):
    """A signature that accepts anything: `Params` check faster than jsonrpcserver, with better messages."""

    def bind(self, *_args: Any, **_kwargs: Any) -> Any:
        return None


class JsonRpc:
    """Answers the requests to one URL path.

    Args:
        methods: The methods of that path.
        settings: The limits.
        compute: Parses large bodies.
    """

    def __init__(self, methods: Iterable[Method], settings: Settings, compute: Compute) -> None:
        self._methods = {method.name: _callable(method) for method in methods}
        self._settings = settings
        self._compute = compute

    async def answer(self, caller: Caller, body: bytes, reserve: Reserve | None = None) -> bytes | None:
        """Get the response to a request's body; None for notifications alone.

        Args:
            caller: Who sends it.
            body: The body.
            reserve: Called when the body is parsed. What it raises is raised here, and nothing is done.
        """
        try:
            if len(body) <= QUICK_BYTES:
                request, refused, size = self._parse(body)
            else:
                request, refused, size = await self._compute(partial(self._parse, body), caller.owner)
        except Exception as error:  # noqa: BLE001 - `describe` logs unknown exceptions
            return error_reply(None, *describe(error))
        if refused is not None:
            return error_reply(None, *refused)
        if reserve is not None:
            reserve(size)
        if isinstance(request, list):
            return await self._answer_batch(caller, request)
        return await self._answer_one(caller, request, self._settings.max_reply_bytes)

    def _parse(self, body: bytes) -> tuple[Any, Described | None, int]:
        """Get the request or the batch that a body holds, or why it is refused as a whole; and its size in memory."""
        request, refused = self._read(body)
        return request, refused, parsed_bytes(body)

    def _read(self, body: bytes) -> tuple[Any, Described | None]:
        limits = self._settings
        if has_more_values(body, limits.max_json_values):
            return None, describe(
                errors.TooLargeError(
                    f"The body has more than {limits.max_json_values} values: send less, or raise "
                    f"TOOLPACK_MAX_JSON_VALUES."
                )
            )
        try:
            request = loads(body)
        except ValueError as error:
            return None, standard(ERROR_PARSE_ERROR, f"The body is not JSON: {error}.")
        if is_deeper(body, request, limits.max_json_depth):
            detail = f"The body is nested more than {limits.max_json_depth} deep: send flatter JSON."
            return None, standard(ERROR_INVALID_REQUEST, detail)
        if request == []:
            return None, standard(ERROR_INVALID_REQUEST, "The batch is empty: send at least one request.")
        if isinstance(request, list) and len(request) > limits.max_batch:
            too_large = errors.TooLargeError(
                f"The batch has {len(request)} members; {limits.max_batch} are allowed: split it."
            )
            return None, describe(too_large)
        return request, None

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
        call = _Call(caller)
        parsed = Request(request["method"], request.get("params", []), request.get("id", NOID))
        _, dispatched = dispatch_request(self._methods, call, parsed)
        error = None
        if call.answer is not None:
            try:
                result = await call.answer
            except Exception as exception:  # noqa: BLE001 - `describe` logs unknown exceptions
                error = describe(exception)
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
        too_large = errors.TooLargeError(
            f"The answer has {len(reply)} bytes; {max_bytes} are allowed here: ask for less, or raise "
            f"TOOLPACK_MAX_REPLY_BYTES. What the request has changed is kept."
        )
        return error_reply(parsed.id, *describe(too_large))


class _Call:
    """The context object that jsonrpcserver passes to a method, which stores its coroutine here.

    It is awaited after the dispatch: jsonrpcserver's async dispatch would create a task for each call.
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
        except Exception as error:  # noqa: BLE001 - jsonrpcserver would send the exception's text
            return Error(*describe(error))
        return Success()

    begin.__signature__ = _AnyArguments()  # type: ignore[attr-defined]
    return begin


def _bound(params: type[Params], names: tuple[str, ...], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Params:
    if len(args) > len(names):
        raise errors.InvalidParamsError(
            f"There are {len(args)} parameters; at most {len(names)} are accepted: {', '.join(names)}."
        )
    try:
        return params.model_validate(dict(zip(names, args, strict=False)) if args else kwargs)
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
