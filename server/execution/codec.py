"""Convert environments of the loaded toolpacks to sealed blobs and back, part by part.

The rule: only this module combines classes, fingerprints and the key. Nothing is decoded before its keyed hash is
checked.
"""

import itertools
import secrets
import time

from pydantic import BaseModel

from server.errors import ClassesChangedError, TooLargeError
from server.execution.parts import divide, toolpack_of
from server.packs.catalog import Catalog
from server.snapshots.pickling import freeze, thaw
from server.snapshots.seal import is_bound, seal, unseal


class Codec:
    """Converts environments of the loaded toolpacks to sealed blobs and back.

    Args:
        catalog: The loaded toolpacks.
        key: The secret key of the hash on every blob.
        max_bytes: The largest snapshot of a part that is written.
    """

    def __init__(self, catalog: Catalog, key: bytes, max_bytes: int) -> None:
        self.catalog = catalog
        self._key = key
        self._max_bytes = max_bytes
        # Created here, not on import: workers are forked after that and must not share it.
        self._ids = f"{int(time.time()):08x}{secrets.token_hex(6)}"
        self._serial = itertools.count()

    def _new_blob_id(self) -> str:
        """Make a unique blob id; ids increase with time, which keeps a store's index compact."""
        return f"{self._ids}{next(self._serial):010x}"

    def encode(self, part: str, environment: BaseModel) -> tuple[str, bytes]:
        """Freeze and seal a part of a toolpack's environment, and get its new blob id and its bytes.

        Raises:
            SnapshotError: It holds something that can't be stored exactly.
            TooLargeError: It is too large.
        """
        toolpack = toolpack_of(part)
        payload = freeze(environment, self.catalog.classes)
        if len(payload) > self._max_bytes:
            raise TooLargeError(
                f"the environment of {toolpack!r} has grown to {len(payload)} bytes; {self._max_bytes} are allowed."
            )
        blob_id = self._new_blob_id()
        return blob_id, seal(payload, self.catalog.fingerprints[toolpack], self._key, _place(part, blob_id))

    def decode(self, part: str, blob_id: str, blob: bytes, *, bound: bool = True) -> BaseModel:
        """Check and thaw a part of a toolpack's environment.

        Args:
            part: The part.
            blob_id: The id of the blob.
            blob: Its bytes.
            bound: Refuse the format of version 0.1.0, whose hash doesn't say to which id and part it belongs.

        Raises:
            ClassesChangedError: It was written by other classes than those that are loaded.
            StateDamagedError: Its hash is wrong, or it can't be read.
        """
        toolpack = toolpack_of(part)
        fingerprint = self.catalog.fingerprints.get(toolpack)
        if fingerprint is None:
            raise ClassesChangedError(f"Toolpack {toolpack!r} is not loaded any more: load it, or close the session.")
        place = _place(part, blob_id) if bound or is_bound(blob) else ""
        environment: BaseModel = thaw(unseal(blob, fingerprint, self._key, place), self.catalog.classes)
        return environment

    def write(self, toolpack: str, environment: BaseModel) -> dict[str, tuple[str, bytes]]:
        """Divide a whole environment, and get the new id and the bytes of each part.

        Raises:
            SnapshotError: It holds something that can't be stored exactly.
            TooLargeError: A part is too large.
        """
        parts = divide(self.catalog.toolpacks[toolpack], environment)
        return {part: self.encode(part, piece) for part, piece in parts.items()}


def _place(part: str, blob_id: str) -> str:
    return f"{blob_id} {part}"
