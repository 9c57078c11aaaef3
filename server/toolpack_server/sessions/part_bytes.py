"""Bytes of a version's parts, read from the store on demand.

All code gets the bytes of parts from here, so no result depends on the contents of this worker's cache.
"""

from collections.abc import Mapping

from toolpack_server.engine.state import NONE
from toolpack_server.stores.base import SessionStore
from toolpack_server.volumes.volume import is_piece


class PartBytes(dict[str, bytes]):
    """Mapping from parts to their bytes. Missing bytes are read from the store and then kept.

    Pieces of volumes are read each time, because the server keeps working copies of volumes instead.

    Args:
        parts: Blob ids by part.
        known: Bytes by part that are in memory already.
        unstored: Blobs by id that the store may not have yet. An entry may disappear after it is stored.
    """

    def __init__(
        self,
        store: SessionStore,
        parts: Mapping[str, str],
        known: Mapping[str, bytes],
        unstored: Mapping[str, bytes] = NONE,
    ) -> None:
        super().__init__(known)
        self._store = store
        self._parts = parts
        self._unstored = unstored

    def __missing__(self, part: str) -> bytes:
        blob_id = self._parts[part]
        blob = self._unstored.get(blob_id)  # before the store: the entry disappears only after it is stored
        if blob is None:
            blob = self._store.blobs([blob_id])[blob_id]
        if not is_piece(part):
            self[part] = blob
        return blob
