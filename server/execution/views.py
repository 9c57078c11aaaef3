"""All environments of a session, as JSON for readers or as one exact snapshot.

The rule: nothing of the session changes; its environments are thawed for this and then dropped.
"""

import base64
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from pydantic import BaseModel

from server.execution.codec import PlainCodec
from server.execution.parts import environments, toolpack_of
from server.execution.volumes import READING, Volumes, stored_volumes
from server.execution.world import Snapshot
from server.jsonio.strict import Fragment, dumps
from server.jsonio.view import to_json
from server.snapshots.pickling import freeze
from server.volumes.volume import Volume, is_piece


class Pointed(NamedTuple):
    """What a reader wants of a volume: the rest of a pointer, and a page of what it leads to."""

    name: str
    steps: Sequence[str]
    after: str | None = None
    limit: int | None = None


def thawed(codec: PlainCodec, snapshot: Snapshot, volumes: Volumes | None = None) -> dict[str, BaseModel]:
    """Thaw all environments, by toolpack; raises as `PlainCodec.decode`.

    Args:
        volumes: Gets their volumes, and puts them in; without it they are left out.
    """
    parts, blobs = snapshot.parts, snapshot.blobs
    found = environments(
        {part: codec.decode(part, blob_id, blobs[part]) for part, blob_id in parts.items() if not is_piece(part)}
    )
    if volumes is not None:
        for toolpack, environment in found.items():
            if stored_volumes(tuple(parts), toolpack):
                volumes.bind(toolpack, environment, snapshot)
    return found


@contextmanager
def reading(codec: PlainCodec) -> Iterator[Volumes]:
    """Have a block in which volumes can be read."""
    volumes = Volumes(codec, read_only=READING)
    try:
        yield volumes
    except Exception:
        if volumes.failed is not None:
            raise volumes.failed from None
        raise
    finally:
        volumes.abandon()


def view(codec: PlainCodec, snapshot: Snapshot) -> bytes:
    """Get the JSON of all environments, by toolpack; raises as `thawed`, and `ResultError`."""
    with reading(codec) as volumes:
        return _json(codec, thawed(codec, snapshot, volumes))


def view_without_volumes(codec: PlainCodec, snapshot: Snapshot) -> bytes:
    """Get what `view` gets, but for what is in volumes."""
    return _json(codec, thawed(codec, snapshot))


def _json(codec: PlainCodec, world: dict[str, BaseModel]) -> bytes:
    return dumps(
        {toolpack: Fragment(to_json(environment, codec.catalog.plain)) for toolpack, environment in world.items()}
    )


def export(codec: PlainCodec, snapshot: Snapshot) -> bytes:
    """Get all environments, by toolpack, as one exact snapshot; raises as `thawed`."""
    return freeze(thawed(codec, snapshot), codec.catalog.classes)


def contents(codec: PlainCodec, snapshot: Snapshot) -> dict[str, str]:
    """Get each volume, by its name, as a file that other programs read, in base64."""
    with reading(codec) as volumes:
        return {name: base64.b64encode(volume.export()).decode() for name, volume in _bound(snapshot, volumes).items()}


def pointed(codec: PlainCodec, snapshot: Snapshot, wanted: Pointed) -> Any:
    """Get the JSON value to which a pointer into a volume leads; a `LookupError` if it leads to nothing."""
    with reading(codec) as volumes:
        return _bound(snapshot, volumes)[wanted.name].at(wanted.steps, wanted.after, wanted.limit)


def patch(
    codec: PlainCodec, before: Snapshot, after: Snapshot, paths: Mapping[str, str], *, text_diffs: bool
) -> list[dict[str, Any]]:
    """Get the operations of a JSON Patch for the volumes, whose JSON Pointers are given by name.

    One that only the other world has is added, or removed, as a whole.
    """
    found: list[dict[str, Any]] = []
    with reading(codec) as old, reading(codec) as new:
        lefts, rights = _bound(before, old), _bound(after, new)
        for name, path in paths.items():
            left, right = lefts.get(name), rights.get(name)
            if left is None and right is not None:
                found.append({"op": "add", "path": path, "value": right.view()})
            elif right is None:
                found.append({"op": "remove", "path": path})
            elif left is not None and not same_chain(before, after, name):
                found += left.patch(right, path, text_diffs=text_diffs)
    return found


def same_chain(before: Snapshot, after: Snapshot, name: str) -> bool:
    """Whether a volume consists of the same pieces in two snapshots."""
    ids = [
        [blob_id for part, blob_id in snapshot.parts.items() if part.startswith(f"{name}:")]
        for snapshot in (before, after)
    ]
    return ids[0] == ids[1] and all(ids[0])


def _bound(snapshot: Snapshot, volumes: Volumes) -> dict[str, Volume]:
    for toolpack in dict.fromkeys(map(toolpack_of, snapshot.parts)):
        volumes.bind(toolpack, None, snapshot)
    return volumes.bound
