"""JSON-RPC endpoints, as plain ASGI callables: creating a `Request` object would take as long as a call.

Cheap checks come first. Headers, and the token or key, are checked before the body is read. The body's size is checked
before the body is parsed.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import Protocol, Self

from starlette.applications import Starlette
from starlette.types import Receive, Scope, Send

from toolpack_server.base.errors import HttpRefusedError, InternalError, RequestError
from toolpack_server.base.logger import log
from toolpack_server.observability.request_ids import request_id
from toolpack_server.rpc.caller import Caller
from toolpack_server.rpc.codes import describe, error_reply
from toolpack_server.rpc.in_flight import Reservation
from toolpack_server.rpc.jsonrpc import JsonRpc
from toolpack_server.web.auth import NOBODY, TokenGate
from toolpack_server.web.bodies import HEADERS, NOT_READY, no_memory, read_body
from toolpack_server.web.connections import Connections
from toolpack_server.web.faults import LoopFaults
from toolpack_server.web.refusals import PIECE_BYTES, refusal, refuse, refused, send_response
from toolpack_server.wiring.service import Service

CUT_OFF = (
    "The server stopped before the request ended, so the request might have changed something. Send it again, with its "
    "call_id."
)

CLIENT_ENDED = "toolpack_server.client_ended"  # key in a request's scope, set if the client has closed its side


async def client_left(scope: Scope, receive: Receive) -> None:
    """Wait until a client has closed the connection or its side of it. The request's body must have been read.

    The server can't distinguish these two cases before it sends something.
    """
    while not scope.get(CLIENT_ENDED) and (await receive())["type"] != "http.disconnect":
        pass


class Gateway:
    """State that the endpoints share while the application runs.

    Attributes:
        ready: Whether requests are answered. False while the application starts and stops.
        leaving: Whether the server will stop soon: `/readyz` then answers 503, but requests are still answered.
        answering: The number of requests that are being answered. Refused requests don't count.
    """

    def __init__(self, service: Service) -> None:
        self.service = service
        self.gate = TokenGate(service.settings)
        self.in_flight = service.in_flight
        self.connections = Connections(service.settings, several=self.gate.several)
        self.admitted = partial(Admission, self)
        self.ready = False
        self.leaving = False
        self.answering = 0

    @contextlib.asynccontextmanager
    async def lifespan(self, _app: Starlette) -> AsyncIterator[None]:
        """Run the service while the application runs."""
        asyncio.get_running_loop().set_exception_handler(LoopFaults())
        async with self.service.running():
            self.ready = True
            counting = asyncio.create_task(self._warn_of_unowned_sessions())
            try:
                yield
            finally:
                self.ready = False
                counting.cancel()

    async def _warn_of_unowned_sessions(self) -> None:
        """Log a warning about sessions that no owner can use because they were created without a token."""
        if not self.gate.hides_unowned_sessions():
            return
        with contextlib.suppress(RequestError, InternalError):
            if count := await self.service.sessions.count(""):
                log.warning(
                    "%d session%s created without a token, so no owner can use %s. A token for the name %r can: add "
                    "one, as in TOOLPACK_TOKENS=…,%s:TOKEN. To give a session to an owner, use export_bundle and "
                    "import_bundle.",
                    *(count, " was" if count == 1 else "s were", "it" if count == 1 else "them", NOBODY, NOBODY),
                )

    def check_ready(self) -> None:
        """Raise an `HttpRefusedError` while the application starts or stops."""
        if not self.ready:
            raise HttpRefusedError(503, NOT_READY)


class Admission(Reservation):
    """Context manager of one request whose caller is known: `with gateway.admitted(scope, caller)`.

    In the block, the request holds its connection, and its bytes are counted. After its body is read, `begin_answer`
    counts it among the requests that are being answered. This is a class because each call enters it, and a generator
    would be slower.

    Raises:
        HttpRefusedError: Too many requests are being answered.
    """

    __slots__ = ("_caller", "_connections", "_gateway", "_is_answered", "_scope")

    def __init__(self, gateway: Gateway, scope: Scope, caller: Caller) -> None:
        self.in_flight, self.owner, self.refusal, self.size = gateway.in_flight, caller.owner, no_memory, 0
        self._connections, self._scope, self._caller = gateway.connections, scope, caller
        self._gateway, self._is_answered = gateway, False

    def __enter__(self) -> Self:
        self._connections.hold(self._scope, self._caller)
        return self

    def begin_answer(self) -> None:
        """Count the request among those that are being answered, until the block ends.

        Call this after reading the body, because a client that is still sending might not read a refusal.

        Raises:
            HttpRefusedError: The application is starting or stopping.
        """
        if not self._gateway.ready:
            raise HttpRefusedError(503, NOT_READY)
        self._is_answered = True
        self._gateway.answering += 1

    def __exit__(self, *_exception: object) -> None:
        if self._is_answered:
            self._gateway.answering -= 1
        self.resize(0)
        self._connections.release(self._scope, self._caller)


class Endpoint(Protocol):
    """An endpoint of a path. Its constructor accepts the `Gateway`.

    Attributes:
        verbs: The HTTP methods that the endpoint accepts. None means all methods.
    """

    verbs: Sequence[str] | None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None: ...


class RpcEndpoint:
    """`POST /rpc`: all methods, for callers with a token."""

    body_limit = "max_body_bytes"  # name of the setting that limits the size of its bodies
    verbs: Sequence[str] | None = ("POST",)

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._rpc = self.methods(gateway.service)
        self._max_bytes: int = getattr(gateway.service.settings, self.body_limit)

    def methods(self, service: Service) -> JsonRpc:
        """Return the JSON-RPC methods of this endpoint."""
        return service.rpc

    async def caller(self, scope: Scope, receive: Receive, headers: dict[bytes, bytes]) -> Caller:
        """Authenticate a request and return its caller.

        Raises:
            HttpRefusedError: The request isn't allowed.
            RequestError: No session has this agent's key.
        """
        return Caller(self._gateway.gate.owner(headers), left=partial(client_left, scope, receive))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer an HTTP request (ASGI).

        The status is 200 with a JSON-RPC response, even one with an error, and 204 if the body has only notifications.
        A request that is refused before JSON-RPC gets another status.
        """
        headers: dict[bytes, bytes] = scope[HEADERS]
        id_ = request_id.get().encode()
        try:
            caller = await self.caller(scope, receive, headers)
            with self._gateway.admitted(scope, caller) as reservation:
                body = await read_body(headers, receive, reservation, self._max_bytes)
                reservation.begin_answer()
                try:
                    reply = await self._rpc.answer(caller, body, reservation.grow_to) or b""
                    status = 200 if reply else 204
                except asyncio.CancelledError:  # the server stops now
                    status, reply = 503, refusal(503, CUT_OFF)
                if len(reply) > PIECE_BYTES:  # a smaller reply has left the server when `send` returns
                    reservation.resize(len(reply))
                await send_response(send, status, reply, request_id=id_)
        except HttpRefusedError as error:
            await refuse(send, error, scope, id_)
        except (RequestError, InternalError) as error:  # from `caller`; the JSON-RPC id isn't known yet
            ready = self._gateway.ready
            refused.write(200 if ready else 503, str(error) if ready else NOT_READY, scope)
            reply = error_reply(None, *describe(error)) if ready else refusal(503, NOT_READY)
            await send_response(send, 200 if ready else 503, reply, request_id=id_)


class AgentEndpoint(RpcEndpoint):
    """`POST /agents/<key>`: the key identifies the session and authorizes the agent."""

    body_limit = "max_agent_body_bytes"

    def methods(self, service: Service) -> JsonRpc:
        return service.agents

    async def caller(self, scope: Scope, receive: Receive, headers: dict[bytes, bytes]) -> Caller:
        self._gateway.gate.check_origin(headers)
        caller = await self._gateway.service.agent(scope["path_params"]["key"])
        return caller._replace(left=partial(client_left, scope, receive))
