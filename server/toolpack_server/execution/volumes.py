"""Volumes in the environments of one call or one reader.

A *volume* is a database or a tree of files in an environment; it is stored by its changes. For each call, a new volume
object is put into the environment. It opens its *working copy*, the content as a file or a folder, at first use. The
object is taken out before the environment is encoded. The changes to a volume become *pieces*, which are committed
together with the other changed parts of the session.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import lru_cache, partial
from typing import Any, NamedTuple

from pydantic import BaseModel

from toolpack_server.base.errors import SnapshotError
from toolpack_server.execution.codec import PlainCodec
from toolpack_server.execution.lazy_environment import LazyEnvironment, lazy_name
from toolpack_server.execution.parts import toolpack_of
from toolpack_server.execution.policy import ExecutionPolicy
from toolpack_server.execution.snapshot import Snapshot
from toolpack_server.volumes.scratch import CopyHandle
from toolpack_server.volumes.volume import (
    SLOTS,
    Chain,
    Content,
    Mount,
    Volume,
    extend_chain,
    is_piece,
    kind_of,
    live_name,
    part_name,
    put_in,
    take_out,
    volume_of,
)

READ_ONLY = "the function is registered with read_only=True"
READING = "the environment is open for reading only"


class Stored(NamedTuple):
    """Description of a stored chain, derived from the names of its parts."""

    name: str
    path: str  # path of the volume's attribute in the environment; "" for the environment itself (`LazyEnvironment`)
    kind: str
    parts: tuple[str, ...]  # the names of the pieces, in the order of the chain
    live: str  # key of the working copy's handle in `Snapshot.live`, which is different from all names of parts

    @property
    def possible(self) -> list[str]:
        """The names of all parts that this volume's pieces can have, in the order of the chain."""
        return [part_name(self.name, self.kind, slot) for slot in range(SLOTS)]


@lru_cache(maxsize=1024)
def stored_chains(parts: tuple[str, ...], toolpack: str) -> tuple[Stored, ...]:
    """Return the chains of a toolpack in a session with these parts: its environment's chain, and its volumes."""
    by_name: dict[str, list[str]] = {}
    for part in sorted(parts):
        if is_piece(part) and part.startswith(f"{toolpack}/"):
            by_name.setdefault(volume_of(part), []).append(part)
    return tuple(
        Stored(name, name.partition("/")[2], kind_of(pieces[0]), tuple(pieces), live_name(pieces[0]))
        for name, pieces in by_name.items()
    )


@lru_cache(maxsize=1024)
def stored_volumes(parts: tuple[str, ...], toolpack: str) -> tuple[Stored, ...]:
    """Return the volumes of a toolpack in a session with these parts."""
    return tuple(stored for stored in stored_chains(parts, toolpack) if stored.path)


@lru_cache(maxsize=1024)
def stored_environment(parts: tuple[str, ...], toolpack: str) -> Stored | None:
    """Return the chain of a toolpack's environment, or None if the environment is stored in parts.

    If a session contains both a chain and parts, the parts are valid, because a reset has emptied the chain.
    """
    if any(toolpack_of(part) == toolpack and not is_piece(part) for part in parts):
        return None
    return next((stored for stored in stored_chains(parts, toolpack) if not stored.path), None)


@lru_cache(maxsize=1024)
def stored_environments(parts: tuple[str, ...]) -> dict[str, Stored]:
    """Return the chains of environments that are stored as chains, by toolpack."""
    stored = {toolpack: stored_environment(parts, toolpack) for toolpack in map(toolpack_of, parts)}
    return {toolpack: chain for toolpack, chain in stored.items() if chain is not None}


def class_parts(parts: Iterable[str]) -> list[str]:
    """Return the parts whose seals show with which classes the environments were written.

    These are all parts of environments, and the newest piece of each environment's chain. The newest piece is
    sufficient, and it is usually small.
    """
    newest: dict[str, str] = {}
    for part in sorted(parts):
        if not is_piece(part):
            newest[part] = part
        elif volume_of(part) == lazy_name(toolpack_of(part)):
            newest[volume_of(part)] = part
    return [*newest.values()]


def chain_of(codec: PlainCodec, snapshot: Snapshot, stored: Stored) -> Chain:
    """Return a chain of a snapshot. The chain reads its pieces on demand."""
    ids = [snapshot.parts[part] for part in stored.parts]
    return Chain(stored.name, stored.kind, stored.parts, ids, partial(_payload, codec, snapshot))


def volume_pointers(parts: Iterable[str]) -> dict[str, str]:
    """Return the JSON Pointers to the volumes of a session with these parts, by volume name."""
    names = dict.fromkeys(volume_of(part) for part in parts if is_piece(part))
    pointers = {}
    for name in names:
        toolpack, _, path = name.partition("/")
        if path:
            pointers[name] = f"/{toolpack}/{path.replace('.', '/')}"
    return pointers


class Changes(NamedTuple):
    """The changes that one call made to volumes."""

    blobs: dict[str, tuple[str, bytes]]  # the new blob id and bytes of each piece
    live: dict[str, CopyHandle]  # the handles of working copies, by `Stored.live`
    counts: dict[str, int]  # the number of changed keys (pages or files), by changed volume
    digests: dict[str, Any]  # the digests that the execution policy computed, by piece


class Volumes:
    """The volumes of one call or one reader.

    Args:
        read_only: The reason why writing is forbidden; "" if it is allowed.
        policy: The execution policy of the call.

    Attributes:
        bound: The volumes by name.
    """

    def __init__(self, codec: PlainCodec, *, read_only: str, policy: ExecutionPolicy | None = None) -> None:
        self._codec = codec
        self._read_only = read_only
        self._policy = policy
        self.bound: dict[str, Content] = {}
        self._mounts: dict[str, Mount] = {}
        self._stored: dict[str, Stored] = {}
        # The environments with their volumes, by path, and whether their toolpack holds instances.
        self._inside: list[tuple[BaseModel, dict[str, Volume], bool]] = []
        self._finish_began = False  # once True, any working copy might differ from the committed state

    def bind(self, toolpack: str, environment: BaseModel | None, snapshot: Snapshot) -> None:
        """Create the volumes of a session's toolpack. If an environment is passed, put the volumes into it."""
        context, of_instances = self._codec.volumes, self._codec.catalog.toolpacks[toolpack].holds_instances
        placed: dict[str, Volume] = {}
        for stored in stored_volumes(tuple(snapshot.parts), toolpack):
            kind = context.kinds[stored.kind]
            volume = self.bound.get(stored.name)
            if volume is None:
                volume = kind.__new__(kind)
                self._mount(volume, stored, snapshot)
            if (
                environment is not None
                and isinstance(volume, Volume)
                and put_in(environment, stored.path, volume, of_instances=of_instances)
            ):
                placed[stored.path] = volume
        if environment is not None:
            self._inside.append((environment, placed, of_instances))

    def bind_lazy(self, stored: Stored, snapshot: Snapshot) -> BaseModel:
        """Return the environment of a toolpack, if `stored_environment` has found that it is stored as a chain."""
        content = self._codec.lazy_kind()
        self._mount(content, stored, snapshot)
        return content.environment()

    def lazy_environment(self, toolpack: str) -> LazyEnvironment | None:
        """Return a toolpack's lazy environment, or None if the call doesn't use it or it isn't stored as a chain."""
        content = self.bound.get(lazy_name(toolpack))
        return content if isinstance(content, LazyEnvironment) else None

    def _mount(self, content: Content, stored: Stored, snapshot: Snapshot) -> None:
        """Connect an empty volume to its stored chain, and to a working copy that an earlier call left, if any."""
        chain, handle = chain_of(self._codec, snapshot, stored), snapshot.live.pop(stored.live, None)
        is_pinned = self._policy is not None
        mount = Mount(chain, type(content), self._codec.volumes, self._read_only, is_pinned, handle)
        content.mount = self._mounts[stored.name] = mount
        self.bound[stored.name] = content
        self._stored[stored.name] = stored

    def take_out(self) -> None:
        """Take all volumes out of the environments, so that the environments can be encoded.

        Raises:
            SnapshotError: The call has added, removed or replaced a volume in an environment.
        """
        inside, self._inside = self._inside, []
        for environment, placed, of_instances in inside:
            removed = take_out(environment, of_instances=of_instances)
            for path in [*placed, *(path for path in removed if path not in placed)]:
                if removed.get(path) is not placed.get(path):
                    kind = type(removed.get(path) or placed[path]).__name__
                    raise SnapshotError(
                        f"`{path}` holds another {kind} than before: change what it holds instead of replacing it."
                    )

    @contextmanager
    def outside(self, environment: BaseModel) -> Iterator[None]:
        """Take the volumes out of an environment for a block, and put them back after it."""
        for inside, _, of_instances in self._inside:
            if inside is environment:
                removed = take_out(environment, of_instances=of_instances)
                try:
                    yield
                finally:
                    for path, volume in removed.items():
                        put_in(environment, path, volume, of_instances=of_instances)
                return
        yield

    def finish(self) -> Changes:
        """Release the volumes after a successful call, and return the changes of the call.

        Raises:
            Exception: The content of a volume can't be stored. The caller must not commit any change of the call.
        """
        if self.failed is not None:
            raise self.failed
        self._finish_began = True
        finished: dict[str, Mapping[Any, int]] = {}
        for name, volume in self.bound.items():
            if volume.mount and volume.mount.working_copy is not None and not volume.mount.read_only:
                finished[name] = volume.finish()
        # Create all pieces before any working copy is kept, because no change may be kept if creating a piece fails.
        changes = Changes({}, {}, {}, {})
        keys: dict[str, tuple[str, ...] | None] = {}
        for name, changed in finished.items():
            volume = self.bound[name]
            keys[name] = (
                self._add(changes, self._stored[name], volume, changed) if changed else self._mounts[name].chain.key
            )
        kept: dict[str, CopyHandle] = {}
        for name, key in keys.items():
            mount = self._mounts[name]
            working_copy, origin, mount.working_copy, mount.handle = mount.working_copy, mount.handle, None, None
            if working_copy is not None:
                kept[self._stored[name].live] = mount.context.scratch.put(key, working_copy, origin)
        for name in [*self.bound]:
            self._end(changes.live, name, keep=False)
        changes.live.update(kept)
        return changes

    def abandon(self, *, keep: bool = True) -> dict[str, CopyHandle]:
        """Release the volumes after a failed call or a reader, and return the handles of their working copies.

        After a `finish` that failed, this method releases the remaining volumes, and returns no handles.

        Args:
            keep: Keep unchanged working copies of calls that can write. Their handles are only in the result.
        """
        live: dict[str, CopyHandle] = {}
        for name in [*self.bound]:
            self._end(live, name, keep=keep and not self._finish_began)
        return {} if self._finish_began else live

    def explain(self, error: BaseException) -> BaseException:
        """Return the error to report: the error of an unusable volume, or else the result of `Volume.explain`."""
        failed = self.failed
        if failed is not None:
            return failed
        for volume in self.bound.values():
            error = volume.explain(error)
        return error

    @property
    def failed(self) -> Exception | None:
        """The error of the first unusable volume. None: all volumes can be used."""
        return next((volume.mount.error for volume in self.bound.values() if volume.mount and volume.mount.error), None)

    def _add(
        self, changes: Changes, stored: Stored, volume: Content, changed: Mapping[Any, int]
    ) -> tuple[str, ...] | None:
        """Add a volume's changes to `changes`. Return the key of its working copy, or None if the key is unknown."""
        mount, codec = self._mounts[stored.name], self._codec
        working_copy = mount.copy()
        payloads, working_copy.pieces = extend_chain(mount.chain, volume, working_copy.pieces, changed)
        sealed = {part: codec.seal(part, payload) for part, payload in payloads.items()}
        changes.blobs.update(sealed)
        if stored.path:
            changes.counts[stored.name] = len(changed)
        if self._policy is not None:
            digest, context = self._policy.digest_piece, codec.volumes
            changes.digests.update({part: digest(part, payload, context) for part, payload in payloads.items()})
        ids = {} if mount.chain.key is None else dict(zip(stored.parts, mount.chain.key[1:], strict=True))
        ids |= {part: blob_id for part, (blob_id, _) in sealed.items()}
        is_known = len(ids) >= len(stored.parts) and all(ids.values())
        return (stored.name, *map(ids.__getitem__, sorted(ids))) if is_known else None

    def _end(self, live: dict[str, CopyHandle], name: str, *, keep: bool) -> None:
        """Release a volume. Keep its working copy only if the volume confirms that it is unchanged."""
        volume = self.bound[name]
        mount = self._mounts[name]
        mount.ended = True
        if mount.working_copy is not None:
            unchanged = False
            with suppress(Exception):
                unchanged = volume.abandon()
            working_copy, handle, mount.working_copy, mount.handle = mount.working_copy, mount.handle, None, None
            if mount.read_only and volume.is_shareable and handle is not None:
                mount.context.scratch.release(handle, keep=unchanged)
                mount.handle = handle if unchanged else None
            elif unchanged and (keep or mount.read_only):
                mount.handle = mount.context.scratch.put(mount.chain.key, working_copy, handle)
            else:
                working_copy.discard()
        if mount.handle is not None:
            live[self._stored[name].live] = mount.handle
        del self.bound[name]


def _payload(codec: PlainCodec, snapshot: Snapshot, part: str) -> bytes:
    return codec.unseal(part, snapshot.parts[part], snapshot.blobs[part])
