"""The HTTP application: the routes from paths to endpoints.

A request that reaches JSON-RPC is answered 200 with a JSON-RPC body. Every other gets its HTTP status and a
body of the same shape that says what to do.
"""

from collections.abc import Collection, Mapping
from pkgutil import resolve_name
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request, cookie_parser
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from toolpack_server.base.companions import missing_protocols
from toolpack_server.base.errors import HttpRefusedError, StartError
from toolpack_server.observability.request_ids import accept_request_id
from toolpack_server.observability.trace_context import accept_trace_headers, trace_context
from toolpack_server.web.auth import check_exposure
from toolpack_server.web.bodies import HEADERS, check_headers
from toolpack_server.web.console import console_files, console_routes
from toolpack_server.web.endpoints import AgentEndpoint, Endpoint, Gateway, RpcEndpoint
from toolpack_server.web.refusals import refusal_response, refuse, refused
from toolpack_server.web.status import status_routes
from toolpack_server.wiring.service import Service

KEY = "/{key}"  # with which the path of agents' addresses ends
REMEMBERED_PATHS, MAX_REMEMBERED_PATH = 1000, 200  # how many that belong to features, and of how many characters


def create_app(service: Service) -> Starlette:
    """Create the application.

    Raises:
        StartError: It can't serve as the settings want it, or two features want the same path.
    """
    check_exposure(service.settings)
    gateway = Gateway(service)
    endpoints: dict[str, Endpoint] = {"/rpc": RpcEndpoint(gateway), "/agents/{key}": AgentEndpoint(gateway)}
    routes = [
        *(Route(path, endpoint, methods=endpoint.verbs) for path, endpoint in endpoints.items()),
        *status_routes(gateway),
    ]
    if service.settings.console:
        routes += console_routes(gateway.gate, console_files(service.context.record_kinds, service.features))
    taken = dict.fromkeys({route.path for route in routes}, "the server itself")
    for feature in service.features:
        for path, name in feature.routes.items():
            if path in taken:
                raise StartError(
                    f"The path {path} of the feature {feature.name!r} belongs to {taken[path]}, too: leave the feature "
                    f"out by TOOLPACK_FEATURES=-{feature.name}."
                )
            taken[path] = f"the feature {feature.name!r}"
            endpoints[path] = endpoint = resolve_name(name)(gateway)
            routes.append(Route(path, endpoint, methods=endpoint.verbs))
    app = Application(
        lifespan=gateway.lifespan,
        exception_handlers={HTTPException: _not_routed, HttpRefusedError: _refused},
        routes=routes,
    )
    app.router.redirect_slashes = False
    app.state.gateway = gateway
    app.rpc = endpoints["/rpc"]
    app.doors = {path.removesuffix(KEY): endpoint for path, endpoint in endpoints.items() if path.endswith(KEY)}
    app.of_features = {path for feature in service.features for path in feature.routes if not path.endswith(KEY)}
    app.of_cookies = {
        cookie: {*paths, *feature.routes} for feature in service.features for cookie, paths in feature.cookies.items()
    }
    app.missing = missing_protocols()
    refused.doors = [*app.doors]
    return app


class Application(Starlette):
    """Starlette, with a shortcut for the paths of nearly all requests.

    A POST to `/rpc`, to an agent's path or to any path of a feature bypasses the middleware and the router, which would
    take as long as the call itself.
    """

    rpc: ASGIApp
    doors: Mapping[str, Endpoint]  # the endpoints of the agents' paths, by what stands before the key
    of_features: Collection[str]  # the paths of features, without those of agents: what they hold is no key
    missing: str  # how to install protocols that aren't installed

    of_cookies: Mapping[str, Collection[str]]  # the only paths for requests with a cookie, by the cookie's name

    def __init__(self, **how: Any) -> None:
        super().__init__(**how)
        self._routed: dict[tuple[str, str], tuple[ASGIApp, dict[str, Any]]] = {}  # by method and path
        self._allowed: dict[tuple[str, str, str], bool] = {}  # by cookie, method and path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Give a request its id and check its headers, once for all endpoints, then find its endpoint."""
        if scope["type"] != "http":
            await super().__call__(scope, receive, send)
            return
        headers = scope[HEADERS] = dict(scope["headers"])
        request_id = accept_request_id(headers.get(b"x-request-id"))
        # A pipelined request has the context of the one before it.
        if b"traceparent" in headers or trace_context.get() is not None:
            accept_trace_headers(scope["headers"])
        try:
            check_headers(scope, headers)
            if b"cookie" in headers:
                self._check_cookies(scope)
        except HttpRefusedError as error:
            await refuse(send, error, scope, request_id.encode())
            return
        endpoint = self._shortcut(scope)
        if endpoint is None:
            await super().__call__(scope, receive, send)
            return
        try:
            await endpoint(scope, receive, send)
        except (HTTPException, HttpRefusedError) as error:
            refusal = _not_routed if isinstance(error, HTTPException) else _refused
            await (await refusal(Request(scope), error))(scope, receive, send)

    def _check_cookies(self, scope: Scope) -> None:
        """Refuse a request with the cookie of a feature at a path that isn't the feature's own."""
        cookies = cookie_parser(
            ";".join(value.decode("latin-1") for name, value in scope["headers"] if name == b"cookie")
        )
        for cookie, paths in self.of_cookies.items():
            if cookie not in cookies:
                continue
            asked = cookie, scope["method"], scope["path"]
            allowed = self._allowed.get(asked)
            if allowed is None:
                allowed = self._belongs(scope, paths)
                if len(self._allowed) >= REMEMBERED_PATHS:
                    self._allowed.clear()
                if len(scope["path"]) <= MAX_REMEMBERED_PATH:
                    self._allowed[asked] = allowed
            if not allowed:
                raise HttpRefusedError(
                    403, f"A request with the cookie {cookie} may not use this path: send it without the cookie."
                )

    def _belongs(self, scope: Scope, paths: Collection[str]) -> bool:
        """Return whether a request's path is one of these, and no other route's with any method."""
        for route in self.routes:
            match, _ = route.matches(scope)
            if match is Match.NONE:
                continue
            if getattr(route, "path", None) not in paths:
                return False
            if match is Match.FULL:
                return True
        return False

    def _shortcut(self, scope: Scope) -> ASGIApp | None:
        path: str = scope["path"]
        if scope["method"] == "POST":
            if path == "/rpc":
                return self.rpc
            before, _, key = path.rpartition("/")
            endpoint = self.doors.get(before) if key else None
            if endpoint is not None:
                scope["path_params"] = {"key": key}
                return endpoint
        return self._of_feature(scope, path)

    def _of_feature(self, scope: Scope, path: str) -> ASGIApp | None:
        """Get the endpoint of a feature to which the router would give a request; where it does is remembered."""
        asked = scope["method"], path
        if asked not in self._routed:
            route, found = next(
                ((each, more) for each in self.routes for match, more in [each.matches(scope)] if match is Match.FULL),
                (None, {}),
            )
            if not isinstance(route, Route) or route.path not in self.of_features or len(path) > MAX_REMEMBERED_PATH:
                return None
            if len(self._routed) >= REMEMBERED_PATHS:
                self._routed.clear()
            self._routed[asked] = route.app, found["path_params"]
        endpoint, scope["path_params"] = self._routed[asked]
        scope["app"] = self
        return endpoint


async def _not_routed(request: Request, error: Exception) -> Response:
    status = getattr(error, "status_code", 404)
    headers = getattr(error, "headers", None)
    doors: Mapping[str, Endpoint] = request.app.doors
    door = doors.get(request.url.path.rstrip("/"))
    if status == 404:  # noqa: PLR2004 - an HTTP status
        keys = " or ".join(f"{path}/<key>" for path in doors)
        remedy = f"There is nothing at this path: POST to /rpc, or to an agent's {keys}. {request.app.missing}".rstrip()
        remedy = (door and door.without_key) or remedy
    elif status == 405:  # noqa: PLR2004
        remedy = f"This path doesn't take {request.method}: use {(headers or {}).get('Allow', 'POST')}."
    else:
        remedy = "This request is not supported here."
    refused.write(status, remedy, request.scope)
    return refusal_response(status, remedy, headers)


async def _refused(request: Request, error: Exception) -> Response:
    status = getattr(error, "status", 500)
    refused.write(status, str(error), request.scope)
    return refusal_response(status, str(error))
