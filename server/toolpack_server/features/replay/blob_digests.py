"""The digests of worlds, by which a replay is compared with what was recorded.

A blob never changes, so each is read once. What is remembered of blobs spares time and nothing else.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from pydantic import TypeAdapter
from typing_extensions import override

from toolpack_server.base.cache import BoundedCache
from toolpack_server.execution.parts import toolpack_of
from toolpack_server.execution.runner import Runner, RunnerOperation
from toolpack_server.execution.snapshot import Snapshot
from toolpack_server.execution.world import ExecutionContext
from toolpack_server.features.replay.world_digest import Entries, part_entries, piece_entries, world_digest
from toolpack_server.sessions.part_bytes import PartBytes
from toolpack_server.stores.base import SessionStore
from toolpack_server.volumes.volume import is_piece

REMEMBERED = 10_000  # parts whose entries a worker knows


@dataclass(eq=False)
class ReadEntries(RunnerOperation[dict[str, Entries | None]]):
    """Get what the digest of each part is made of."""

    snapshot: Snapshot
    name = "entries"
    shape = TypeAdapter(dict[str, Entries | None])

    @override
    def run(self, context: ExecutionContext) -> dict[str, Entries | None]:
        codec, snapshot = context.codec, self.snapshot
        found: dict[str, Entries | None] = {}
        for part, blob_id in snapshot.parts.items():
            if is_piece(part):
                found[part] = piece_entries(part, codec.unseal(part, blob_id, snapshot.blobs[part]), codec.volumes)
            else:
                found[part] = part_entries(codec.decode(part, blob_id, snapshot.blobs[part]), codec.catalog.classes)
        return found

    @override
    def fits(self, result: Mapping[str, Entries | None]) -> bool:
        return result.keys() == self.snapshot.parts.keys()


class StateDigests:
    """Gets the digests of worlds, part by part; blobs never change, so each is read once."""

    def __init__(self, runner: Runner, store: SessionStore) -> None:
        self._runner = runner
        self._store = store
        self._known = BoundedCache[str, tuple[Entries | None]](REMEMBERED)

    def note(self, blob_id: str, entries: Entries | None) -> None:
        self._known.put(blob_id, (entries,))

    def digest(self, parts: Mapping[str, str], blobs: Mapping[str, bytes]) -> str | None:
        """Get the digest of a world; None if it has none.

        Args:
            blobs: The bytes of parts, as far as they are at hand, and of those that aren't in the store yet.
        """
        known = {part: self._known.get(blob_id) for part, blob_id in parts.items()}
        found = {part: entry[0] for part, entry in known.items() if entry is not None}
        missing = {part: blob_id for part, blob_id in parts.items() if part not in found}
        if missing:
            read = self._runner.run(ReadEntries(Snapshot(missing, PartBytes(self._store, missing, blobs))))
            for part, blob_id in missing.items():
                found[part] = read[part]
                self.note(blob_id, read[part])
        return world_digest((toolpack_of(part), entries) for part, entries in found.items())
