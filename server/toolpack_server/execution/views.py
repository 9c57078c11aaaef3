"""All environments of a session, as JSON for readers or as one exact snapshot.

Nothing of the session changes; its environments are thawed for this and then dropped.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from pydantic import BaseModel

from toolpack_server.base.errors import OverloadedError
from toolpack_server.execution.codec import PlainCodec
from toolpack_server.execution.host_errors import host_error
from toolpack_server.execution.parts import environments, toolpack_of
from toolpack_server.execution.snapshot import Snapshot
from toolpack_server.execution.volumes import READING, Volumes, stored_volumes
from toolpack_server.jsonio.strict import Fragment, dumps
from toolpack_server.jsonio.view import to_json
from toolpack_server.volumes.volume import Volume, is_piece


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
    except Exception as error:
        if volumes.failed is not None:
            raise volumes.failed from None
        trouble = host_error(error)
        if trouble is not None:
            raise OverloadedError(trouble) from None
        raise
    finally:
        volumes.abandon()


def view(codec: PlainCodec, snapshot: Snapshot) -> bytes:
    """Get the JSON of all environments, by toolpack; raises as `thawed`, and `ResultError`."""
    with reading(codec) as volumes:
        return as_json(codec, thawed(codec, snapshot, volumes))


def as_json(codec: PlainCodec, thawed: Mapping[str, BaseModel]) -> bytes:
    """Get the JSON of environments, by toolpack; without their volumes, if these were left out; or `ResultError`."""

    def shown(toolpack: str, environment: BaseModel) -> Fragment:
        def explain(why: str) -> str:
            return (
                f"The environment of {toolpack!r} can't be shown: {why}: its author can keep that in a private "
                "attribute, and get_environment gives all as a snapshot."
            )

        return Fragment(to_json(environment, codec.catalog.plain, explain))

    return dumps({toolpack: shown(toolpack, environment) for toolpack, environment in thawed.items()})


def bound(snapshot: Snapshot, volumes: Volumes) -> Mapping[str, Volume]:
    """Get the volumes of a snapshot by name, without its environments."""
    for toolpack in dict.fromkeys(map(toolpack_of, snapshot.parts)):
        volumes.bind(toolpack, None, snapshot)
    return volumes.bound
