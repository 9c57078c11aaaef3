"""The bytes of a version's parts, read from the store as far as nobody has them.

Whoever needs the bytes of a part asks here, so nothing depends on what this worker happens to remember.
"""

from collections.abc import Mapping

from toolpack_server.engine.state import NONE
from toolpack_server.stores.base import SessionStore
from toolpack_server.volumes.volume import is_piece


class PartBytes(dict[str, bytes]):
    """The bytes of parts with these blob ids, of which some are known already.

    Those of pieces of volumes are read each time: of volumes the working copies are kept.

    Args:
        unstored: Blobs that the store may not have yet, by id; they may go when it has them.
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
        blob = self._unstored.get(blob_id)  # asked first: it goes from there once it is in the store
        if blob is None:
            blob = self._store.blobs([blob_id])[blob_id]
        if not is_piece(part):
            self[part] = blob
        return blob
