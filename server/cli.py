"""The command `toolpack-server`.

The rule: what goes wrong is told in one sentence on standard error, with exit status 1; a traceback is a bug.
"""

import asyncio
import json
import logging
import os
import socket
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import click

from server.auth import check_exposure, new_token
from server.catalog import Catalog, inspect_toolpacks, load_catalog, lying_functions
from server.errors import SettingsError, ToolpackServerError
from server.jsonrpc import JsonRpc
from server.methods import Caller, Methods
from server.openrpc import envelope_schema, openrpc_document, toolpack_schema
from server.sessions import SessionManager
from server.settings import Settings, load_settings
from server.stores import open_store
from server.strict_json import Fragment
from server.supervisor import Supervisor
from server.worker import run_worker

BUNDLED = ("bank", "workspace")  # the toolpacks whose schemas are checked in: they need no extra package


def packs_options(command: Any) -> Any:
    """Add the flags that choose toolpacks."""
    command = click.option("--packs", help="Toolpacks to load, by name, separated by commas.")(command)
    return click.option("--pack-dir", multiple=True, type=Path, help="Folder with toolpacks; may be repeated.")(command)


def main() -> None:
    """Run the command; see the module's docstring for the rule."""
    try:
        cli(standalone_mode=False)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except click.Abort:
        sys.exit(130)
    except ToolpackServerError as error:
        click.echo(f"toolpack-server: {error}", err=True)
        sys.exit(1)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="toolpack-server")
def cli() -> None:
    """Serve functions, and the worlds they change, to agents."""


@cli.command()
@click.option("--host", help="Address to listen on.  [default: 127.0.0.1]")
@click.option("--port", type=int, help="Port to listen on; 0 takes a free one.  [default: 8000]")
@click.option("--workers", type=int, help="Worker processes.  [default: 1]")
@click.option("--store", help="memory:, sqlite:///path or redis://host.  [default: SQLite in the data directory]")
@click.option("--data-dir", type=Path, help="Folder for the store and the key.  [default: .toolpack-server]")
@packs_options
@click.option("--no-auth", is_flag=True, default=None, help="Serve without tokens on an address that isn't loopback.")
def serve(**flags: Any) -> None:
    """Serve toolpacks until interrupted."""
    flags["pack_dir"] = flags["pack_dir"] or None
    settings = load_settings(**flags)
    check_exposure(settings)
    in_memory = settings.store_url.startswith("memory:")
    if in_memory and settings.workers > 1:
        raise SettingsError(
            f"{settings.workers} workers can't share memory: use the default store or redis://, or one worker."
        )
    catalog = load_catalog(settings.pack_dir, settings.packs)
    logging.basicConfig(level=logging.INFO, format="%(levelname)s: %(message)s")
    logging.getLogger("uvicorn").setLevel(logging.ERROR)
    with listen(settings.host, settings.port) as listener:
        banner(settings, catalog, listener.getsockname()[1])
        if in_memory:
            run_worker(settings, catalog, listener)
            return
        with tempfile.TemporaryDirectory(prefix="toolpack-metrics-") as folder:
            os.environ["PROMETHEUS_MULTIPROC_DIR"] = folder  # before anything imports prometheus-client
            Supervisor(settings, catalog, listener).run()


def _url(host: str, port: int) -> str:
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def listen(host: str, port: int) -> socket.socket:
    """Open the socket to listen on.

    Raises:
        SettingsError: The address can't be used.
    """
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listener = socket.create_server((host, port), family=family, backlog=2048)
        # Connections inherit it. asyncio sets it on sockets of its own making only; without it an answer, written in
        # two pieces, waits 40 ms for the client's acknowledgement of the first.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return listener  # noqa: TRY300 - one place for all that can fail
    except OSError as error:
        raise SettingsError(
            f"{host}:{port} can't be listened on: {error.strerror}. Choose another --port or --host."
        ) from None


def banner(settings: Settings, catalog: Catalog, port: int) -> None:
    """Say where the server listens, what it has loaded, and what to try first."""
    click.echo(f"Toolpack Server listens on {_url(settings.host, port)}, store {settings.store_url}")
    for pack in catalog.toolpacks.values():
        click.echo(f"  {pack.name}: {len(pack.functions)} functions{' (opt-in)' if pack.opt_in else ''}")
    for notice in [] if catalog.toolpacks else catalog.notices:
        click.echo(f"  note: {notice}")
    token = " -H 'Authorization: Bearer <token>'" if settings.tokens or settings.tokens_file else ""
    # What listens on all addresses is reached on this one.
    local = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(settings.host, settings.host)  # noqa: S104
    click.echo("Try:")
    click.echo(
        f"""  curl -s {_url(local, port)}/rpc -H 'Content-Type: application/json'{token} """
        """-d '{"jsonrpc": "2.0", "id": 1, "method": "create_session"}'"""
    )
    sys.stdout.flush()


@cli.command()
@click.argument("name")
def token(name: str) -> None:
    """Make a bearer token for NAME, and the line for the file of TOOLPACK_TOKENS_FILE."""
    secret, line = new_token(name)
    click.echo(f"Token, shown only now: {secret}", err=True)
    click.echo(line)


@cli.command()
@packs_options
def check(pack_dir: tuple[Path, ...], packs: str | None) -> None:
    """Load every toolpack and print every problem."""
    settings = load_settings(pack_dir=pack_dir or None, packs=packs)
    catalog, problems = inspect_toolpacks(settings.pack_dir, settings.packs)
    told = [str(problem) for problem in problems]
    if catalog is not None:
        told += lying_functions(catalog) if not told else []
        for notice in catalog.notices:
            click.echo(f"note: {notice}")
    for problem in told:
        click.echo(problem, err=True)
    if told:
        sys.exit(1)
    if catalog is not None:
        functions = sum(len(pack.functions) for pack in catalog.toolpacks.values())
        packs_found = f"{len(catalog.toolpacks)} toolpack{'' if len(catalog.toolpacks) == 1 else 's'}"
        click.echo(f"{packs_found} with {functions} functions: no problems.")


@cli.command("list")
@packs_options
def list_toolpacks(pack_dir: tuple[Path, ...], packs: str | None) -> None:
    """Show toolpacks and their functions."""
    settings = load_settings(pack_dir=pack_dir or None, packs=packs)
    catalog = load_catalog(settings.pack_dir, settings.packs)
    for pack in catalog.toolpacks.values():
        click.echo(f"{pack.name}{' (opt-in)' if pack.opt_in else ''}")
        for function in pack.functions.values():
            parameters = ", ".join(function.function.parameters.model_fields)
            summary = function.function.description.partition("\n")[0]
            click.echo(f"  {function.name}({parameters}){' [read-only]' if function.read_only else ''}: {summary}")
    for notice in catalog.notices:
        click.echo(f"note: {notice}")


@cli.command()
@packs_options
@click.option("--url", help="Server to call, like http://127.0.0.1:8000; without it the call runs in this process.")
@click.option("--session", help="Session to call in; without it a new one, which is closed afterwards.")
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
        raise click.UsageError("--session needs --url: a session lives in a server.")
    kwargs = dict(map(_argument, arguments))
    if url:
        envelope = asyncio.run(_call(_remote(url, token), session, None, function, kwargs))
    else:
        settings = load_settings(store="memory:", pack_dir=pack_dir or None, packs=packs)
        catalog = load_catalog(settings.pack_dir, settings.packs)
        toolpack = next((name for name, pack in catalog.toolpacks.items() if function in pack.functions), None)
        envelope = asyncio.run(_call_here(settings, catalog, [toolpack] if toolpack else None, function, kwargs))
    if envelope["error"] is not None:
        click.echo(envelope["error"], err=True)
        sys.exit(1)
    click.echo(json.dumps(envelope["result"], indent=2, ensure_ascii=False))


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


async def _call_here(
    settings: Settings, catalog: Catalog, toolpacks: list[str] | None, function: str, kwargs: dict[str, Any]
) -> Any:
    sessions = SessionManager(catalog, open_store("memory:"), settings, b"a key for this process alone")
    rpc = JsonRpc(Methods(sessions, lambda: Fragment(b"null")).all(), settings)

    async def send(method: str, params: dict[str, Any]) -> Any:
        return _result(await rpc.answer(Caller(), _request(method, params)) or b"null")

    return await _call(send, None, toolpacks, function, kwargs)


def _remote(url: str, token: str | None) -> Send:
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})

    async def send(method: str, params: dict[str, Any]) -> Any:
        if not url.startswith(("http://", "https://")):
            raise click.UsageError("--url is not of the form http://host:port.")
        request = urllib.request.Request(f"{url.rstrip('/')}/rpc", _request(method, params), headers)  # noqa: S310
        try:
            with urllib.request.urlopen(request) as reply:  # noqa: S310, ASYNC210 - one call after the other
                return _result(reply.read())
        except urllib.error.HTTPError as error:
            return _result(error.read())
        except urllib.error.URLError as error:
            raise click.ClickException(f"{url} can't be reached: {error.reason}. Is the server running?") from None

    return send


def _request(method: str, params: dict[str, Any]) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode()


def _result(reply: bytes) -> Any:
    try:
        told = json.loads(reply)
    except ValueError:
        raise click.ClickException("the answer is no JSON: is this a Toolpack Server?") from None
    if "error" in told:
        error = told["error"]
        raise click.ClickException(f"{error['message']}: {error.get('data', {}).get('detail', '')}".rstrip(": "))
    return told["result"]


def _argument(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals:
        raise click.UsageError(f"{text!r} is not of the form name=value.")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


@cli.command()
@click.option("--check", "only_check", is_flag=True, help="Say whether the files have drifted, and write nothing.")
@click.option("--directory", type=Path, default=Path("schemas"), show_default=True, help="Where the files are.")
def schemas(only_check: bool, directory: Path) -> None:
    """Write the JSON Schemas and the OpenRPC document, or check them."""
    catalog = load_catalog((), BUNDLED)
    wanted = {"openrpc.json": _openrpc(catalog), "envelope.json": envelope_schema()}
    wanted |= {f"toolpacks/{pack.name}.json": toolpack_schema(pack) for pack in catalog.toolpacks.values()}
    drifted = []
    for name, document in wanted.items():
        path, text = directory / name, json.dumps(document, indent=2, ensure_ascii=False) + "\n"
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        drifted.append(name)
        if not only_check:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    if only_check and drifted:
        raise click.ClickException(f"{', '.join(drifted)} drifted from the code: run `toolpack-server schemas`.")
    click.echo(f"{len(wanted)} files, {len(drifted)} {'drifted' if only_check else 'written'}.")


def _openrpc(catalog: Catalog) -> dict[str, Any]:
    async def methods() -> dict[str, Any]:
        sessions = SessionManager(catalog, open_store("memory:"), load_settings(store="memory:"), b"unused here")
        return openrpc_document(Methods(sessions, lambda: Fragment(b"null")).all())

    return asyncio.run(methods())
