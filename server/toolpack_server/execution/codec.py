"""Codecs: convert environments of the loaded toolpacks to blobs and back, part by part.

A *part* is a group of an environment's fields that is stored as one blob. `Codec` checks the keyed hash of a blob
before it decodes the blob, so it decodes only bytes written by a server with this key. `PlainCodec` uses no hash. It is
for bytes that never leave the server, and for executors, which don't receive the key. Only this module combines
classes, their fingerprints and the key.
"""

import itertools
import secrets
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager

from pydantic import BaseModel

from toolpack_server.base.cache import BoundedCache
from toolpack_server.base.errors import ClassesChangedError, SnapshotError, TooLargeError
from toolpack_server.execution.lazy_environment import LazyEnvironment
from toolpack_server.execution.parts import SEPARATOR as PART_SEPARATOR
from toolpack_server.execution.parts import divide, toolpack_of
from toolpack_server.packs.catalog import Catalog
from toolpack_server.packs.lazy_obstacles import lazy_obstacle
from toolpack_server.snapshots.pickling import freeze, thaw
from toolpack_server.snapshots.seal import seal, unseal
from toolpack_server.volumes.volume import VolumeContext, first_piece, part_name, take_out

MAX_EXACT = 256  # entries of the cache `PlainCodec.exact`


class PlainCodec:
    """Converts parts of the loaded toolpacks' environments to blobs without a keyed hash, and back."""

    def __init__(self, catalog: Catalog, max_bytes: int, volumes: VolumeContext) -> None:
        self.catalog = catalog
        self.max_bytes = max_bytes
        self.volumes = volumes
        self.lazy_kind = LazyEnvironment.kind_for(catalog.classes, max_bytes)
        # The digests of initial environments that are known to be restored exactly; see `initial.build`.
        self.exact = BoundedCache[tuple[tuple[str, bytes], ...], bool](MAX_EXACT)

    def encode(self, part: str, environment: BaseModel) -> tuple[str, bytes]:
        """Freeze (serialize) a part of a toolpack's environment, and return its new blob id and its bytes.

        Raises:
            SnapshotError: The part contains an object that can't be stored exactly.
            TooLargeError: The part has more than `max_bytes`.
        """
        return self.seal(part, self._freeze(part, environment))

    def decode(self, part: str, blob_id: str, blob: bytes) -> BaseModel:
        """Check the hash of a part of a toolpack's environment, and thaw (deserialize) the part.

        Raises:
            ClassesChangedError: The part was written with classes that differ from the loaded classes.
            StateDamagedError: The hash is wrong, or the part can't be deserialized.
        """
        return self.thaw(self.unseal(part, blob_id, blob))

    def copy(self, environment: BaseModel) -> BaseModel:
        """Return a copy of an environment, made by storing and restoring it. Raise the same errors as `encode`."""
        return self.thaw(freeze(environment, self.catalog.classes))

    def thaw(self, payload: bytes) -> BaseModel:
        """Return the environment that was frozen to these bytes. Raise the same errors as `decode`."""
        environment: BaseModel = thaw(payload, self.catalog.classes)
        return environment

    def try_freeze(self, environment: BaseModel) -> bytes | None:
        """Return the bytes that `encode` would store for an environment, or None if it can't be stored."""
        try:
            return freeze(environment, self.catalog.classes)
        except SnapshotError:
            return None

    def freeze_parts(
        self, toolpack: str, environment: BaseModel, interruptible: AbstractContextManager[object]
    ) -> dict[str, bytes]:
        """Take the volumes out of an environment, divide the rest into parts, and freeze each part.

        A large environment becomes one chain of objects instead, if most of its objects can be loaded one by one; see
        `LazyEnvironment.first_part`. Volumes are built within `interruptible`, because building a volume can run an
        author's code or a client's SQL, and a missed deadline must be able to interrupt it. Raise the same errors as
        `encode`.
        """
        pack = self.catalog.toolpacks[toolpack]
        volumes = take_out(environment, of_instances=pack.holds_instances)
        parts = divide(pack, environment, frozenset(volumes))
        payloads = {part: self._freeze(part, piece) for part, piece in parts.items()}
        min_bytes = self.volumes.limits.lazy_min_bytes
        is_large = min_bytes and sum(map(len, payloads.values())) >= min_bytes
        if is_large and pack.lazy and lazy_obstacle(pack) is None:
            payloads = self.lazy_kind.first_part(toolpack, environment) or payloads
        for path, volume in volumes.items():
            self.volumes.kinds[volume.kind]  # raises KeyError for an unknown kind: no reader could read this volume
            part = part_name(f"{toolpack}{PART_SEPARATOR}{path}", volume.kind, 0)
            with interruptible:
                body = volume.build(self.volumes.limits)
            payloads[part] = first_piece(volume.kind, body)
        return payloads

    def _freeze(self, part: str, environment: BaseModel) -> bytes:
        """Freeze a part, and check its size. Raise the same errors as `encode`."""
        payload = freeze(environment, self.catalog.classes)
        if len(payload) > self.max_bytes:
            raise TooLargeError(
                f"the environment of {toolpack_of(part)!r} has grown to {len(payload)} bytes; {self.max_bytes} are "
                "allowed."
            )
        return payload

    def seal_all(self, payloads: Mapping[str, bytes]) -> dict[str, tuple[str, bytes]]:
        """Return the id and the bytes of the blob for each frozen part."""
        return {part: self.seal(part, payload) for part, payload in payloads.items()}

    def seal(self, part: str, payload: bytes) -> tuple[str, bytes]:  # noqa: ARG002 - `Codec` uses it
        """Return the id and the bytes of the blob for a frozen part. `Codec` adds the keyed hash here."""
        return "", payload

    def unseal(self, part: str, blob_id: str, blob: bytes) -> bytes:  # noqa: ARG002 - as above
        """Return the frozen part that a blob contains. Raise the same errors as `decode`."""
        return blob


class Codec(PlainCodec):
    """Converts parts of the loaded toolpacks' environments to blobs with a keyed hash, and back."""

    def __init__(self, catalog: Catalog, key: bytes, max_bytes: int, volumes: VolumeContext) -> None:
        super().__init__(catalog, max_bytes, volumes)
        self._key = key
        # Prefix of blob ids. Ids increase with time, which keeps a store's index compact. The prefix is generated here,
        # not at import, because workers are forked after the import and each needs its own prefix.
        self._id_prefix = f"{int(time.time()):08x}{secrets.token_hex(6)}"
        self._serial = itertools.count()

    def seal(self, part: str, payload: bytes) -> tuple[str, bytes]:
        blob_id = f"{self._id_prefix}{next(self._serial):010x}"
        label = _seal_label(part, blob_id)
        return blob_id, seal(payload, self.catalog.fingerprints[toolpack_of(part)], self._key, label)

    def unseal(self, part: str, blob_id: str, blob: bytes) -> bytes:
        toolpack = toolpack_of(part)
        fingerprint = self.catalog.fingerprints.get(toolpack)
        if fingerprint is None:
            raise ClassesChangedError(f"Toolpack {toolpack!r} is not loaded any more: load it, or close the session.")
        return unseal(blob, fingerprint, self._key, _seal_label(part, blob_id))


def _seal_label(part: str, blob_id: str) -> str:
    """Return the label that the hash includes, so that a blob can't be read as another part or blob."""
    return f"{blob_id} {part}"
