"""Digests of worlds, which a replay compares with the recorded digests.

A *part* is a group of an environment's fields that is stored as one blob. A world's digest is computed from the
*entries* of its parts: lines with the digest of each field. The entries are cached by blob id, because a blob never
changes.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from pydantic import TypeAdapter
from typing_extensions import override

from toolpack_server.base.cache import BoundedCache
from toolpack_server.execution.parts import toolpack_of
from toolpack_server.execution.runner import Runner, RunnerOperation
from toolpack_server.execution.snapshot import Snapshot
from toolpack_server.execution.volumes import chain_of, stored_environment
from toolpack_server.execution.world import ExecutionContext
from toolpack_server.features.replay.world_digest import Entries, part_entries, piece_entries, world_digest
from toolpack_server.sessions.part_bytes import PartBytes
from toolpack_server.stores.base import SessionStore
from toolpack_server.volumes.volume import is_piece

MAX_PARTS = 10_000  # max number of parts for which a worker caches the entries


@dataclass(eq=False)
class ReadEntries(RunnerOperation[dict[str, Entries | None]]):
    """Operation that returns the entries of each part of a snapshot."""

    snapshot: Snapshot
    name = "entries"
    shape = TypeAdapter(dict[str, Entries | None])

    @override
    def run(self, context: ExecutionContext) -> dict[str, Entries | None]:
        codec, snapshot = context.codec, self.snapshot
        entries: dict[str, Entries | None] = {}
        for part, blob_id in snapshot.parts.items():
            if is_piece(part):
                entries[part] = piece_entries(part, codec.unseal(part, blob_id, snapshot.blobs[part]), codec.volumes)
            else:
                entries[part] = part_entries(codec.decode(part, blob_id, snapshot.blobs[part]), codec.catalog.classes)
        for toolpack in dict.fromkeys(map(toolpack_of, snapshot.parts)):
            stored = stored_environment(tuple(snapshot.parts), toolpack)
            if stored is not None:  # an environment in pieces: its entries need all pieces; the first part holds them
                environment = codec.lazy_kind.read(chain_of(codec, snapshot, stored), codec.volumes)
                entries[stored.parts[0]] = part_entries(environment, codec.catalog.classes)
        return entries

    @override
    def fits(self, result: Mapping[str, Entries | None]) -> bool:
        return result.keys() == self.snapshot.parts.keys()


class StateDigests:
    """Computes the digests of worlds, with a cache of the entries of their parts."""

    def __init__(self, runner: Runner, store: SessionStore) -> None:
        self._runner = runner
        self._store = store
        self._cache = BoundedCache[str, tuple[Entries | None]](MAX_PARTS)

    def put(self, blob_id: str, entries: Entries | None) -> None:
        """Cache the entries of a part."""
        self._cache.put(blob_id, (entries,))

    def digest(self, parts: Mapping[str, str], blobs: Mapping[str, bytes]) -> str | None:
        """Return the digest of a world, or None if a part has no entries (see `part_entries`).

        Args:
            parts: The blob id of each part.
            blobs: Bytes of parts that might not be stored yet, by blob id. Other blobs are read from the store.
        """
        keys, names = dict(parts), tuple(parts)
        chains = [stored_environment(names, toolpack) for toolpack in dict.fromkeys(map(toolpack_of, names))]
        # The entries of an environment in pieces are cached for its first part. Their key contains the ids of all
        # pieces, because they depend on all pieces.
        for stored in filter(None, chains):
            keys[stored.parts[0]] = " ".join(map(parts.__getitem__, stored.parts))
        cached = {part: self._cache.get(key) for part, key in keys.items()}
        entries = {part: entry[0] for part, entry in cached.items() if entry is not None}
        missing = {part: blob_id for part, blob_id in parts.items() if part not in entries}
        for stored in filter(None, chains):
            if stored.parts[0] in missing:
                missing.update((part, parts[part]) for part in stored.parts)
        if missing:
            read = self._runner.run(ReadEntries(Snapshot(missing, PartBytes(self._store, missing, blobs))))
            for part in missing:
                entries[part] = read[part]
                self.put(keys[part], read[part])
        return world_digest((toolpack_of(part), each) for part, each in entries.items())
