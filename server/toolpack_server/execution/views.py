"""Views of a session: all its environments as objects or as JSON.

Clients and evaluators read sessions through views. A view can't change the session, because it decodes its own copy of
the environments and drops the copy at its end.
"""

from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial

from pydantic import BaseModel

from toolpack_server.base.errors import OverloadedError
from toolpack_server.execution.codec import PlainCodec
from toolpack_server.execution.host_errors import host_error
from toolpack_server.execution.parts import environments, toolpack_of
from toolpack_server.execution.snapshot import Snapshot
from toolpack_server.execution.volumes import READING, Volumes, chain_of, stored_environments, stored_volumes
from toolpack_server.jsonio.selection import select, select_changes
from toolpack_server.jsonio.strict import Fragment, dumps
from toolpack_server.jsonio.view import to_json
from toolpack_server.snapshots.lazy_changes import changed_roots
from toolpack_server.snapshots.lazy_graph import LazyGraph
from toolpack_server.volumes.volume import Volume, is_piece


def thawed(codec: PlainCodec, snapshot: Snapshot, volumes: Volumes | None = None) -> dict[str, BaseModel]:
    """Return all environments, by toolpack. Raise the same errors as `PlainCodec.decode`.

    Args:
        volumes: The object that puts the volumes into the environments. None: leave out the volumes.
    """
    with _opened(codec, snapshot, volumes) as (by_toolpack, graphs):
        for graph in graphs.values():
            graph.load_all()
        return by_toolpack


@contextmanager
def _opened(
    codec: PlainCodec, snapshot: Snapshot, volumes: Volumes | None = None
) -> Iterator[tuple[dict[str, BaseModel], dict[str, LazyGraph]]]:
    """Yield all environments, by toolpack, and the lazy graphs of the environments that are stored as chains.

    Raise the same errors as `thawed`.
    """
    parts, blobs = snapshot.parts, snapshot.blobs
    by_toolpack = environments(
        {part: codec.decode(part, blob_id, blobs[part]) for part, blob_id in parts.items() if not is_piece(part)}
    )
    graphs: dict[str, LazyGraph] = {}
    with ExitStack() as stack:
        for toolpack, stored in stored_environments(tuple(parts)).items():
            chain = chain_of(codec, snapshot, stored)
            graphs[toolpack] = stack.enter_context(codec.lazy_kind.reading(chain, codec.volumes))
            by_toolpack[toolpack] = graphs[toolpack].first
        if volumes is not None:
            for toolpack, environment in by_toolpack.items():
                if stored_volumes(tuple(parts), toolpack):
                    volumes.bind(toolpack, environment, snapshot)
        yield by_toolpack, graphs


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


def view(codec: PlainCodec, snapshot: Snapshot, steps: Sequence[str] = ()) -> bytes:
    """Return the JSON of all environments, by toolpack. Raise the same errors as `thawed`, and `ResultError`.

    Args:
        steps: The steps of a JSON Pointer. Items that the pointer doesn't lead to can be missing in the JSON.
    """
    if steps:
        parts = {part: blob_id for part, blob_id in snapshot.parts.items() if toolpack_of(part) == steps[0]}
        snapshot = Snapshot(parts, snapshot.blobs)
    with reading(codec) as volumes, _opened(codec, snapshot, volumes) as (by_toolpack, graphs):
        if steps:
            with suppress(Exception):  # on an error, show everything instead: this works, or raises the client's error
                selected = {toolpack: select(environment, steps[1:]) for toolpack, environment in by_toolpack.items()}
                return _dump(codec, selected, parts=selected)
        for graph in graphs.values():
            graph.load_all()
        return _dump(codec, by_toolpack)


def view_without_volumes(codec: PlainCodec, snapshot: Snapshot) -> bytes:
    """Return the JSON of all environments, by toolpack, without volumes. Raise the same errors as `view`."""
    return _dump(codec, thawed(codec, snapshot))


def view_changes(codec: PlainCodec, before: Snapshot, after: Snapshot) -> bytes:
    """Return a JSON array of all environments in two snapshots, without volumes, and without items that are equal.

    Equal items are left out only from environments that are stored as chains. After any error, return an empty text.
    """
    try:
        with _opened(codec, before) as (lefts, left_graphs), _opened(codec, after) as (rights, right_graphs):
            parts: set[str] = set()
            for toolpack in left_graphs.keys() & right_graphs.keys():
                left, right = left_graphs[toolpack], right_graphs[toolpack]
                changed = changed_roots(left, right)
                if changed is not None:
                    is_same = partial(_is_same_root, left.numbers, right.numbers, changed)
                    lefts[toolpack], rights[toolpack] = select_changes(lefts[toolpack], rights[toolpack], is_same)
                    parts.add(toolpack)
            return dumps([Fragment(_dump(codec, by_toolpack, parts)) for by_toolpack in (lefts, rights)])
    except Exception:  # noqa: BLE001 - the caller then reads everything, which works or raises the client's error
        return b""


def _is_same_root(
    left: Mapping[int, int], right: Mapping[int, int], changed: Container[int], one: object, other: object
) -> bool:
    """Return whether two objects are the same root, and the root is unchanged.

    A *root* is a numbered object that can be loaded by itself.

    Args:
        left: The numbers of the roots in the first graph, by object id.
        right: The numbers of the roots in the second graph, by object id.
    """
    number = left.get(id(one))
    return number is not None and number == right.get(id(other)) and number not in changed


def _dump(codec: PlainCodec, by_toolpack: Mapping[str, BaseModel], parts: Container[str] = ()) -> bytes:
    """Return the JSON of environments, by toolpack. Volumes that were left out are missing in the JSON.

    Args:
        parts: The toolpacks whose environments are selections of items. For these, this raises `PlainObjectError` in
            the same cases as `to_json`.

    Raises:
        ResultError: An environment can't be shown as JSON.
    """

    def shown(toolpack: str, environment: BaseModel) -> Fragment:
        def explain(why: str) -> str:
            return (
                f"The environment of {toolpack!r} can't be shown: {why}. Its author can move the value to a private "
                'attribute. get_environment with format="snapshot" returns everything.'
            )

        return Fragment(to_json(environment, codec.catalog.plain, explain, is_part=toolpack in parts))

    return dumps({toolpack: shown(toolpack, environment) for toolpack, environment in by_toolpack.items()})


def bind_volumes(snapshot: Snapshot, volumes: Volumes) -> Mapping[str, Volume]:
    """Return the volumes of a snapshot by name, without decoding its environments."""
    for toolpack in dict.fromkeys(map(toolpack_of, snapshot.parts)):
        volumes.bind(toolpack, None, snapshot)
    return {name: volume for name, volume in volumes.bound.items() if isinstance(volume, Volume)}
