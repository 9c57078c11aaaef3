"""The endpoints: plain ASGI callables, because creating a `Request` object takes as long as a call.

The rule: cheap checks come first. Headers and token are checked before the body is read, its size before it is parsed.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator

from starlette.applications import Starlette
from starlette.types import Receive, Scope, Send

from server.errors import HttpRefusedError, InternalError, RequestError
from server.jsonio.strict import dumps
from server.observability.call_log import accept_request_id
from server.rpc.jsonrpc import JsonRpc
from server.rpc.methods import Caller
from server.service import Service
from server.web.auth import TokenGate
from server.web.refusals import refusal, send_response

NOT_READY = "The server is starting or stopping: send the request again in a moment."
CUT_OFF = (
    "The server stopped before the request had ended; it may have changed something. Send it again, with its call_id."
)
SECURITY_HEADERS = (b"host", b"origin", b"authorization", b"content-type", b"content-length")


class Gateway:
    """State that the endpoints share while the application runs.

    Args:
        service: The server behind HTTP.

    Attributes:
        ready: Requests are answered; False while the application starts and stops.
        answering: How many requests are being answered, other than those that are refused.
    """

    def __init__(self, service: Service) -> None:
        self.service = service
        self.gate = TokenGate(service.settings)
        self.ready = False
        self.answering = 0

    @contextlib.asynccontextmanager
    async def lifespan(self, _app: Starlette) -> AsyncIterator[None]:
        """Be ready for requests while the application runs."""
        async with self.service.running():
            self.ready = True
            try:
                yield
            finally:
                self.ready = False

    def check_ready(self) -> None:
        """Refuse requests while the application starts and stops.

        Raises:
            HttpRefusedError: It isn't ready.
        """
        if not self.ready:
            raise HttpRefusedError(503, NOT_READY)


class RpcEndpoint:
    """`POST /rpc`: all methods, for callers with a token."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._max_body_bytes = gateway.service.settings.max_body_bytes

    def caller(self, scope: Scope, headers: dict[bytes, bytes]) -> tuple[JsonRpc, Caller]:
        """Authenticate a request, and choose the methods that it may call.

        Raises:
            HttpRefusedError: Authentication failed.
        """
        del scope
        return self._gateway.service.rpc, Caller(owner=self._gateway.gate.owner(headers))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, as ASGI calls it."""
        headers = dict(scope["headers"])
        request_id = accept_request_id(headers.get(b"x-request-id")).encode()
        try:
            _reject_duplicates(scope, headers)
            rpc, caller = self.caller(scope, headers)
            body = await _body(headers, receive, self._max_body_bytes)
            self._gateway.check_ready()  # after the body: a client that still sends may not read the refusal
        except HttpRefusedError as refused:
            await send_response(send, refused.status, refusal(refused.status, str(refused)), request_id=request_id)
            return
        self._gateway.answering += 1
        try:
            reply = await rpc.answer(caller, body)
            status = 204 if reply is None else 200
        except asyncio.CancelledError:  # the server can't wait any longer
            status, reply = 503, refusal(503, CUT_OFF)
        try:
            await send_response(send, status, reply or b"", request_id=request_id)
        finally:
            self._gateway.answering -= 1


class AgentEndpoint(RpcEndpoint):
    """`POST /agents/<key>`: the key is the permission, and implies the session."""

    def caller(self, scope: Scope, headers: dict[bytes, bytes]) -> tuple[JsonRpc, Caller]:
        """See `RpcEndpoint.caller`."""
        self._gateway.gate.check_origin(headers)
        return self._gateway.service.agents, Caller(agent_key=scope["path_params"]["key"])


class HealthEndpoint:
    """`GET /healthz`: the process is alive."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 - as ASGI calls it
        """Answer 200."""
        await send_response(send, 200, b"ok", b"text/plain")


class ReadyEndpoint:
    """`GET /readyz`: whether the server accepts requests."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 - as ASGI calls it
        """Answer 200 or 503."""
        trouble = await self._gateway.service.sessions.store_trouble() if self._gateway.ready else NOT_READY
        if trouble:
            await send_response(send, 503, refusal(503, trouble))
        else:
            await send_response(send, 200, b"ready", b"text/plain")


class DocumentEndpoint:
    """`GET /openrpc.json`: the OpenRPC document, for callers who may use `/rpc`."""

    media_type = b"application/json"

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def content(self, owner: str) -> bytes:  # noqa: ARG002 - the document is the same for all
        """Get the response body."""
        return dumps(self._gateway.service.document())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 - as ASGI calls it
        """Answer with the content."""
        headers = dict(scope["headers"])
        try:
            _reject_duplicates(scope, headers)
            owner = self._gateway.gate.owner(headers)
            self._gateway.check_ready()
        except HttpRefusedError as refused:
            await send_response(send, refused.status, refusal(refused.status, str(refused)))
            return
        await send_response(send, 200, await self.content(owner), self.media_type)


class MetricsEndpoint(DocumentEndpoint):
    """`GET /metrics`: Prometheus metrics, for callers who may use `/rpc`."""

    media_type = b"text/plain; version=0.0.4; charset=utf-8"

    async def content(self, owner: str) -> bytes:
        """See `DocumentEndpoint.content`."""
        service = self._gateway.service
        try:
            sessions = await service.sessions.count()
        except (InternalError, RequestError):  # metrics matter most when the store can't be reached
            sessions = None
        return service.metrics.exposition(sessions, calls=self._gateway.gate.may_see_calls(owner))


def _reject_duplicates(scope: Scope, headers: dict[bytes, bytes]) -> None:
    """Reject duplicated security-relevant headers; a proxy may pick the other one."""
    if len(headers) == len(scope["headers"]):
        return
    names = [name for name, _ in scope["headers"]]
    duplicated = next((name for name in SECURITY_HEADERS if names.count(name) > 1), None)
    if duplicated is not None:
        raise HttpRefusedError(400, f"The header {duplicated.decode()} is duplicated: send it once.")


async def _body(headers: dict[bytes, bytes], receive: Receive, max_bytes: int) -> bytes:
    media_type = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
    if media_type != b"application/json":
        raise HttpRefusedError(415, "Send the header Content-Type: application/json.")
    too_large = HttpRefusedError(
        413, f"The body is larger than {max_bytes} bytes: send less, or raise TOOLPACK_MAX_BODY_BYTES."
    )
    length = headers.get(b"content-length", b"")
    if length.isdigit() and int(length) > max_bytes:
        raise too_large
    message = await receive()
    body: bytes = message.get("body", b"")
    if not message.get("more_body", False):
        if len(body) > max_bytes:
            raise too_large
        return body
    chunks, size = [body], len(body)
    while message.get("more_body", False):
        message = await receive()
        if message["type"] == "http.disconnect":
            raise HttpRefusedError(400, "The body was cut off.")
        chunks.append(message.get("body", b""))
        size += len(chunks[-1])
        if size > max_bytes:
            raise too_large
    return b"".join(chunks)
