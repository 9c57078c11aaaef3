"""What the endpoints of features are made of: requests of owners, admitted and refused as those to `/rpc` are.

Token, sizes, shares and readiness are checked here, before the feature sees anything. A feature says how its
protocol writes a refusal, and answers whatever else it is asked.
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
"""The HTTP statuses that mean what these JSON-RPC codes mean."""

T = TypeVar("T")

LIMITS = FixedLimits()

BODILESS = {"GET", "HEAD", "DELETE"}


def _nothing(_size: int) -> None:
    pass


def _unchanged(value: T) -> T:
    return value


@dataclass(frozen=True, slots=True)
class FeatureRequest:
    """A request to a feature's path.

    Attributes:
        method: The HTTP method.
        path: The values of the path's parameters.
        query: The query's parameters; of one that is given several times, the last.
        headers: By their names in lower case.
        body: As it was sent; empty if there is none.
        caller: Who sends it, for `App.invoke`; nobody, where no token is needed.
        holds: Says of how many bytes an answer is that is made piece by piece, so that they are counted until they are
            sent. Those of any other answer, and of a message, are counted without it.
        reserve: Counts the bytes that the body takes with what is parsed out of it, or refuses the request.
    """

    method: str
    path: Mapping[str, str]
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes
    caller: Caller
    holds: Callable[[int], None] = _nothing
    reserve: Callable[[int], None] = _nothing

    def json(self) -> Any:
        """Get what the body says; None if there is none.

        Raises:
            HttpRefusedError: It isn't JSON, has too many values, or is nested too deeply.
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
            deep = f"The body is nested more than {LIMITS.max_json_depth} deep: send flatter JSON."
            raise HttpRefusedError(400, deep)
        return value


class FeatureEndpoint:
    """An endpoint of a feature: a subclass says what it answers.

    Attributes:
        verbs: The HTTP methods that it takes.
        needs_token: Whether only owners are answered, where there are tokens.
        without_key: Not used here.
    """

    verbs: Sequence[str] | None = ("POST",)
    needs_token = True
    without_key = ""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self.app: App = gateway.service
        self._max_bytes = gateway.service.settings.max_body_bytes

    async def answer(self, request: FeatureRequest) -> Response:
        """Answer a request; a stream whose client has left ends after its next piece, `caller.left` says so before.

        Raises:
            HttpRefusedError: It is refused, with this status and reason.
            RequestError: A method has refused it.
        """
        raise NotImplementedError

    async def parsed(self, request: FeatureRequest, read: Callable[[Any], Any] = _unchanged) -> Any:
        """Return what `read` makes of the JSON of a body; a large one is parsed and read in a thread.

        Raises:
            HttpRefusedError: `FeatureRequest.json` or `read` has refused it, or there is no memory for it.
            RequestError: There is no thread for it.
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
            except HttpRefusedError as error:  # threads pass on what methods raise, and nothing of HTTP
                return error

        found = await self.app.sessions.compute(work, request.caller.owner, "parse")
        if isinstance(found, HttpRefusedError):
            raise found
        return found

    def credentials(self, headers: Mapping[bytes, bytes]) -> Mapping[bytes, bytes]:
        """Get the headers of a request with its token as a bearer token, for a protocol that sends it in another."""
        return headers

    def is_ready(self) -> bool:
        """Whether requests are answered: the server neither starts nor stops."""
        return self._gateway.ready

    def refusal(self, status: int, message: str) -> Response:
        """Write a refusal as the feature's protocol does."""
        return refusal_response(status, message)

    def status_of(self, error: Exception) -> int:
        """Return the HTTP status for what a method refused; what only an operator can mend is 500."""
        code = error.code if isinstance(error, ReplyError) else describe(error)[0]
        return STATUS.get(code, 500 if code in STANDARD else 409)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
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
                except asyncio.CancelledError:  # the server can't wait any longer, and the answer has begun
                    scope["state"][STATE].cut_off()
        except HttpRefusedError as error:
            refused.write(error.status, str(error), scope)
            await self._send(self.refusal(error.status, str(error)), scope, receive, send)

    async def _answer(self, request: FeatureRequest) -> Response:
        try:
            return await self._asked(self.answer(request))
        except asyncio.CancelledError:  # the server can't wait any longer
            raise HttpRefusedError(HTTPStatus.SERVICE_UNAVAILABLE, CUT_OFF) from None

    async def _asked(self, work: Awaitable[T]) -> T:
        """Do what a feature does; what a method refuses there refuses the request."""
        try:
            return await work
        except REFUSALS as error:
            raise HttpRefusedError(self.status_of(error), sentence(error)) from None
        except ReplyError as error:  # of `App.request`
            raise HttpRefusedError(self.status_of(error), error.data.get("detail") or error.message) from None

    @staticmethod
    async def _send(
        response: Response, scope: Scope, receive: Receive, send: Send, holds: Callable[[int], None] = _nothing
    ) -> None:
        """Send a response in pieces, each of which waits until the client has read enough of those before it."""
        response.headers["x-request-id"] = request_id.get()
        for name, value in HINTS.get(response.status_code, ()):
            response.headers.setdefault(name.decode(), value.decode())
        start = {"type": "http.response.start", "status": response.status_code, "headers": response.raw_headers}
        if isinstance(response, StreamingResponse):
            await send(start)
            await _stream(response, scope, send)
        elif response.__class__.__call__ is Response.__call__:
            await send(start)
            if len(response.body) > PIECE_BYTES:  # what is smaller has left the server when it is sent
                holds(len(response.body))
            await send_body(send, response.body)
        else:  # a file, or what a feature has made itself
            await response(scope, receive, send)
            return
        if response.background is not None:
            await response.background()


async def _stream(response: StreamingResponse, scope: Scope, send: Send) -> None:
    """Send what an iterator gives, which ends after the next piece when the client has left."""
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
    """A path of a feature that is a WebSocket: a subclass says what a message is answered.

    The handshake is admitted as a request is, and so is each message, which holds the connection until it is answered.
    Between two messages the connection is idle, as others are: it may end where its room is needed, or with the server,
    so nothing may be lost with it.
    """

    verbs: Sequence[str] | None = ("GET",)

    async def on_connect(self, handshake: FeatureRequest) -> None:
        """Look at a handshake before it is accepted.

        Raises:
            HttpRefusedError: It is refused, with this status and reason.
            RequestError: A method has refused it.
        """

    async def on_message(self, message: FeatureRequest, memory: dict[str, Any]) -> str | None:
        """Answer a message, which is the body of a request like the handshake; None closes the WebSocket.

        Args:
            message: What was sent, as its body.
            memory: What it may keep from one message to the next.

        Raises:
            HttpRefusedError: The WebSocket is to be closed, with this reason.
            RequestError: A method has refused it, so it is, too.
        """
        raise NotImplementedError

    async def answer(self, request: FeatureRequest) -> Response:
        raise HttpRefusedError(426, f"This path is a WebSocket, and {request.method} isn't its handshake: use ws://.")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
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
                await self._asked(self.on_connect(_request(scope, headers, b"", Caller(owner))))
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
        except asyncio.CancelledError:  # the server can't wait any longer
            code, reason = RESTARTS, CUT_OFF
        finally:
            socket.close(code, reason)

    async def _listen(self, scope: Scope, socket: WebSocket, handshake: FeatureRequest) -> None:
        memory: dict[str, Any] = {}
        while await socket.arrival():
            with self._gateway.admitted(scope, handshake.caller) as reservation:
                body = await socket.message(reservation, self._max_bytes)
                if body is None:
                    return
                if not self._gateway.ready:
                    raise SocketRefusedError(503, RESTARTS, NOT_READY)
                reservation.begin_answer()
                socket.answers = True
                try:
                    reply = await self._asked(
                        self.on_message(replace(handshake, body=body, reserve=reservation.grow_to), memory)
                    )
                    if reply is None:
                        return
                    if len(reply) > PIECE_BYTES:  # what is smaller has left the server when it is sent
                        reservation.resize(len(reply))
                    await socket.send(reply)
                finally:
                    socket.answered()


def _request(
    scope: Scope,
    headers: dict[bytes, bytes],
    body: bytes,
    caller: Caller,
    holds: Callable[[int], None] = _nothing,
    reserve: Callable[[int], None] = _nothing,
) -> FeatureRequest:
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
