"""Command `toolpack-server blobs`, which compares the objects outside a store with the stubs in the store.

A *stub* is a few bytes that the store contains in place of a large blob. The command changes nothing. A server can use
the store at the same time, so an object without a stub might get a stub later.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from toolpack_server.base.errors import SessionNotFoundError, VersionNotRetainedError
from toolpack_server.base.terminal import echo
from toolpack_server.cli.local import opened_store
from toolpack_server.stores.base import SessionQuery

PAGE_SIZE = 200  # number of sessions that are listed at a time
MAX_SHOWN = 10  # maximum number of missing objects to print


@click.command()
@click.option("--check", is_flag=True, required=True, help="Count the named, missing and unnamed objects.")
@click.option("--store", help="Store to check.  [default: SQLite in the data directory]")
@click.option("--data-dir", type=Path, help="Folder of a server's data.  [default: .toolpack-server]")
def blobs(*, check: bool, store: str | None, data_dir: Path | None) -> None:
    """Check the blobs that are kept outside the store (TOOLPACK_BLOBS_URL).

    A server deletes unnamed objects when they are a day old. The exit status is 1 if objects are missing.
    """
    del check
    with opened_store(store, data_dir) as opened:
        if not hasattr(opened, "unnamed"):
            raise click.UsageError("No blobs are outside the store: TOOLPACK_BLOBS_URL isn't set.")
        named, missing, unnamed = count_objects(opened)
    echo(f"{named} named, {len(missing)} missing, {unnamed} unnamed")
    for name in missing[:MAX_SHOWN]:
        echo(f"missing: {name}")
    if missing:
        raise SystemExit(1)


def count_objects(store: Any) -> tuple[int, list[str], int]:
    """Return the number of objects with stubs, the names of missing objects, and the number without stubs."""
    ids = {blob for parts in _all_parts(store) for blob in parts.values()}
    before = store.named(ids)
    listed = store.listed()
    unnamed = store.unnamed(listed)
    gone = before - {*listed}
    # Look for the stubs again, because an object that was deleted together with its stub meanwhile isn't missing.
    missing = sorted(gone - {*store.unnamed([*gone])})
    return len(listed) - len(unnamed) + len(missing), missing, len(unnamed)


def _all_parts(store: Any) -> Iterator[dict[str, str]]:
    """Yield the parts of all versions of all sessions, including sessions that are kept for their forks."""
    after, kept = "", set[str]()
    while page := store.list(SessionQuery(None, {}, after, PAGE_SIZE)):
        for session, version in page:
            yield from _parts(store, session.id, version)
            while session.parent and session.parent.session_id not in kept:
                kept.add(session.parent.session_id)
                ancestor = store.ancestor(session.parent.session_id)
                if ancestor is None:
                    break
                session = ancestor  # noqa: PLW2901 - continue with its ancestors
                yield from _parts(store, session.id, 0)
        after = page[-1][0].id


def _parts(store: Any, session_id: str, version: int) -> Iterator[dict[str, str]]:
    """Yield the parts of a session's stored versions, up to `version`."""
    try:
        yield store.parts_at(session_id, 0)
        while version > 0:
            yield store.parts_at(session_id, version)
            version -= 1
    except (SessionNotFoundError, VersionNotRetainedError):
        return
