"""Requests of commands: to a server that the user has named with `--url`, or to a service in this process.

A token is sent to that server and to no other, so neither redirects nor paths that name another host are
followed. What it answers is checked here, so no command meets a result of another shape, or one without an end. The
standard library sends requests, because the command works without the Python client's package.
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
MAX_REPLY_BYTES = 2**28  # four times what a server sends unless its settings say otherwise


class Send(Protocol):
    """Sends a request, by method and parameters, and gets its result."""

    def __call__(
        self, method: str, params: dict[str, Any], agent_path: str | None = None, *, shape: Any = None
    ) -> Awaitable[Any]:
        """Send it as a client, or to the address of a session that a path names.

        Args:
            shape: The type as which a server's result is read, if that is enough: to know what all features make of a
                method takes longer than its request.
        """


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Leaves redirects to the caller: urllib would send all headers, the token too, to any other server."""

    def redirect_request(self, *_args: Any) -> None:
        """Follow none."""


def remote(url: str, token: str | None) -> Send:
    """Get a function that sends requests to a server.

    Raises:
        UsageError: The URL isn't that of a server.
        ClickException: When it is used: the server can't be reached, or answers with an error.
    """
    if not url.startswith(("http://", "https://")):
        raise click.UsageError("--url is not of the form http://host:port.")
    if token and not re.fullmatch("[!-~]+", token):
        raise click.UsageError("--token, or TOOLPACK_TOKEN, has other characters than visible ASCII: give a token.")
    opener = urllib.request.build_opener(_NoRedirects)
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})

    def ask(method: str, params: dict[str, Any], agent_path: str | None, shape: Any) -> Any:
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode()
        if agent_path is not None and not agent_path.startswith("/"):
            raise click.ClickException(f"{url} has named an agent_path that is no path: is this a Toolpack Server?")
        place = f"{url.rstrip('/')}{agent_path or '/rpc'}"
        shape = shape or _results()[bool(agent_path)][method]
        request = urllib.request.Request(place, body, headers)  # noqa: S310 - checked above
        try:
            with opener.open(request) as reply:
                return _checked(url, method, shape, _read(reply))
        except urllib.error.HTTPError as error:
            with error:
                if error.code in REDIRECTS:
                    place = error.headers.get("Location", "another address")
                    raise click.ClickException(f"{url} redirects to {place}: give the server's own address.") from None
                if error.code == UNAUTHORIZED:
                    why = f"{url} asks for a token: give one that it knows, with --token or as TOOLPACK_TOKEN."
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
    """Get the types of the results of clients' methods and of agents', by their names."""
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
    """Get the result of a reply, which has this shape."""
    from pydantic import ValidationError  # noqa: PLC0415 - what sends to a service in this process needs none of it

    try:
        result = _result(reply)
        _adapter(shape).validate_python(result)
    except ValidationError as error:
        problem = error.errors(include_url=False, include_context=False, include_input=False)[0]
        place = ".".join(map(str, ["result", *problem["loc"]]))
        raise click.ClickException(
            f"{url} answers {method} in another way than this version ({place}: {problem['msg']}): is it a Toolpack "
            "Server of the same version?"
        ) from None
    return result


@functools.cache  # to build one takes longer than a request
def _adapter(shape: Any) -> Any:
    from pydantic import TypeAdapter  # noqa: PLC0415 - likewise

    return TypeAdapter(shape)


async def _in_thread(work: Callable[[], Any]) -> Any:
    """Do work that blocks; its thread doesn't keep the command from ending, as one of a pool would."""
    future = concurrent.futures.Future[Any]()
    future.set_running_or_notify_cancel()  # it may be set even if nobody waits any more

    def do() -> None:
        try:
            future.set_result(work())
        except Exception as error:  # noqa: BLE001 - for whoever waits
            future.set_exception(error)

    threading.Thread(target=do, daemon=True).start()
    return await asyncio.wrap_future(future)


def local(service: "Service", caller: "Caller") -> Send:
    """Get a function that sends requests to a service in this process.

    Raises:
        ClickException: When it is used: the request was refused.
    """

    async def send(method: str, params: dict[str, Any], agent_path: str | None = None, *, shape: Any = None) -> Any:  # noqa: ARG001 - it is as declared
        try:
            sender = caller if agent_path is None else await service.agent(agent_path.rpartition("/")[2])
            return await service.request(sender, method, params)
        except ReplyError as error:
            raise _refused(error.message, error.data) from None
        except RequestError as error:  # the path leads to no session
            raise _refused(str(error), {}) from None

    return send


def _read(reply: Any) -> bytes:
    # Of a length that it knows, a read of so many bytes at most doesn't notice that some are missing.
    is_bounded = reply.length is not None and reply.length <= MAX_REPLY_BYTES
    content: bytes = reply.read() if is_bounded else reply.read(MAX_REPLY_BYTES + 1)
    if len(content) > MAX_REPLY_BYTES:
        raise click.ClickException(f"the answer is longer than {MAX_REPLY_BYTES} bytes: is this a Toolpack Server?")
    return content


def _result(reply: bytes) -> Any:
    try:
        answer = json.loads(reply)
    except (ValueError, RecursionError):
        raise click.ClickException("the answer is not JSON: is this a Toolpack Server?") from None
    match answer:
        case {"error": {"message": str(message), **more}}:
            data = more.get("data")
            raise _refused(message, data if isinstance(data, dict) else {})
        case {"result": result}:
            return result
    raise click.ClickException("the answer is not one of JSON-RPC: is this a Toolpack Server?")


def _refused(message: str, data: dict[str, Any]) -> click.ClickException:
    return click.ClickException(f"{message}: {data.get('detail', '')}".rstrip(": "))
