"""`toolpack-server call`: runs one function, in this process or on a server.

The rule: both send the same JSON-RPC requests. A token is sent to the server that the user named and to no other, so
redirects aren't followed.
"""

import asyncio
import json
import sys
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import click

from server.cli.options import packs_options
from server.execution.call import Outcome
from server.packs.catalog import Catalog
from server.packs.loading import load_catalog
from server.rpc.method import Caller
from server.service import Service
from server.sessions.calls import CallRequest
from server.settings import Settings, load_settings


@click.command()
@packs_options
@click.option("--url", help="Server to call, like http://127.0.0.1:8000; default: run the call in this process.")
@click.option("--session", help="Session to call in; default: a new one, closed afterwards.")
@click.option("--token", envvar="TOOLPACK_TOKEN", help="Bearer token for the server.")
@click.argument("function")
@click.argument("arguments", metavar="NAME=VALUE...", nargs=-1)
def call(
    pack_dir: tuple[Path, ...],
    packs: str | None,
    url: str | None,
    session: str | None,
    token: str | None,
    function: str,
    arguments: tuple[str, ...],
) -> None:
    """Run one FUNCTION; values are JSON, else strings."""
    if session and not url:
        raise click.UsageError("--session needs --url: sessions are kept by a server.")
    kwargs = dict(map(_argument, arguments))
    if url:
        envelope = asyncio.run(_call(_remote(url, token), session, None, function, kwargs))
    else:
        settings = load_settings(
            store="memory:",
            log_calls="off",
            log_level="warning",
            compare_read_only=True,
            pack_dir=pack_dir or None,
            packs=packs,
        )
        catalog = load_catalog(settings.pack_dir, settings.packs)
        toolpack, function = catalog.find(function)
        envelope = asyncio.run(_call_here(settings, catalog, [toolpack] if toolpack else None, function, kwargs))
    if envelope["error"] is not None:
        click.echo(envelope["error"], err=True)
        sys.exit(1)
    click.echo(json.dumps(envelope["result"], indent=2, ensure_ascii=False))


REDIRECTS = {301, 302, 303, 307, 308}

Send = Callable[[str, dict[str, Any]], Awaitable[Any]]


async def _call(
    send: Send, session: str | None, toolpacks: list[str] | None, function: str, kwargs: dict[str, Any]
) -> Any:
    session_id = session or (await send("create_session", {"toolpacks": toolpacks}))["session_id"]
    try:
        return await send("run_function", {"session_id": session_id, "function": function, "kwargs": kwargs})
    finally:
        if not session:
            await send("close_session", {"session_id": session_id})


def _show_traceback(_request: CallRequest, outcome: Outcome) -> None:
    if outcome.traceback:
        click.echo(f"{outcome.traceback}\n", err=True)


async def _call_here(
    settings: Settings, catalog: Catalog, toolpacks: list[str] | None, function: str, kwargs: dict[str, Any]
) -> Any:
    service = Service(settings, catalog, on_call=_show_traceback)

    async def send(method: str, params: dict[str, Any]) -> Any:
        return _result(await service.rpc.answer(Caller(), _request(method, params)) or b"null")

    return await _call(send, None, toolpacks, function, kwargs)


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Leaves redirects to the caller: urllib would send all headers, the token too, to any other server."""

    def redirect_request(self, *_args: Any) -> None:
        """Follow none."""


def _remote(url: str, token: str | None) -> Send:
    opener = urllib.request.build_opener(_NoRedirects)
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})

    async def send(method: str, params: dict[str, Any]) -> Any:
        if not url.startswith(("http://", "https://")):
            raise click.UsageError("--url is not of the form http://host:port.")
        request = urllib.request.Request(f"{url.rstrip('/')}/rpc", _request(method, params), headers)  # noqa: S310
        try:
            with opener.open(request) as reply:
                return _result(reply.read())
        except urllib.error.HTTPError as error:
            with error:
                if error.code in REDIRECTS:
                    place = error.headers.get("Location", "another address")
                    raise click.ClickException(f"{url} redirects to {place}: give the server's own address.") from None
                return _result(error.read())
        except urllib.error.URLError as error:
            raise click.ClickException(f"{url} can't be reached: {error.reason}. Is the server running?") from None

    return send


def _request(method: str, params: dict[str, Any]) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode()


def _result(reply: bytes) -> Any:
    try:
        answer = json.loads(reply)
    except ValueError:
        raise click.ClickException("the answer is not JSON: is this a Toolpack Server?") from None
    if "error" in answer:
        error = answer["error"]
        raise click.ClickException(f"{error['message']}: {error.get('data', {}).get('detail', '')}".rstrip(": "))
    return answer["result"]


def _argument(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals:
        raise click.UsageError(f"{text!r} is not of the form name=value.")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value
