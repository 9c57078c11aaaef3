"""Views of a session: all its environments as objects or as JSON.

The session doesn't change. Its environments are decoded for the view and dropped after it.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from pydantic import BaseModel

from toolpack_server.base.errors import OverloadedError
from toolpack_server.execution.codec import PlainCodec
from toolpack_server.execution.host_errors import host_error
from toolpack_server.execution.parts import environments, toolpack_of
from toolpack_server.execution.snapshot import Snapshot
from toolpack_server.execution.volumes import READING, Volumes, chain_of, stored_environment, stored_volumes
from toolpack_server.jsonio.strict import Fragment, dumps
from toolpack_server.jsonio.view import to_json
from toolpack_server.volumes.volume import Volume, is_piece


def thawed(codec: PlainCodec, snapshot: Snapshot, volumes: Volumes | None = None) -> dict[str, BaseModel]:
    """Return all environments, by toolpack; raises as `PlainCodec.decode`.

    Args:
        volumes: Puts the volumes into the environments. None: the volumes are left out.
    """
    parts, blobs = snapshot.parts, snapshot.blobs
    by_toolpack = environments(
        {part: codec.decode(part, blob_id, blobs[part]) for part, blob_id in parts.items() if not is_piece(part)}
    )
    for toolpack in dict.fromkeys(map(toolpack_of, parts)):
        stored = stored_environment(tuple(parts), toolpack)
        if stored is not None:
            by_toolpack[toolpack] = codec.lazy_kind.read(chain_of(codec, snapshot, stored), codec.volumes)
    if volumes is not None:
        for toolpack, environment in by_toolpack.items():
            if stored_volumes(tuple(parts), toolpack):
                volumes.bind(toolpack, environment, snapshot)
    return by_toolpack


@contextmanager
def reading(codec: PlainCodec) -> Iterator[Volumes]:
    """Yield an object that binds volumes for reading, and release the volumes after the block.

    Raises:
        OverloadedError: The host lacks memory or file descriptors.
    """
    volumes = Volumes(codec, read_only=READING)
    try:
        yield volumes
    except Exception as error:
        if volumes.failed is not None:
            raise volumes.failed from None
        message = host_error(error)
        if message is not None:
            raise OverloadedError(message) from None
        raise
    finally:
        volumes.abandon()


def view(codec: PlainCodec, snapshot: Snapshot) -> bytes:
    """Return the JSON of all environments, by toolpack; raises as `thawed`, and `ResultError`."""
    with reading(codec) as volumes:
        return dump_environments(codec, thawed(codec, snapshot, volumes))


def dump_environments(codec: PlainCodec, thawed: Mapping[str, BaseModel]) -> bytes:
    """Return the JSON of environments, by toolpack; raises `ResultError`. Volumes that were left out are missing."""

    def shown(toolpack: str, environment: BaseModel) -> Fragment:
        def explain(why: str) -> str:
            return (
                f"The environment of {toolpack!r} can't be shown: {why}. Its author can move the value to a private "
                'attribute. get_environment with format="snapshot" returns everything.'
            )

        return Fragment(to_json(environment, codec.catalog.plain, explain))

    return dumps({toolpack: shown(toolpack, environment) for toolpack, environment in thawed.items()})


def bind_volumes(snapshot: Snapshot, volumes: Volumes) -> Mapping[str, Volume]:
    """Return the volumes of a snapshot by name, without decoding its environments."""
    for toolpack in dict.fromkeys(map(toolpack_of, snapshot.parts)):
        volumes.bind(toolpack, None, snapshot)
    return {name: volume for name, volume in volumes.bound.items() if isinstance(volume, Volume)}
