"""Status endpoints: health, readiness, metrics and the OpenRPC document.

To refuse a request they raise `HttpRefusedError`, which the application turns into a response.
"""

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from toolpack_server.base.errors import InternalError, RequestError
from toolpack_server.jsonio.strict import dumps
from toolpack_server.observability.exposition import exposition
from toolpack_server.web.bodies import NOT_READY
from toolpack_server.web.endpoints import Gateway
from toolpack_server.web.refusals import refusal_response


def status_routes(gateway: Gateway) -> list[Route]:
    """Return the routes of `/healthz`, `/readyz`, `/metrics` and `/openrpc.json`. The last two need a token."""
    service = gateway.service

    def owner(request: Request) -> str:
        """Return the owner of a request. The request needs the same token as a request to `/rpc`."""
        owner = gateway.gate.owner(dict(request.scope["headers"]))
        gateway.check_ready()
        return owner

    async def healthz(_request: Request) -> Response:
        return _answer(b"ok", "text/plain")

    async def readyz(_request: Request) -> Response:
        is_serving = gateway.ready and not gateway.leaving
        ready, problem = await service.sessions.ping_store() if is_serving else (False, NOT_READY)
        return _answer(b"ready", "text/plain") if ready else refusal_response(503, problem)

    async def metrics(request: Request) -> Response:
        """Return the metrics for Prometheus. If the store can't be reached, leave out the number of sessions."""
        owner(request)
        try:
            sessions = await service.sessions.count()
        except (InternalError, RequestError):  # operators need the other metrics most when the store can't be reached
            sessions = None
        text = exposition(service.metrics, sessions, calls=not gateway.gate.several)
        return _answer(text, "text/plain; version=0.0.4; charset=utf-8")

    async def openrpc(request: Request) -> Response:
        owner(request)
        return _answer(dumps(service.document()), "application/json")

    endpoints = {"/healthz": healthz, "/readyz": readyz, "/metrics": metrics, "/openrpc.json": openrpc}
    return [Route(path, endpoint, methods=["GET"]) for path, endpoint in endpoints.items()]


def _answer(body: bytes, media_type: str) -> Response:
    return Response(body, headers={"content-type": media_type})  # Starlette would add a charset to media_type=
