"""HTTP application: routes from paths to endpoints.

A request that reaches JSON-RPC gets the status 200, even if its response is an error. A request that is refused earlier
gets another HTTP status, and its body is a JSON-RPC error that says what to do.
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

KEY = "/{key}"  # end of the paths of agents' endpoints
MAX_CACHED_PATHS = 1000  # max number of cached routes
MAX_PATH_LENGTH = 200  # max characters of a path with a cached route


def create_app(service: Service) -> Starlette:
    """Create the application.

    Raises:
        StartError: A setting is wrong or unsafe, or two features have different endpoints at the same path.
    """
    check_exposure(service.settings)
    gateway = Gateway(service)
    endpoints: dict[str, Endpoint] = {"/rpc": RpcEndpoint(gateway), "/agents/{key}": AgentEndpoint(gateway)}
    routes = [
        *(Route(path, endpoint, methods=endpoint.verbs) for path, endpoint in endpoints.items()),
        *status_routes(gateway),
    ]
    if service.settings.console:
        routes += console_routes(
            gateway.gate, console_files(service.context.record_kinds, service.features, service.settings.isolation)
        )
    path_owners = dict.fromkeys({route.path for route in routes}, "the server itself")
    endpoint_names: dict[str, str] = {}  # by the paths of features; several features can share an endpoint
    for feature in service.features:
        for path, name in feature.routes.items():
            if endpoint_names.get(path) == name:
                continue
            if path in path_owners:
                raise StartError(
                    f"The path {path} of the feature {feature.name!r} is already used by {path_owners[path]}: "
                    f"leave the feature out with TOOLPACK_FEATURES=-{feature.name}."
                )
            endpoint_names[path] = name
            path_owners[path] = f"the feature {feature.name!r}"
            endpoints[path] = endpoint = resolve_name(name)(gateway)
            routes.append(Route(path, endpoint, methods=endpoint.verbs))
    app = Application(
        lifespan=gateway.lifespan,
        exception_handlers={HTTPException: _unrouted_response, HttpRefusedError: _refusal},
        routes=routes,
    )
    app.router.redirect_slashes = False
    app.state.gateway = gateway
    app.rpc = endpoints["/rpc"]
    app.key_routes = {path.removesuffix(KEY): endpoint for path, endpoint in endpoints.items() if path.endswith(KEY)}
    app.feature_paths = {path for feature in service.features for path in feature.routes if not path.endswith(KEY)}
    app.cookie_paths = {
        cookie: {*paths, *feature.routes} for feature in service.features for cookie, paths in feature.cookies.items()
    }
    app.missing = missing_protocols()
    refused.key_routes = [*app.key_routes]
    return app


class Application(Starlette):
    """Starlette, with a shortcut for the paths of nearly all requests.

    A POST to `/rpc`, to an agent's path or to a feature's path bypasses the middleware and the router, because they
    would take as long as the call itself.

    Attributes:
        rpc: The endpoint of `/rpc`.
        key_routes: The endpoints of paths that end with a key, by the part of the path before the key.
        feature_paths: The paths of features that don't end with a key.
        missing: Sentence for 404 responses that says how to install the protocols that aren't installed.
        cookie_paths: The only paths that accept a cookie, by the cookie's name.
    """

    rpc: ASGIApp
    key_routes: Mapping[str, Endpoint]
    feature_paths: Collection[str]
    missing: str
    cookie_paths: Mapping[str, Collection[str]]

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        # Cached endpoints and path parameters, by method and path.
        self._routed: dict[tuple[str, str], tuple[ASGIApp, dict[str, Any]]] = {}
        # Cached results of `_is_path_of`, by cookie, method and path.
        self._allowed: dict[tuple[str, str, str], bool] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Set a request's id, check its headers, and pass it to its endpoint."""
        if scope["type"] != "http":
            await super().__call__(scope, receive, send)
            return
        headers = scope[HEADERS] = dict(scope["headers"])
        request_id = accept_request_id(headers.get(b"x-request-id"))
        # A pipelined request begins with the trace context of the previous request, so it is replaced here.
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
            refusal = _unrouted_response if isinstance(error, HTTPException) else _refusal
            await (await refusal(Request(scope), error))(scope, receive, send)

    def _check_cookies(self, scope: Scope) -> None:
        """Refuse a request with a feature's cookie to a path that doesn't accept this cookie."""
        cookies = cookie_parser(
            ";".join(value.decode("latin-1") for name, value in scope["headers"] if name == b"cookie")
        )
        for cookie, paths in self.cookie_paths.items():
            if cookie not in cookies:
                continue
            key = cookie, scope["method"], scope["path"]
            allowed = self._allowed.get(key)
            if allowed is None:
                allowed = self._is_path_of(scope, paths)
                if len(self._allowed) >= MAX_CACHED_PATHS:
                    self._allowed.clear()
                if len(scope["path"]) <= MAX_PATH_LENGTH:
                    self._allowed[key] = allowed
            if not allowed:
                raise HttpRefusedError(
                    403, f"A request with the cookie {cookie} can't use this path: send it without the cookie."
                )

    def _is_path_of(self, scope: Scope, paths: Collection[str]) -> bool:
        """Return whether the router passes a request to one of these paths.

        If a route with another path matches first, return False, even if that route doesn't accept the request's
        method.
        """
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
        """Return the endpoint of a request that bypasses the middleware and the router, or None for any other."""
        path: str = scope["path"]
        if scope["method"] == "POST":
            if path == "/rpc":
                return self.rpc
            before, _, key = path.rpartition("/")
            endpoint = self.key_routes.get(before) if key else None
            if endpoint is not None:
                scope["path_params"] = {"key": key}
                return endpoint
        return self._feature_endpoint(scope, path)

    def _feature_endpoint(self, scope: Scope, path: str) -> ASGIApp | None:
        """Return the feature's endpoint for a request, or None if no feature has one. Routes are cached."""
        key = scope["method"], path
        if key not in self._routed:
            matches = (
                (route, child_scope)
                for route in self.routes
                for match, child_scope in [route.matches(scope)]
                if match is Match.FULL
            )
            route, child_scope = next(matches, (None, {}))
            if not isinstance(route, Route) or route.path not in self.feature_paths or len(path) > MAX_PATH_LENGTH:
                return None
            if len(self._routed) >= MAX_CACHED_PATHS:
                self._routed.clear()
            self._routed[key] = route.app, child_scope["path_params"]
        endpoint, scope["path_params"] = self._routed[key]
        scope["app"] = self
        return endpoint


async def _unrouted_response(request: Request, error: Exception) -> Response:
    """Return the response for an error that the router raised, usually 404 or 405."""
    status = getattr(error, "status_code", 404)
    headers = getattr(error, "headers", None)
    if status == 404:  # noqa: PLR2004 - an HTTP status
        keys = " or ".join(f"{path}/<key>" for path in request.app.key_routes)
        remedy = f"There is nothing at this path: POST to /rpc, or to an agent's {keys}. {request.app.missing}".rstrip()
    elif status == 405:  # noqa: PLR2004
        remedy = f"This path doesn't accept {request.method}: use {(headers or {}).get('Allow', 'POST')}."
    else:
        remedy = "This request is not supported here."
    refused.write(status, remedy, request.scope)
    return refusal_response(status, remedy, headers)


async def _refusal(request: Request, error: Exception) -> Response:
    """Log an `HttpRefusedError` and return its response."""
    status = getattr(error, "status", 500)
    refused.write(status, str(error), request.scope)
    return refusal_response(status, str(error))
