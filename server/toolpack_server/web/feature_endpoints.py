"""Base classes for the HTTP and WebSocket endpoints of features.

Before the feature gets a request, these classes check its token, its sizes, the connection limits and the server's
readiness, just as `/rpc` does. The feature answers the request, and defines the form of a refusal in its protocol.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from http import HTTPStatus
from typing import Any, TypeVar
from urllib.parse import parse_qsl

from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from toolpack_server.base.errors import (
    DeadlineError,
    HttpRefusedError,
    OverloadedError,
    ReplyError,
    SessionNotFoundError,
    TooLargeError,
)
from toolpack_server.base.fixed_limits import FixedLimits
from toolpack_server.jsonio.strict import loads
from toolpack_server.observability.request_ids import request_id
from toolpack_server.rpc.caller import Caller
from toolpack_server.rpc.codes import (
    CODES,
    ERROR_INVALID_PARAMS,
    ERROR_INVALID_REQUEST,
    ERROR_METHOD_NOT_FOUND,
    REFUSALS,
    STANDARD,
    describe,
    sentence,
)
from toolpack_server.rpc.method import App
from toolpack_server.rpc.parsing import QUICK_BYTES, SMALL_BYTES, has_more_values, is_deeper, parsed_bytes
from toolpack_server.web.bodies import HEADERS, NOT_READY, has_no_body, is_handshake, read_body
from toolpack_server.web.connections import STATE
from toolpack_server.web.endpoints import CUT_OFF, Gateway, client_left
from toolpack_server.web.refusals import HINTS, PIECE_BYTES, refusal_response, refused, send_body
from toolpack_server.web.web_socket import (
    FAULT,
    LATER,
    NORMAL,
    RESTARTS,
    SocketRefusedError,
    WebSocket,
    accept_handshake,
)

STATUS = {
    ERROR_INVALID_REQUEST: 400,
    ERROR_METHOD_NOT_FOUND: 404,
    ERROR_INVALID_PARAMS: 400,
    CODES[SessionNotFoundError]: 404,
    CODES[OverloadedError]: 503,
    CODES[TooLargeError]: 413,
    CODES[DeadlineError]: 504,
}
"""The HTTP status for each JSON-RPC code."""

T = TypeVar("T")

LIMITS = FixedLimits()

BODILESS = {"GET", "HEAD", "DELETE"}


def _ignore_size(_size: int) -> None:
    pass


def _identity(value: T) -> T:
    return value


@dataclass(frozen=True, slots=True)
class FeatureRequest:
    """A request to a feature's path.

    Attributes:
        method: The HTTP method.
        path: The values of the path's parameters.
        query: The query's parameters. If a name repeats, its last value counts.
        headers: The headers, by their names in lower case.
        body: The body as it was sent, empty if the request has none.
        caller: The caller, for `App.invoke`. Its owner is "" at an endpoint that needs no token.
        holds: Reports the size in bytes of a streamed response, which counts against the memory limit until it is sent.
            Call it only for a streamed response, because other responses and WebSocket messages are counted without it.
        reserve: Reserves memory for the body and the values parsed from it, or refuses the request.
    """

    method: str
    path: Mapping[str, str]
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes
    caller: Caller
    holds: Callable[[int], None] = _ignore_size
    reserve: Callable[[int], None] = _ignore_size

    def json(self) -> Any:
        """Return the parsed body, or None if there is none.

        Raises:
            HttpRefusedError: The body isn't JSON, has too many values, or is nested too deeply.
        """
        if not self.body:
            return None
        if has_more_values(self.body, LIMITS.max_json_values):
            raise HttpRefusedError(413, f"The body has more than {LIMITS.max_json_values} values: send less.")
        try:
            value = loads(self.body)
        except ValueError as error:
            raise HttpRefusedError(400, f"The body isn't JSON: {error}.") from None
        if is_deeper(self.body, value, LIMITS.max_json_depth):
            reason = f"The body is nested more than {LIMITS.max_json_depth} deep: send flatter JSON."
            raise HttpRefusedError(400, reason)
        return value


class FeatureEndpoint:
    """An endpoint of a feature. A subclass implements `answer`.

    Attributes:
        verbs: The HTTP methods that it accepts.
        needs_token: Whether a request needs a token, on a server with tokens.
    """

    verbs: Sequence[str] | None = ("POST",)
    needs_token = True

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self.app: App = gateway.service
        self._max_bytes = gateway.service.settings.max_body_bytes

    async def answer(self, request: FeatureRequest) -> Response:
        """Return the response to a request.

        If the client of a streamed response leaves, the stream is closed after its next piece. To notice earlier that
        the client left, await `caller.left()`.

        Raises:
            HttpRefusedError: The request is refused with this status and reason.
            RequestError: A method refused the request.
        """
        raise NotImplementedError

    async def parsed(self, request: FeatureRequest, read: Callable[[Any], Any] = _identity) -> Any:
        """Parse the body, pass it to `read` and return the result. A large body is handled in a thread.

        Raises:
            HttpRefusedError: `FeatureRequest.json` or `read` refused the body, or the body would exceed the memory
                limit.
            RequestError: All threads are busy.
        """
        body = request.body
        if len(body) <= QUICK_BYTES:
            if len(body) > SMALL_BYTES:
                request.reserve(parsed_bytes(body))
            return read(request.json())

        def work() -> Any:
            try:
                request.reserve(parsed_bytes(body))
                return read(request.json())
            except HttpRefusedError as error:  # returned, because `compute` passes on only the errors of methods
                return error

        result = await self.app.sessions.compute(work, request.caller.owner, "parse")
        if isinstance(result, HttpRefusedError):
            raise result
        return result

    def credentials(self, headers: Mapping[bytes, bytes]) -> Mapping[bytes, bytes]:
        """Return headers that contain the token as a bearer token. Override this if clients send it in another form."""
        return headers

    def is_ready(self) -> bool:
        """Return whether requests are answered. They aren't while the server starts or stops."""
        return self._gateway.ready

    def refusal(self, status: int, message: str) -> Response:
        """Return a refusal in the form of the feature's protocol."""
        return refusal_response(status, message)

    def status_of(self, error: Exception) -> int:
        """Return the HTTP status for an error of a method, from `STATUS`.

        An error that isn't in `STATUS` gets 500 if only the operator can correct it, otherwise 409.
        """
        code = error.code if isinstance(error, ReplyError) else describe(error)[0]
        return STATUS.get(code, 500 if code in STANDARD else 409)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Authenticate a request, read its body, and send the response of `answer` (ASGI).

        Refusals are sent in the form of `refusal`.
        """
        headers: dict[bytes, bytes] = scope[HEADERS]
        try:
            owner = self._gateway.gate.owner(self.credentials(headers)) if self.needs_token else ""
            if not self.needs_token:
                self._gateway.gate.check_origin(headers)
            if b"origin" in headers:
                self._gateway.gate.check_own_origin(headers)
            caller = Caller(owner, left=partial(client_left, scope, receive))
            with self._gateway.admitted(scope, caller) as reservation:
                body = b""
                if scope["method"] not in BODILESS and not has_no_body(headers):
                    body = await read_body(headers, receive, reservation, self._max_bytes)
                reservation.begin_answer()
                request = _request(scope, headers, body, caller, reservation.resize, reservation.grow_to)
                response = await self._answer(request)
                try:
                    await self._send(response, scope, receive, send, reservation.resize)
                except asyncio.CancelledError:  # the server stops now, and the response has begun
                    scope["state"][STATE].cut_off()
        except HttpRefusedError as error:
            refused.write(error.status, str(error), scope)
            await self._send(self.refusal(error.status, str(error)), scope, receive, send)

    async def _answer(self, request: FeatureRequest) -> Response:
        """Return the response of `answer`. Raise an `HttpRefusedError` for a method's error, or if the server stops."""
        try:
            return await self._translate_errors(self.answer(request))
        except asyncio.CancelledError:  # the server stops now
            raise HttpRefusedError(HTTPStatus.SERVICE_UNAVAILABLE, CUT_OFF) from None

    async def _translate_errors(self, work: Awaitable[T]) -> T:
        """Await a feature's work, and turn errors of methods into an `HttpRefusedError`."""
        try:
            return await work
        except REFUSALS as error:
            raise HttpRefusedError(self.status_of(error), sentence(error)) from None
        except ReplyError as error:  # from `App.request`
            raise HttpRefusedError(self.status_of(error), error.data.get("detail") or error.message) from None

    @staticmethod
    async def _send(
        response: Response, scope: Scope, receive: Receive, send: Send, holds: Callable[[int], None] = _ignore_size
    ) -> None:
        """Send a response in pieces. Each piece waits until the client has read enough of the previous pieces."""
        response.headers["x-request-id"] = request_id.get()
        for name, value in HINTS.get(response.status_code, ()):
            response.headers.setdefault(name.decode(), value.decode())
        start = {"type": "http.response.start", "status": response.status_code, "headers": response.raw_headers}
        if isinstance(response, StreamingResponse):
            await send(start)
            await _stream(response, scope, send)
        elif response.__class__.__call__ is Response.__call__:
            await send(start)
            if len(response.body) > PIECE_BYTES:  # a smaller body has left the server when `send` returns
                holds(len(response.body))
            await send_body(send, response.body)
        else:  # a file, or a feature's own class of response
            await response(scope, receive, send)
            return
        if response.background is not None:
            await response.background()


async def _stream(response: StreamingResponse, scope: Scope, send: Send) -> None:
    """Send the pieces of a streamed response. If the client has left, close the stream after the next piece."""
    connection = scope.get("state", {}).get(STATE)
    pieces = response.body_iterator
    async for piece in pieces:
        sent = piece.encode(response.charset) if isinstance(piece, str) else piece
        await send({"type": "http.response.body", "body": sent, "more_body": True})
        if connection is not None and connection.cycle.disconnected:
            if isinstance(pieces, AsyncGenerator):
                await pieces.aclose()
            return
    await send({"type": "http.response.body", "body": b""})


class FeatureSocket(FeatureEndpoint):
    """A WebSocket endpoint of a feature. A subclass implements `on_message`.

    The handshake and each message are admitted like requests. A message holds the connection until it is answered.
    Between messages the connection is idle, so it can be evicted, or closed when the server stops. A feature must not
    keep state that would be lost with the connection.
    """

    verbs: Sequence[str] | None = ("GET",)

    async def on_connect(self, handshake: FeatureRequest) -> None:
        """Check a handshake before it is accepted.

        Raises:
            HttpRefusedError: The handshake is refused with this status and reason.
            RequestError: A method refused the handshake.
        """

    async def on_message(self, message: FeatureRequest, memory: dict[str, Any]) -> str | None:
        """Return the answer to a message. None closes the WebSocket.

        Args:
            message: The request of the handshake, with the message as its body.
            memory: A dict that the feature can use for state between the messages on this WebSocket.

        Raises:
            HttpRefusedError: The WebSocket is closed with this reason.
            RequestError: A method refused the message. The WebSocket is also closed.
        """
        raise NotImplementedError

    async def answer(self, request: FeatureRequest) -> Response:
        raise HttpRefusedError(426, f"This path is a WebSocket, and {request.method} isn't its handshake: use ws://.")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check a handshake, switch its connection to a WebSocket, and answer messages until the WebSocket closes.

        Any other request gets the response of a plain endpoint, which is a refusal unless a subclass answers it.
        """
        headers: dict[bytes, bytes] = scope[HEADERS]
        connection = scope.get("state", {}).get(STATE)
        if connection is None or not is_handshake(scope["method"], headers):
            await super().__call__(scope, receive, send)
            return
        try:
            owner = self._gateway.gate.owner(self.credentials(headers))
            if b"origin" in headers:
                self._gateway.gate.check_own_origin(headers)
            with self._gateway.admitted(scope, Caller(owner)):
                accepted = accept_handshake(headers)
                self._gateway.check_ready()
                await self._translate_errors(self.on_connect(_request(scope, headers, b"", Caller(owner))))
        except HttpRefusedError as error:
            refused.write(error.status, str(error), scope)
            await self._send(self.refusal(error.status, str(error)), scope, receive, send)
            return
        socket: WebSocket = connection.switch(accepted + b"x-request-id: %b\r\n" % request_id.get().encode(), WebSocket)
        code, reason = FAULT, ""
        try:
            await self._listen(scope, socket, _request(scope, headers, b"", Caller(owner, left=socket.left)))
            code = NORMAL
        except HttpRefusedError as error:
            refused.write(error.status, str(error), scope)
            code, reason = error.code if isinstance(error, SocketRefusedError) else LATER, str(error)
        except asyncio.CancelledError:  # the server stops now
            code, reason = RESTARTS, CUT_OFF
        finally:
            socket.close(code, reason)

    async def _listen(self, scope: Scope, socket: WebSocket, handshake: FeatureRequest) -> None:
        """Answer messages one after the other. Return when the client has left or `on_message` returns None."""
        memory: dict[str, Any] = {}
        while await socket.arrival():
            with self._gateway.admitted(scope, handshake.caller) as reservation:
                body = await socket.message(reservation, self._max_bytes)
                if body is None:
                    return
                if not self._gateway.ready:
                    raise SocketRefusedError(503, RESTARTS, NOT_READY)
                reservation.begin_answer()
                socket.is_answering = True
                try:
                    reply = await self._translate_errors(
                        self.on_message(replace(handshake, body=body, reserve=reservation.grow_to), memory)
                    )
                    if reply is None:
                        return
                    if len(reply) > PIECE_BYTES:  # a smaller reply has left the server when `send` returns
                        reservation.resize(len(reply))
                    await socket.send(reply)
                finally:
                    socket.answered()


def _request(
    scope: Scope,
    headers: dict[bytes, bytes],
    body: bytes,
    caller: Caller,
    holds: Callable[[int], None] = _ignore_size,
    reserve: Callable[[int], None] = _ignore_size,
) -> FeatureRequest:
    """Return the request as a feature sees it, from its ASGI scope, headers and body."""
    return FeatureRequest(
        scope["method"],
        scope.get("path_params", {}),
        dict(parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)),
        {name.decode("latin-1"): value.decode("latin-1") for name, value in headers.items()},
        body,
        caller,
        holds,
        reserve,
    )
