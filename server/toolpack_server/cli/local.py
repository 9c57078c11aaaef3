"""Services in this process, for commands without a server: over the store of a data directory, or in memory.

A command doesn't open a store that a running server uses. To read such a store, pass `--url` to ask the server.
"""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from toolpack_server.base.errors import StoreInUseError
from toolpack_server.cli.options import server_options
from toolpack_server.cli.requests import Send, local, remote
from toolpack_server.rpc.caller import Caller

if TYPE_CHECKING:
    from toolpack_server.base.settings import Settings
    from toolpack_server.wiring.service import Service

T = TypeVar("T")


def look_options(command: Any) -> Any:
    """Decorator: add the flags that choose a server or a store."""
    server = server_options("Server to look at, like http://127.0.0.1:8000.  [default: the data directory]")
    data_dir = click.option("--data-dir", type=Path, help="Folder of a server's data.  [default: .toolpack-server]")
    store = click.option("--store", help="Store to look at.  [default: SQLite in the data directory]")
    return server(data_dir(store(command)))


def look_at(
    look: Callable[[Send], Coroutine[Any, Any, T]],
    url: str | None,
    token: str | None,
    store: str | None,
    data_dir: Path | None,
    pack_dir: tuple[Path, ...] | None = None,
    packs: str | None = None,
) -> T:
    """Run `look` against a server, or against all owners' sessions in a store. Without `pack_dir` load no toolpacks."""
    if url:
        return asyncio.run(look(remote(url, token)))
    with _stored(store, data_dir, pack_dir, packs) as service:
        return asyncio.run(look(local(service, Caller.all_owners())))


def ask_in_memory(ask: Callable[[Send], Coroutine[Any, Any, T]], pack_dir: tuple[Path, ...], packs: str | None) -> T:
    """Run `ask` against a service in this process with sessions in memory."""
    from toolpack_server.wiring.service import Service  # noqa: PLC0415 - imports the whole server

    service = Service(memory_settings(pack_dir, packs))

    async def run() -> T:
        async with service.running():
            return await ask(local(service, Caller()))

    return asyncio.run(run())


def memory_settings(pack_dir: tuple[Path, ...], packs: str | None, **others: Any) -> "Settings":
    """Return the settings for a service in this process with sessions in memory."""
    return _settings(
        store="memory:", pack_dir=pack_dir or None, packs=packs, log_calls="off", log_level="warning", **others
    )


def _settings(**values: Any) -> "Settings":
    from toolpack_server.base.settings import load_settings  # noqa: PLC0415 - building its model takes longer than a request

    return load_settings(**values)


@contextlib.contextmanager
def _stored(
    store: str | None, data_dir: Path | None, pack_dir: tuple[Path, ...] | None, packs: str | None
) -> Iterator["Service"]:
    """Open an existing store, and yield a service over it. Close the store at the end of the block.

    If `pack_dir` is None, the service has no toolpacks, because the command only reads what the store contains.
    """
    from toolpack_server.packs.catalog import Catalog  # noqa: PLC0415 - imports the whole server
    from toolpack_server.packs.loading import catalog_of  # noqa: PLC0415 - likewise
    from toolpack_server.wiring.service import Service  # noqa: PLC0415 - likewise

    settings = _settings(
        store=store, data_dir=data_dir, pack_dir=pack_dir or None, packs=packs, log_calls="off", log_level="warning"
    )
    catalog = Catalog({}) if pack_dir is None else catalog_of(settings)
    with _opened(settings) as session_store:
        yield Service(settings, catalog, store=session_store)


@contextlib.contextmanager
def opened_store(store: str | None, data_dir: Path | None) -> Iterator[Any]:
    """Open the store of a server, with the wrappers that features add."""
    with _opened(_settings(store=store, data_dir=data_dir)) as session_store:
        yield session_store


@contextlib.contextmanager
def _opened(settings: "Settings") -> Iterator[Any]:
    """Open the existing store of these settings, and close it at the end of the block.

    Raise a `ClickException` if the store doesn't exist, or if a running server uses it.
    """
    from toolpack_server.wiring.installed import load_features  # noqa: PLC0415 - imports the whole server
    from toolpack_server.wiring.stores import open_store_of  # noqa: PLC0415 - likewise

    _check_exists(settings)
    try:
        session_store = open_store_of(settings, load_features(settings.features))
    except StoreInUseError:
        (file,) = settings.store_url.files
        raise click.ClickException(f"A running server uses {file}: ask that server, with --url.") from None
    with contextlib.closing(session_store):
        yield session_store


def _check_exists(settings: "Settings") -> None:
    """Check that the store exists, because opening it would create it."""
    url = settings.store_url
    if not url.persistent:
        raise click.UsageError("A memory: store exists only in its server's process: ask that server, with --url.")
    for path in url.files:
        if not path.is_file():
            raise click.ClickException(f"There is no store {path}: give --data-dir, or ask a server, with --url.")
