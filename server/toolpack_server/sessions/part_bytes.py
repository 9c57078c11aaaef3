"""Bytes of a version's parts, read from the store on demand.

All code reads the bytes of parts through `PartBytes`, so results don't depend on the worker's cache.
"""

from collections.abc import Mapping

from toolpack_server.engine.state import NONE
from toolpack_server.stores.base import SessionStore
from toolpack_server.volumes.volume import is_piece


class PartBytes(dict[str, bytes]):
    """Mapping from parts to their bytes. Bytes that aren't in memory are read from the store and then kept.

    Pieces of volumes aren't kept, because the server caches volumes as working copies instead.

    Args:
        store: The store.
        parts: Blob ids by part.
        cached: Bytes that are already in memory, by part.
        unstored: Blobs that a commit is storing now, by id. Another thread can remove an entry when its blob is stored.
    """

    def __init__(
        self,
        store: SessionStore,
        parts: Mapping[str, str],
        cached: Mapping[str, bytes],
        unstored: Mapping[str, bytes] = NONE,
    ) -> None:
        super().__init__(cached)
        self._store = store
        self._parts = parts
        self._unstored = unstored

    def __missing__(self, part: str) -> bytes:
        """Return the bytes of a part that isn't in memory."""
        blob_id = self._parts[part]
        # Look here before the store, because an entry is removed only after the store contains the blob.
        blob = self._unstored.get(blob_id)
        if blob is None:
            blob = self._store.blobs([blob_id])[blob_id]
        if not is_piece(part):
            self[part] = blob
        return blob
