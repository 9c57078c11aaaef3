"""Requests of commands, to the server of `--url` or to a service in this process.

A token is sent only to the server of `--url`, because redirects, and paths that name another host, aren't followed. The
size of responses is limited, and results are checked. The requests are sent with `urllib`, because commands must work
without the HTTP library of the extra `client`.
"""

import asyncio
import concurrent.futures
import functools
import http.client
import json
import re
import threading
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

import click

from toolpack_server.base.errors import ReplyError, RequestError

if TYPE_CHECKING:
    from toolpack_server.rpc.caller import Caller
    from toolpack_server.wiring.service import Service

REDIRECTS = {301, 302, 303, 307, 308}
UNAUTHORIZED = 401
MAX_REPLY_BYTES = 2**28  # four times the largest response of a server with default settings


class Send(Protocol):
    """Sends a request and returns its result."""

    def __call__(
        self, method: str, params: dict[str, Any], agent_path: str | None = None, *, shape: Any = None
    ) -> Awaitable[Any]:
        """Send a request as a client, or with `agent_path` as the agent of a session.

        Args:
            method: The JSON-RPC method.
            params: Its parameters.
            agent_path: Path of an agent's address.
            shape: Type that the result is checked against. The default is the type with all features' additions. If the
                core's type is enough, pass it, because loading the default takes longer than the request.
        """


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Follows no redirects, because urllib would send all headers, including the token, to the other server."""

    def redirect_request(self, *_args: Any) -> None:
        """Return None: don't follow the redirect."""


def check_token(token: str | None) -> None:
    """Raise `UsageError` if a header can't carry a token."""
    if token and not re.fullmatch("[!-~]+", token):
        raise click.UsageError("--token, or TOOLPACK_TOKEN, must consist of visible ASCII characters.")


def remote(url: str, token: str | None) -> Send:
    """Return a function that sends requests to a server.

    The function raises `ClickException` if the server can't be reached or answers with an error.

    Raises:
        UsageError: The URL or the token is malformed.
    """
    if not url.startswith(("http://", "https://")):
        raise click.UsageError("--url is not of the form http://host:port.")
    check_token(token)
    opener = urllib.request.build_opener(_NoRedirects)
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})

    def ask(method: str, params: dict[str, Any], agent_path: str | None, shape: Any) -> Any:
        """Send one request and block until its result arrives. If `shape` is None, the method's own type checks it."""
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode()
        if agent_path is not None and not agent_path.startswith("/"):
            raise click.ClickException(f"The agent_path that {url} sent isn't a path: is this a Toolpack Server?")
        address = f"{url.rstrip('/')}{agent_path or '/rpc'}"
        shape = shape or _results()[bool(agent_path)][method]
        request = urllib.request.Request(address, body, headers)  # noqa: S310 - checked above
        try:
            with opener.open(request) as reply:
                return _checked(url, method, shape, _read(reply))
        except urllib.error.HTTPError as error:
            with error:
                if error.code in REDIRECTS:
                    target = error.headers.get("Location", "another address")
                    raise click.ClickException(f"{url} redirects to {target}: give the server's own address.") from None
                if error.code == UNAUTHORIZED:
                    why = f"{url} requires a valid token: give one with --token, or as TOOLPACK_TOKEN."
                    raise click.ClickException(why) from None
                return _checked(url, method, shape, _read(error))
        except (OSError, http.client.HTTPException) as error:
            why = getattr(error, "reason", None) or str(error) or type(error).__name__
            raise click.ClickException(f"{url} can't be reached: {why}. Is the server running?") from None

    async def send(method: str, params: dict[str, Any], agent_path: str | None = None, *, shape: Any = None) -> Any:
        return await _in_thread(lambda: ask(method, params, agent_path, shape))

    return send


@functools.cache
def _results() -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Return the result types of clients' methods and of agents' methods, each by the method's name."""
    from toolpack_server.rpc.method import agents_methods, clients_methods  # noqa: PLC0415 - imports the whole server
    from toolpack_server.wiring.installed import load_features  # noqa: PLC0415 - likewise
    from toolpack_server.wiring.service import all_methods  # noqa: PLC0415 - likewise

    methods = all_methods(load_features())
    clients, agents = (
        {method.declared.name: method.declared.result for method in some}
        for some in (clients_methods(methods), agents_methods(methods))
    )
    return clients, agents


def _checked(url: str, method: str, shape: Any, reply: bytes) -> Any:
    """Return the result of a reply, checked against its type."""
    from pydantic import ValidationError  # noqa: PLC0415 - only needed for remote servers

    try:
        result = _result(reply)
        _adapter(shape).validate_python(result)
    except ValidationError as error:
        problem = error.errors(include_url=False, include_context=False, include_input=False)[0]
        location = ".".join(map(str, ["result", *problem["loc"]]))
        raise click.ClickException(
            f"The answer of {url} to {method} doesn't have the expected form ({location}: {problem['msg']}): is it a "
            "Toolpack Server of the same version?"
        ) from None
    return result


@functools.cache  # building an adapter takes longer than a request
def _adapter(shape: Any) -> Any:
    from pydantic import TypeAdapter  # noqa: PLC0415 - likewise

    return TypeAdapter(shape)


async def _in_thread(work: Callable[[], Any]) -> Any:
    """Run blocking work in a daemon thread. Unlike a pool's thread, it doesn't keep the command from ending."""
    future = concurrent.futures.Future[Any]()
    future.set_running_or_notify_cancel()  # can't be cancelled from now on, so `set_result` never raises

    def do() -> None:
        try:
            future.set_result(work())
        except Exception as error:  # noqa: BLE001 - raised where the future is awaited
            future.set_exception(error)

    threading.Thread(target=do, daemon=True).start()
    return await asyncio.wrap_future(future)


def local(service: "Service", caller: "Caller") -> Send:
    """Return a function that sends requests to a service in this process. It raises `ClickException` for errors."""

    async def send(method: str, params: dict[str, Any], agent_path: str | None = None, *, shape: Any = None) -> Any:  # noqa: ARG001 - the signature of `Send`
        try:
            sender = caller if agent_path is None else await service.agent(agent_path.rpartition("/")[2])
            return await service.request(sender, method, params)
        except ReplyError as error:
            raise _refused(error.message, error.data) from None
        except RequestError as error:  # no session has this path
            raise _refused(str(error), {}) from None

    return send


def _read(reply: Any) -> bytes:
    """Return the body of a reply.

    Raises:
        ClickException: The body is larger than `MAX_REPLY_BYTES`.
    """
    # If the length is known, only read() without a limit raises when bytes are missing.
    is_bounded = reply.length is not None and reply.length <= MAX_REPLY_BYTES
    content: bytes = reply.read() if is_bounded else reply.read(MAX_REPLY_BYTES + 1)
    if len(content) > MAX_REPLY_BYTES:
        raise click.ClickException(f"The answer is longer than {MAX_REPLY_BYTES} bytes: is this a Toolpack Server?")
    return content


def _result(reply: bytes) -> Any:
    """Return the result in a reply.

    Raises:
        ClickException: The reply has an error, or isn't a JSON-RPC response.
    """
    try:
        answer = json.loads(reply)
    except (ValueError, RecursionError):
        raise click.ClickException("The answer isn't JSON: is this a Toolpack Server?") from None
    match answer:
        case {"error": {"message": str(message), **more}}:
            data = more.get("data")
            raise _refused(message, data if isinstance(data, dict) else {})
        case {"result": result}:
            return result
    raise click.ClickException("The answer isn't a JSON-RPC response: is this a Toolpack Server?")


def _refused(message: str, data: dict[str, Any]) -> click.ClickException:
    return click.ClickException(f"{message}: {data.get('detail', '')}".rstrip(": "))
