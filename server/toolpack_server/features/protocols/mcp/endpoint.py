"""Endpoint `/mcp/<key>`: MCP over Streamable HTTP. The key selects the session and authorises the client.

The endpoint keeps no state between requests, so any worker can answer the next request. It offers no server-initiated
streams, and no sign-in because the secret path is enough.
"""

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from starlette.types import Receive, Scope, Send

from toolpack_server.base.errors import HttpRefusedError, InternalError, OverloadedError, RequestError
from toolpack_server.features.protocols.mcp.headers import HeaderCheck, check_once, cross_origin, preflight, version_of
from toolpack_server.features.protocols.mcp.messages import McpMessage, McpRefusedError
from toolpack_server.features.protocols.mcp.protocol import Mcp
from toolpack_server.features.protocols.mcp.results import Fault, McpReply, adapt_error, failure, refusal_reply
from toolpack_server.observability.request_ids import request_id
from toolpack_server.rpc.caller import Caller
from toolpack_server.rpc.codes import describe
from toolpack_server.rpc.in_flight import Reservation
from toolpack_server.rpc.parsing import QUICK_BYTES
from toolpack_server.web.bodies import HEADERS, no_memory, read_body
from toolpack_server.web.endpoints import CUT_OFF, Gateway
from toolpack_server.web.event_stream import MESSAGE, SIGN_OF_LIFE, EventStream, event
from toolpack_server.web.refusals import NO_CONTENT, PIECE_BYTES, refusal, refused, send_response

ACCEPTED, NOT_ALLOWED_STATUS = 202, 405
UNKNOWN_KEY_SECONDS = 1.0  # time limit for reading the body of a request with an unknown key


@dataclass
class Exchange:
    """One HTTP request and its response channel."""

    scope: Scope
    receive: Receive
    send: Send
    headers: dict[bytes, bytes]
    extra: list[tuple[bytes, bytes]]  # headers to add to the response

    async def respond(self, status: int, body: bytes) -> None:
        """Send the response, with the headers of `extra`."""
        await send_response(self.send, status, body, extra=self.extra)


class McpEndpoint:
    """The endpoint `/mcp/<key>`, for all HTTP methods.

    Attributes:
        allowed: The HTTP methods that clients can use besides OPTIONS.
        not_allowed: The message for a request with another method.
        status: The HTTP status for each `Fault` of a reply.
    """

    verbs: Sequence[str] | None = None
    allowed = b"POST"
    not_allowed = "Send MCP messages with POST: there is no stream to GET, and an agent can't DELETE this session."
    status: Mapping[Fault | None, int] = {
        None: 200,
        Fault.MALFORMED: 400,
        Fault.NO_METHOD: 404,
        Fault.NO_SESSION: 200,
    }

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._mcp = gateway.service.feature(Mcp)
        self._max_bytes = gateway.service.settings.max_agent_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer an HTTP request (ASGI): a message by POST, a CORS preflight by OPTIONS, or refuse another method."""
        headers: dict[bytes, bytes] = scope[HEADERS]
        exchange = Exchange(scope, receive, send, headers, [(b"x-request-id", request_id.get().encode())])
        try:
            self._gateway.gate.check_host(headers)
            exchange.extra += cross_origin(headers)
            if scope["method"] == "POST":
                check_once(scope, headers)
                await self._post(exchange)
            elif scope["method"] == "OPTIONS":
                exchange.extra += preflight(headers, self.allowed)
                await exchange.respond(NO_CONTENT, b"")
            else:
                await self.answer_other_method(exchange)
        except HttpRefusedError as error:
            if error.status != NOT_ALLOWED_STATUS:  # not logged, because clients routinely try GET first
                refused.write(error.status, str(error), scope)
            await exchange.respond(error.status, refusal(error.status, str(error)))

    async def answer_other_method(self, exchange: Exchange) -> None:
        """Answer a request with another HTTP method than POST and OPTIONS."""
        exchange.extra.append((b"allow", self.allowed + b", OPTIONS"))
        raise HttpRefusedError(NOT_ALLOWED_STATUS, self.not_allowed)

    async def authenticate(self, exchange: Exchange) -> Caller:
        """Return the sender of a message to a path without a key.

        Raises:
            RequestError: The request names a session that doesn't exist, or its token is invalid.
        """
        raise NotImplementedError

    async def agent(self, exchange: Exchange, caller: Caller, message: McpMessage) -> Caller:
        """Create or find the session for a message to a path without a key, and return its agent.

        Raises:
            McpRefusedError: The message can't select or create a session.
        """
        raise NotImplementedError

    async def _post(self, exchange: Exchange) -> None:
        """Authenticate the sender of a message, read the message, and answer it."""
        try:
            path = exchange.scope["path_params"]
            caller = await (self._gateway.service.agent(path["key"]) if path else self.authenticate(exchange))
        except (RequestError, InternalError) as error:
            self._gateway.check_ready()
            refused.write(self.status[Fault.NO_SESSION], str(error), exchange.scope)
            await self._refuse_unknown_key(exchange, error)
            return
        with self._gateway.admitted(exchange.scope, caller) as reservation:
            body = await read_body(exchange.headers, exchange.receive, reservation, self._max_bytes)
            reservation.begin_answer()
            await self._answer(exchange, caller, body, reservation)

    async def _refuse_unknown_key(self, exchange: Exchange, error: Exception) -> None:
        """Refuse a message to an unknown key. The answer contains the message's id if the body arrives in time.

        Some clients wait forever for an answer with their message's id. So the body is read, but only for a short time,
        because the sender is unknown.
        """
        request_id, in_flight = None, self._gateway.in_flight
        with (
            contextlib.suppress(TimeoutError, HttpRefusedError, McpRefusedError),
            Reservation(in_flight, "", no_memory) as reservation,
        ):
            async with asyncio.timeout(UNKNOWN_KEY_SECONDS):
                body = await read_body(exchange.headers, exchange.receive, reservation, QUICK_BYTES)
                request_id = (await self._mcp.read(body, "")).id
        self._gateway.check_ready()
        described = adapt_error(describe(error))
        reply = refusal_reply(McpRefusedError(described, malformed=False, request_id=request_id))
        await self._respond(exchange, reply._replace(fault=Fault.NO_SESSION))

    async def _answer(self, exchange: Exchange, caller: Caller, body: bytes, reservation: Reservation) -> None:
        """Answer a message. A slow answer becomes an event stream if the client accepts event streams."""
        try:
            message = await self._mcp.read(body, caller.owner, reservation.grow_to, version_of(exchange.headers))
        except McpRefusedError as error:
            await self._respond(exchange, refusal_reply(error))
            return
        if message.is_notification:
            with contextlib.suppress(RequestError, InternalError):  # a notification isn't answered
                await self._mcp.notified(caller)
            await exchange.respond(ACCEPTED, b"")
            return
        stream = None
        try:
            if caller.session_id is None:
                caller = await self.agent(exchange, caller, message)
            if b"text/event-stream" in exchange.headers.get(b"accept", b"").lower():
                stream = self._stream(exchange, message)
            reply = await self._mcp.answer(caller, message, HeaderCheck(exchange.headers))
        except (McpRefusedError, RequestError, InternalError) as error:  # raised by `agent`
            reply = failure(message, error)
        except asyncio.CancelledError:
            if stream is not None and stream.client_left:
                return  # the client has disconnected
            if stream is None or not await stream.end(failure(message, OverloadedError(CUT_OFF)).body):
                await exchange.respond(503, refusal(503, CUT_OFF))
            return
        if len(reply.body) > PIECE_BYTES:  # a smaller body has left the server when `send` returns
            reservation.resize(len(reply.body))
        if stream is None or not await stream.end(reply.body):
            await self._respond(exchange, reply)

    async def _respond(self, exchange: Exchange, reply: McpReply) -> None:
        await exchange.respond(self.status[reply.fault], reply.body)

    @staticmethod
    def _stream(exchange: Exchange, message: McpMessage) -> EventStream:
        """Return the event stream for an answer that takes long.

        If the client disconnects while it waits, a request of the modern era is cancelled. A request of the legacy era
        continues.
        """

        def sign(seconds: float) -> bytes:
            progress = message.progress(seconds)
            return SIGN_OF_LIFE if progress is None else event(MESSAGE, progress)

        task = asyncio.current_task()
        cancel = task.cancel if task is not None and message.modern else lambda: None
        return EventStream(exchange.send, exchange.receive, exchange.extra, sign, cancel)
