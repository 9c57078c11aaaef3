"""`toolpack-server blobs`: whether the objects outside the store are those that it names.

It only counts, and asks a store that others may be using: what has no name yet may get it.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from toolpack_server.base.errors import SessionNotFoundError, VersionNotRetainedError
from toolpack_server.base.terminal import echo
from toolpack_server.cli.local import opened_store
from toolpack_server.stores.base import SessionQuery

SESSIONS_AT_ONCE = 200
MOST_SHOWN = 10


@click.command()
@click.option("--check", is_flag=True, required=True, help="Count the objects that are named, missing and unnamed.")
@click.option("--store", help="Store to look at.  [default: SQLite in the data directory]")
@click.option("--data-dir", type=Path, help="Folder of a server's data.  [default: .toolpack-server]")
def blobs(*, check: bool, store: str | None, data_dir: Path | None) -> None:
    """Look at the blobs that are kept outside the store (TOOLPACK_BLOBS_URL).

    Unnamed objects are deleted by a server when they are a day old. The exit status is 1 if objects are missing.
    """
    del check
    with opened_store(store, data_dir) as opened:
        if not hasattr(opened, "unnamed"):
            raise click.UsageError("No blobs are outside the store: TOOLPACK_BLOBS_URL isn't set.")
        named, missing, unnamed = counted(opened)
    echo(f"{named} named, {len(missing)} missing, {unnamed} unnamed")
    for name in missing[:MOST_SHOWN]:
        echo(f"missing: {name}")
    if missing:
        raise SystemExit(1)


def counted(store: Any) -> tuple[int, list[str], int]:
    """Get how many objects the store names, which of them don't exist, and how many have no name."""
    ids = {blob for parts in _all_parts(store) for blob in parts.values()}
    before = store.named(ids)
    listed = store.listed()
    unnamed = store.unnamed(listed)
    gone = before - {*listed}
    missing = sorted(gone - {*store.unnamed([*gone])})  # what was deleted meanwhile isn't missing
    return len(listed) - len(unnamed) + len(missing), missing, len(unnamed)


def _all_parts(store: Any) -> Iterator[dict[str, str]]:
    """Get the parts of all versions of all sessions, also of those that are kept for their forks."""
    after, kept = "", set[str]()
    while page := store.list(SessionQuery(None, {}, after, SESSIONS_AT_ONCE)):
        for session, version in page:
            yield from _parts(store, session.id, version)
            while session.parent and session.parent.session_id not in kept:
                kept.add(session.parent.session_id)
                found = store.ancestor(session.parent.session_id)
                if found is None:
                    break
                session = found  # noqa: PLW2901 - its ancestors follow
                yield from _parts(store, session.id, 0)
        after = page[-1][0].id


def _parts(store: Any, session_id: str, version: int) -> Iterator[dict[str, str]]:
    try:
        yield store.parts_at(session_id, 0)
        while version > 0:
            yield store.parts_at(session_id, version)
            version -= 1
    except (SessionNotFoundError, VersionNotRetainedError):
        return
