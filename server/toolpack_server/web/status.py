"""What is asked by GET: whether the server lives and is ready, its metrics, and the document of its methods.

An endpoint raises what the application answers as a refusal.
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
    service = gateway.service

    def owner(request: Request) -> str:
        """Get the owner of a request to what only callers of `/rpc` may see."""
        found = gateway.gate.owner(dict(request.scope["headers"]))
        gateway.check_ready()
        return found

    async def healthz(_request: Request) -> Response:
        return _answer(b"ok", "text/plain")

    async def readyz(_request: Request) -> Response:
        takes_more = gateway.ready and not gateway.leaving
        ready, problem = await service.sessions.ping_store() if takes_more else (False, NOT_READY)
        return _answer(f"ready {problem}".strip().encode(), "text/plain") if ready else refusal_response(503, problem)

    async def metrics(request: Request) -> Response:
        owner(request)
        try:
            sessions = await service.sessions.count()
        except (InternalError, RequestError):  # metrics matter most when the store can't be reached
            sessions = None
        shown = exposition(service.metrics, sessions, calls=not gateway.gate.several)
        return _answer(shown, "text/plain; version=0.0.4; charset=utf-8")

    async def openrpc(request: Request) -> Response:
        owner(request)
        return _answer(dumps(service.document()), "application/json")

    found = {"/healthz": healthz, "/readyz": readyz, "/metrics": metrics, "/openrpc.json": openrpc}
    return [Route(path, endpoint, methods=["GET"]) for path, endpoint in found.items()]


def _answer(body: bytes, media_type: str) -> Response:
    return Response(body, headers={"content-type": media_type})  # as it is: Starlette would add a charset
