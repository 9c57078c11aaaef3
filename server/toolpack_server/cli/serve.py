"""`toolpack-server serve`: serves toolpacks until interrupted.

Settings, toolpacks and the address are checked before any worker starts.
"""

import contextlib
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from toolpack_server.base.errors import SettingsError
from toolpack_server.base.settings import Settings, load_settings, unknown_variables
from toolpack_server.base.terminal import echo
from toolpack_server.cli.options import packs_options
from toolpack_server.observability.log import configure_logging
from toolpack_server.packs.inventory import Inventory
from toolpack_server.packs.sources import package_folders
from toolpack_server.processes.exit_logger import log_exit_of
from toolpack_server.processes.isolated_call import Loaded, load
from toolpack_server.processes.listen import listen
from toolpack_server.processes.pipe import SupervisorPipe
from toolpack_server.processes.reload import Reloader
from toolpack_server.processes.supervisor import Supervisor
from toolpack_server.processes.worker import run_worker, share_memory_between_threads
from toolpack_server.web.auth import check_exposure
from toolpack_server.wiring.feature import Feature
from toolpack_server.wiring.installed import feature_variables, load_features
from toolpack_server.wiring.service import Service, check_settings
from toolpack_server.wiring.stores import opener_path


class _Serve(click.Command):
    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's
        """List the settings, including those of features."""
        with formatter.section("Environment variables"):
            for name, (default, sentence) in {**Settings.described(), **feature_variables()}.items():
                formatter.write_text(name)
                with formatter.indentation():
                    formatter.write_text(f"{sentence}  [default: {default}]" if default else sentence)


@click.command(cls=_Serve)
@click.option("--host", help="Address to listen on.  [default: 127.0.0.1]")
@click.option("--port", type=int, help="Port to listen on; 0 chooses a free one.  [default: 8000]")
@click.option("--workers", type=int, help="Worker processes.  [default: 1]")
@click.option(
    "--store",
    help="memory:, sqlite:///path, redis://… or postgresql://….  [default: SQLite in the data directory]",
)
@click.option("--data-dir", type=Path, help="Folder for the store and the key.  [default: .toolpack-server]")
@packs_options
@click.option("--no-auth", is_flag=True, default=None, help="Serve without tokens on an address that isn't loopback.")
@click.option(
    "--host-name", "host_names", multiple=True, help="A name of this server's, if it has no tokens; may be repeated."
)
@click.option("--reload", is_flag=True, help="Start again whenever a Python file of the toolpacks changes.")
def serve(reload: bool, **flags: Any) -> None:
    """Serve toolpacks until interrupted."""
    flags["pack_dir"] = flags["pack_dir"] or None
    flags["host_names"] = flags["host_names"] or None
    if reload:
        flags["verify_read_only"] = True
    settings = load_settings(**flags)
    check_exposure(settings)
    features = load_features(settings.features)
    check_settings(settings, features)
    opener_path(settings.store_url, features)  # raises if no store accepts this URL
    in_memory = not settings.store_url.persistent
    if in_memory and settings.workers > 1:
        raise SettingsError(
            f"{settings.workers} workers can't share memory: use the default store, redis:// or postgresql://, or one "
            "worker."
        )
    for prepare in (prepare for feature in features for prepare in feature.before_serving):
        prepare(settings)
    share_memory_between_threads()
    with log_exit_of(settings):
        if reload:
            _serve_with_reload(settings, features)
            return
        loaded = load(settings)
        configure_logging(settings.log_calls, settings.log_level)
        with listen(settings.host, settings.port) as listener:
            port = listener.getsockname()[1]
            _serve(settings, loaded, listener, lambda: banner(settings, features, loaded.inventory, port))


def _serve(settings: Settings, loaded: Loaded, listener: socket.socket, serving: Callable[[], None]) -> None:
    """Serve until SIGTERM or SIGINT. Call `serving` once, when the server begins to answer requests.

    If the toolpacks were loaded in this process, it becomes the only worker. Otherwise a supervisor starts the workers.
    """
    if loaded.catalog is not None:
        run_worker(Service(settings, loaded.catalog), listener, SupervisorPipe(serving=serving))
    else:
        Supervisor(settings, loaded.inventory, listener, serving).run()


def _serve_with_reload(settings: Settings, features: Sequence[type[Feature]]) -> None:
    """Serve, and start again whenever a file of the toolpacks changes, until SIGTERM or SIGINT."""
    watched = [*settings.pack_dir]
    if settings.packs or not watched:
        watched += package_folders()
    if not watched:
        raise SettingsError("--reload watches the folders of --pack-dir, and installed packages: give a folder.")
    configure_logging(settings.log_calls, settings.log_level)
    with listen(settings.host, settings.port) as listener:
        port = listener.getsockname()[1]

        def serve_generation(loaded: Loaded, on_serving: Callable[[], None], first: bool) -> None:
            """Serve the toolpacks as they were loaded at the start or after a change (one *generation*).

            The reloader calls this in the generation's own process. Only the first generation prints the banner.
            """

            def serving() -> None:
                if first:
                    banner(settings, features, loaded.inventory, port)
                on_serving()

            _serve(settings, loaded, listener, serving)

        if not settings.store_url.persistent:
            echo("reload: A memory: store loses its sessions when a file changes.", err=True)
        Reloader(settings, serve_generation, listener, watched).run()


def banner(settings: Settings, features: Sequence[type[Feature]], inventory: Inventory, port: int) -> None:
    """Print the address, the loaded toolpacks, and a first command to try. If printing fails, the server continues."""
    lines = [f"Toolpack Server listens on {_url(settings.host, port)}, store {settings.store_url.shown}"]
    for name, entry in inventory.toolpacks.items():
        count = len(entry.functions)
        lines.append(f"  {name}: {count} function{'s'[: count != 1]}{' (opt-in)' if entry.opt_in else ''}")
    # A notice about a skipped module, which names a file and a line, is always shown. Other notices, for example about
    # a package to install, are shown only if there are no toolpacks.
    notices = [notice for notice in inventory.notices if not inventory.toolpacks or ".py:" in notice]
    notices += unknown_variables(feature_variables())
    lines += [f"  note: {notice}" for notice in notices]
    token = " -H 'Authorization: Bearer <token>'" if settings.tokens or settings.tokens_file else ""
    # Clients connect to loopback, not to a wildcard address.
    local = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(settings.host, settings.host)  # noqa: S104
    request = """-d '{"jsonrpc": "2.0", "id": 1, "method": "create_session"}'"""
    url = _url(local, port)
    lines += ["Try:", f"  curl -s {url}/rpc -H 'Content-Type: application/json'{token} {request}"]
    lines += [line for feature in features for more in feature.banner for line in more(url, settings, inventory)]
    with contextlib.suppress(OSError):  # a full disk, or a pipe without a reader
        echo(*lines)


def _url(host: str, port: int) -> str:
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
