"""The HTTP application: routes, sizes, who comes in, start and stop. `create_app` wires everything in one place.

The rule: what reached JSON-RPC is answered 200 with a JSON-RPC body; what did not gets its HTTP status and a body of
the same shape that says what to do.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from server.auth import Gate, RefusedError, check_exposure
from server.call_log import CallLog, EndedCall, accept_request_id, request_id
from server.calls import CallRequest
from server.catalog import Catalog, load_catalog
from server.errors import RequestError
from server.execution import Outcome
from server.jobs import InternalError
from server.jsonrpc import JsonRpc
from server.methods import Caller, Methods
from server.openrpc import openrpc_document
from server.protocol import refusal
from server.secret_key import secret_key
from server.sessions import SessionManager
from server.settings import Settings
from server.stores import open_store
from server.strict_json import Fragment, dumps

NOT_READY = "The server is starting or stopping: send it again in a moment."
ONCE = (b"host", b"origin", b"authorization", b"content-type", b"content-length")
REMEDIES = {
    404: "There is nothing at this path: POST to /rpc, or to an agent's /agents/<key>.",
    405: "This method is not taken here: POST JSON-RPC requests, GET the rest.",
}


class Server:
    """What the routes share while the application lives.

    Args:
        settings: The settings.
        catalog: The loaded toolpacks; None loads those that the settings name, when the application starts.

    Attributes:
        ready: Requests are answered; False while it starts and drains.
        is_open: Toolpacks are loaded, and the store is open.
    """

    def __init__(self, settings: Settings, catalog: Catalog | None) -> None:
        check_exposure(settings)
        self.settings = settings
        self.gate = Gate(settings)
        self.ready = False
        self.is_open = False
        self._catalog = catalog
        self._ended: list[tuple[str, EndedCall]] = []  # in this turn of the event loop, with their toolpacks

    def open(self) -> None:
        """Load toolpacks and open the store.

        Raises:
            StartError: A toolpack, the store or a setting can't be used.
        """
        settings = self.settings
        catalog = self._catalog or load_catalog(settings.pack_dir, settings.packs)
        key = secret_key(settings)
        # Not at the top: prometheus-client decides at its import whether there are several workers.
        from server.metrics import MeasuredStore, Metrics  # noqa: PLC0415

        self.metrics = Metrics()
        self.store = open_store(settings.store_url, exclusive=settings.workers == 1)
        self.sessions = SessionManager(catalog, MeasuredStore(self.store, self.metrics), settings, key)
        self._log = CallLog(settings.log_calls, arguments=settings.log_arguments)
        self._methods = Methods(self.sessions, self.document, self.observe)
        self._document: Fragment | None = None
        self.rpc = JsonRpc(self._methods.all(), settings)
        self.agents = JsonRpc(self._methods.agents(), settings)
        self.is_open = True

    @contextlib.asynccontextmanager
    async def lifespan(self, _app: Starlette) -> AsyncIterator[None]:
        """Be ready for requests; at the end let calls finish, and close the store."""
        if not self.is_open:
            self.open()
        chores = [asyncio.create_task(self.sessions.sweep()), asyncio.create_task(self.measure())]
        self.ready = True
        try:
            yield
        finally:
            self.ready = False
            for chore in chores:
                chore.cancel()
            await self.sessions.drain()
            self.store.close()

    def is_unfit(self) -> bool:
        """Whether this process holds so many stuck threads that it should be replaced."""
        return self.sessions.stuck_threads() > self.settings.max_stuck_threads

    def observe(
        self, session_id: str, owner: str | None, request: CallRequest, outcome: Outcome | None, seconds: float
    ) -> None:
        """Note that a call has ended; it is counted and logged when its answer is on its way."""
        if outcome is None:
            toolpack, told, result = "", "refused", None
        else:
            toolpack, told = outcome.toolpack, outcome.failure or "ok"
            result = outcome.result or outcome.error
        function = request.function
        ended = EndedCall(
            time.time(), request_id.get(), session_id, owner, function, request.kwargs, told, result, seconds
        )
        self._ended.append((toolpack, ended))
        if len(self._ended) == 1:
            asyncio.get_running_loop().call_soon(self._tell)

    def _tell(self) -> None:
        ended, self._ended = self._ended, []
        for toolpack, call in ended:
            self.metrics.called(toolpack, call.function if toolpack else "", call.outcome, call.seconds)
        self._log.write(call for _, call in ended)

    async def measure(self) -> None:
        """Measure what stands, every second, for ever."""
        while True:
            self.metrics.measured(*self.sessions.load())
            await asyncio.sleep(1)

    def document(self) -> Fragment:
        """Get the OpenRPC document, made when somebody first asks for it."""
        if self._document is None:
            self._document = Fragment(dumps(openrpc_document(self._methods.all())))
        return self._document


def create_app(settings: Settings, catalog: Catalog | None = None) -> Starlette:
    """Make the application.

    Raises:
        SettingsError: It would be open to other machines without tokens.
    """
    server = Server(settings, catalog)
    rpc = RpcEndpoint(server)
    app = Application(
        lifespan=server.lifespan,
        exception_handlers={HTTPException: _not_routed},
        routes=[
            Route("/rpc", rpc, methods=["POST"]),
            Route("/agents/{key}", AgentEndpoint(server), methods=["POST"]),
            Route("/healthz", Text(b"ok"), methods=["GET"]),
            Route("/readyz", ReadyEndpoint(server), methods=["GET"]),
            Route("/metrics", MetricsEndpoint(server), methods=["GET"]),
            Route("/openrpc.json", DocumentEndpoint(server), methods=["GET"]),
        ],
    )
    app.router.redirect_slashes = False
    app.state.server = server
    app.state.rpc = rpc
    return app


class Application(Starlette):
    """Starlette, but for the one path that carries all load.

    A POST to `/rpc` goes straight to its endpoint: the middleware and the router would take as long as a call does.
    """

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one connection's request."""
        if scope["type"] == "http" and scope["path"] == "/rpc" and scope["method"] == "POST":
            await self.state.rpc(scope, receive, send)
        else:
            await super().__call__(scope, receive, send)


class RpcEndpoint:
    """`POST /rpc`: who may use it sees all methods."""

    def __init__(self, server: Server) -> None:
        self.server = server

    def caller(self, scope: Scope, headers: dict[bytes, bytes]) -> tuple[JsonRpc, Caller]:
        """Say who sends a request, and what answers it.

        Raises:
            RefusedError: It isn't let in.
        """
        del scope
        return self.server.rpc, Caller(owner=self.server.gate.owner(headers))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request; a plain ASGI callable, for a `Request` object costs as much as a call."""
        headers = dict(scope["headers"])
        known_as = accept_request_id(headers.get(b"x-request-id")).encode()
        try:
            _check_once(scope, headers)
            if not self.server.ready:
                raise RefusedError(503, NOT_READY)
            rpc, caller = self.caller(scope, headers)
            body = await _body(headers, receive, self.server.settings.max_body_bytes)
        except RefusedError as refused:
            await _send(send, refused.status, refusal(refused.status, str(refused)), request_id=known_as)
            return
        reply = await rpc.answer(caller, body)
        await _send(send, 204 if reply is None else 200, reply or b"", request_id=known_as)


class AgentEndpoint(RpcEndpoint):
    """`POST /agents/<key>`: the key is the permission, and the session is implied."""

    def caller(self, scope: Scope, headers: dict[bytes, bytes]) -> tuple[JsonRpc, Caller]:
        """See `RpcEndpoint.caller`."""
        self.server.gate.check_origin(headers)
        return self.server.agents, Caller(agent_key=scope["path_params"]["key"])


class Text:
    """Always the same answer."""

    def __init__(self, text: bytes) -> None:
        self._text = text

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer."""
        await _send(send, 200, self._text, b"text/plain")


class ReadyEndpoint:
    """`GET /readyz`: whether requests should be sent here."""

    def __init__(self, server: Server) -> None:
        self._server = server

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer 200 or 503."""
        server = self._server
        if server.ready and await server.sessions.is_store_reachable():
            await _send(send, 200, b"ready", b"text/plain")
        else:
            await _send(send, 503, refusal(503, "Not ready: starting, stopping, or the store can't be reached."))


class DocumentEndpoint:
    """`GET /openrpc.json`: the OpenRPC document, for whoever may use `/rpc`."""

    media_type = b"application/json"

    def __init__(self, server: Server) -> None:
        self.server = server

    async def text(self) -> bytes:
        """Get what there is to read here."""
        return dumps(self.server.document())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer."""
        headers = dict(scope["headers"])
        try:
            _check_once(scope, headers)
            self.server.gate.owner(headers)
            if not self.server.ready:
                raise RefusedError(503, NOT_READY)
        except RefusedError as refused:
            await _send(send, refused.status, refusal(refused.status, str(refused)))
            return
        await _send(send, 200, await self.text(), self.media_type)


class MetricsEndpoint(DocumentEndpoint):
    """`GET /metrics`: what Prometheus is told, for whoever may use `/rpc`."""

    media_type = b"text/plain; version=0.0.4; charset=utf-8"

    async def text(self) -> bytes:
        """See `DocumentEndpoint.text`."""
        try:
            sessions = await self.server.sessions.count()
        except (InternalError, RequestError):  # the store can't be reached, which is when metrics matter
            sessions = None
        return self.server.metrics.exposition(sessions)


def _check_once(scope: Scope, headers: dict[bytes, bytes]) -> None:
    """See that no header stands twice which would then mean one thing here and another to a proxy."""
    if len(headers) == len(scope["headers"]):
        return
    names = [name for name, _ in scope["headers"]]
    twice = next((name for name in ONCE if names.count(name) > 1), None)
    if twice is not None:
        raise RefusedError(400, f"The header {twice.decode()} stands twice: send it once.")


async def _body(headers: dict[bytes, bytes], receive: Receive, most: int) -> bytes:
    media_type = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
    if media_type != b"application/json":
        raise RefusedError(415, "Send the header Content-Type: application/json.")
    too_large = RefusedError(413, f"The body is larger than {most} bytes: send less, or raise TOOLPACK_MAX_BODY_BYTES.")
    length = headers.get(b"content-length", b"")
    if length.isdigit() and int(length) > most:
        raise too_large
    message = await receive()
    body: bytes = message.get("body", b"")
    if not message.get("more_body", False):
        if len(body) > most:
            raise too_large
        return body
    chunks, size = [body], len(body)
    while message.get("more_body", False):
        message = await receive()
        if message["type"] == "http.disconnect":
            raise RefusedError(400, "The body was cut off.")
        chunks.append(message.get("body", b""))
        size += len(chunks[-1])
        if size > most:
            raise too_large
    return b"".join(chunks)


async def _send(
    send: Send, status: int, body: bytes, media_type: bytes = b"application/json", request_id: bytes | None = None
) -> None:
    headers = [(b"content-length", b"%d" % len(body)), (b"content-type", media_type)]
    if status == 204:  # noqa: PLR2004 - No Content
        headers = []
    if status == 401:  # noqa: PLR2004 - Unauthorized
        headers.append((b"www-authenticate", b"Bearer"))
    if request_id is not None:
        headers.append((b"x-request-id", request_id))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def _not_routed(_request: Request, error: Exception) -> Response:
    status = getattr(error, "status_code", 404)
    headers = getattr(error, "headers", None)
    body = refusal(status, REMEDIES.get(status, "This can't be done here."))
    return Response(body, status, headers, media_type="application/json")
