"""The volumes of the environments that one call sees, and those that something reads.

Each is put into its environment as an object that belongs to this call alone, which does nothing until it is
used, and is taken out before the environment is written. What it has changed becomes pieces, which are committed as
ordinary parts of the session, together with all the others.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import lru_cache, partial
from typing import Any, NamedTuple

from pydantic import BaseModel

from toolpack_server.base.errors import SnapshotError
from toolpack_server.execution.codec import PlainCodec
from toolpack_server.execution.conditions import ExecutionPolicy
from toolpack_server.execution.snapshot import Snapshot
from toolpack_server.volumes.scratch import CopyHandle
from toolpack_server.volumes.volume import (
    SLOTS,
    Chain,
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
READING = "an environment that is only read can't be changed"


class Stored(NamedTuple):
    """A volume of a session, as the names of its parts show."""

    name: str
    path: str  # of its attribute in the environment
    kind: str
    parts: tuple[str, ...]  # by slot
    live: str  # the name under which the place of its working copy is kept; no part has such a name

    @property
    def possible(self) -> list[str]:
        """The names of all parts that it may have, by slot."""
        return [part_name(self.name, self.kind, slot) for slot in range(SLOTS)]


@lru_cache(maxsize=1024)
def stored_volumes(parts: tuple[str, ...], toolpack: str) -> tuple[Stored, ...]:
    """Get the volumes of a toolpack in a session with these parts."""
    found: dict[str, list[str]] = {}
    for part in sorted(parts):
        if is_piece(part) and part.startswith(f"{toolpack}/"):
            found.setdefault(volume_of(part), []).append(part)
    return tuple(
        Stored(name, name.partition("/")[2], kind_of(pieces[0]), tuple(pieces), live_name(pieces[0]))
        for name, pieces in found.items()
    )


def volume_pointers(parts: Iterable[str]) -> dict[str, str]:
    """Get the JSON Pointers to the volumes of a session with these parts, by their names."""
    names = dict.fromkeys(volume_of(part) for part in parts if is_piece(part))
    found = {}
    for name in names:
        toolpack, _, path = name.partition("/")
        found[name] = f"/{toolpack}/{path.replace('.', '/')}"
    return found


class Changes(NamedTuple):
    """What a call has changed in volumes."""

    blobs: dict[str, tuple[str, bytes]]  # the new blob id and bytes of each piece
    live: dict[str, CopyHandle]  # the places of working copies
    counts: dict[str, int]  # for each volume that has changed, how many keys
    found: dict[str, Any]  # what the conditions under which it runs have found in each piece


class Volumes:
    """The volumes that one call, or one reader, sees.

    Args:
        read_only: Why nothing may be written; "" if it may.
        conditions: Under which the call runs.

    Attributes:
        bound: The volumes by name.
    """

    def __init__(self, codec: PlainCodec, *, read_only: str, conditions: ExecutionPolicy | None = None) -> None:
        self._codec = codec
        self._read_only = read_only
        self._conditions = conditions
        self.bound: dict[str, Volume] = {}
        self._stored: dict[str, Stored] = {}
        # The environments with the volumes that they hold, by path, and whether they are of instances.
        self._inside: list[tuple[BaseModel, dict[str, Volume], bool]] = []
        self._asked_to_finish = False  # from then on no working copy is known to be as it was

    def bind(self, toolpack: str, environment: BaseModel | None, snapshot: Snapshot) -> None:
        """Get the volumes of a session's toolpack, and put them into its environment, if there is one."""
        context, of_instances = self._codec.volumes, self._codec.catalog.toolpacks[toolpack].holds_instances
        placed: dict[str, Volume] = {}
        for stored in stored_volumes(tuple(snapshot.parts), toolpack):
            kind = context.kinds[stored.kind]
            volume = self.bound.get(stored.name)
            if volume is None:
                chain = Chain(
                    stored.name,
                    stored.kind,
                    stored.parts,
                    [snapshot.parts[part] for part in stored.parts],
                    partial(_payload, self._codec, snapshot),
                )
                volume = self.bound[stored.name] = kind.__new__(kind)
                handle = snapshot.live.pop(stored.live, None)
                volume.mount = Mount(chain, kind, context, self._read_only, self._conditions is not None, handle)
                self._stored[stored.name] = stored
            if environment is not None and put_in(environment, stored.path, volume, of_instances=of_instances):
                placed[stored.path] = volume
        if environment is not None:
            self._inside.append((environment, placed, of_instances))

    def take_out(self) -> None:
        """Take all volumes out of the environments, which are to be written.

        Raises:
            SnapshotError: There are others than before.
        """
        inside, self._inside = self._inside, []
        for environment, placed, of_instances in inside:
            found = take_out(environment, of_instances=of_instances)
            for path in [*placed, *(path for path in found if path not in placed)]:
                if found.get(path) is not placed.get(path):
                    kind = type(found.get(path) or placed[path]).__name__
                    raise SnapshotError(
                        f"`{path}` holds another {kind} than before: change what it holds instead of replacing it."
                    )

    @contextmanager
    def outside(self, environment: BaseModel) -> Iterator[None]:
        """Have an environment without its volumes for a block."""
        for inside, _, of_instances in self._inside:
            if inside is environment:
                found = take_out(environment, of_instances=of_instances)
                try:
                    yield
                finally:
                    for path, volume in found.items():
                        put_in(environment, path, volume, of_instances=of_instances)
                return
        yield

    def finish(self) -> Changes:
        """End the use by a call that has succeeded.

        Raises:
            Exception: What one of them holds can't be kept; then nothing of the call is.
        """
        if self.failed is not None:
            raise self.failed
        self._asked_to_finish = True
        finished: dict[str, Mapping[Any, int]] = {}
        for name, volume in self.bound.items():
            if volume.mount and volume.mount.working_copy is not None and not volume.mount.read_only:
                finished[name] = volume.finish()
        # All have finished; what follows makes the pieces, and as long as one is missing nothing is kept either.
        changes = Changes({}, {}, {}, {})
        keys: dict[str, tuple[str, ...] | None] = {}
        for name, changed in finished.items():
            volume = self.bound[name]
            keys[name] = (
                self._add(changes, self._stored[name], volume, changed) if changed else _mount(volume).chain.key
            )
        kept: dict[str, CopyHandle] = {}
        for name, key in keys.items():
            mount = _mount(self.bound[name])
            working_copy, origin, mount.working_copy, mount.handle = mount.working_copy, mount.handle, None, None
            if working_copy is not None:
                kept[self._stored[name].live] = mount.context.scratch.put(key, working_copy, origin)
        for name in [*self.bound]:
            self._end(changes.live, name, keep=False)
        changes.live.update(kept)
        return changes

    def abandon(self, *, keep: bool = True) -> dict[str, CopyHandle]:
        """End the use by a call that has failed, or by a reader; get the places of working copies.

        Args:
            keep: Keep those that can be changed, as far as they are as they were; nobody else will know their places.
        """
        live: dict[str, CopyHandle] = {}
        for name in [*self.bound]:
            self._end(live, name, keep=keep and not self._asked_to_finish)
        return {} if self._asked_to_finish else live

    def explain(self, error: BaseException) -> BaseException:
        """Get what an error means: see `Volume.explain`; a volume that couldn't be used is the reason for all else."""
        failed = self.failed
        if failed is not None:
            return failed
        for volume in self.bound.values():
            error = volume.explain(error)
        return error

    @property
    def failed(self) -> Exception | None:
        """Why one of them can't be used."""
        return next((volume.mount.error for volume in self.bound.values() if volume.mount and volume.mount.error), None)

    def _add(
        self, changes: Changes, stored: Stored, volume: Volume, changed: Mapping[Any, int]
    ) -> tuple[str, ...] | None:
        """Add what a volume has changed; get the key of its working copy, if that is known."""
        mount, codec = _mount(volume), self._codec
        working_copy = mount.copy()
        payloads, working_copy.pieces = extend_chain(mount.chain, volume, working_copy.pieces, changed)
        sealed = {part: codec.seal(part, payload) for part, payload in payloads.items()}
        changes.blobs.update(sealed)
        changes.counts[stored.name] = len(changed)
        if self._conditions is not None:
            find, context = self._conditions.digest_piece, codec.volumes
            changes.found.update({part: find(part, payload, context) for part, payload in payloads.items()})
        ids = {} if mount.chain.key is None else dict(zip(stored.parts, mount.chain.key[1:], strict=True))
        ids |= {part: blob_id for part, (blob_id, _) in sealed.items()}
        known = len(ids) >= len(stored.parts) and all(ids.values())
        return (stored.name, *map(ids.__getitem__, sorted(ids))) if known else None

    def _end(self, live: dict[str, CopyHandle], name: str, *, keep: bool) -> None:
        """End the use of a volume; its working copy is kept if it proves to be as it was."""
        volume = self.bound[name]
        mount = _mount(volume)
        mount.ended = True
        if mount.working_copy is not None:
            unchanged = False
            with suppress(Exception):
                unchanged = volume.abandon()
            working_copy, handle, mount.working_copy, mount.handle = mount.working_copy, mount.handle, None, None
            if mount.read_only and handle is not None:
                mount.context.scratch.release(handle, keep=unchanged)
                mount.handle = handle if unchanged else None
            elif unchanged and keep:
                mount.handle = mount.context.scratch.put(mount.chain.key, working_copy, handle)
            else:
                working_copy.discard()
        if mount.handle is not None:
            live[self._stored[name].live] = mount.handle
        del self.bound[name]


def _payload(codec: PlainCodec, snapshot: Snapshot, part: str) -> bytes:
    return codec.unseal(part, snapshot.parts[part], snapshot.blobs[part])


def _mount(volume: Volume) -> Mount:
    if volume.mount is None:
        raise TypeError("a volume that nobody has given to a call")
    return volume.mount
