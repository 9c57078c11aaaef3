"""Seal of stored data: a keyed hash that is checked before the data is used.

An attacker without the key can't forge a snapshot, change the fingerprint of its classes, or replace it by another
sealed snapshot. The hash is keyed BLAKE2b (RFC 7693).
"""

import hashlib
import hmac
import re
from collections.abc import Iterable

from toolpack_server.base.errors import ClassesChangedError, StateDamagedError

FORMAT = "toolpack-snapshot-1"
"""The name of the snapshot format."""

_HASH_SIZE = 32
_HEADER = FORMAT.encode()
_ANY_HEADER = re.compile(rb"toolpack-snapshot-\d")


def seal(payload: bytes, fingerprint: str, key: bytes, label: str) -> bytes:
    """Return the payload with a header in front: the format, a keyed hash, and the fingerprint of the classes.

    The hash covers the label, the fingerprint and the payload.

    Args:
        payload: The data.
        fingerprint: Fingerprint of the classes of the payload's objects.
        key: The secret key.
        label: Name of the data, such as the name of a part. The data can be unsealed only with the same label.
    """
    encoded = fingerprint.encode()
    classes = bytes([len(encoded)]) + encoded
    return b"".join((_HEADER, _sealing_hash(label, (classes, payload), key), classes, payload))


def unseal(blob: bytes, fingerprint: str, key: bytes, label: str) -> bytes:
    """Return the payload of a blob that was sealed with this key, label and fingerprint.

    Raises:
        StateDamagedError: The format or the hash is wrong. The bytes were damaged, or sealed with another key or label.
        ClassesChangedError: The hash is right, but the fingerprint differs.
    """
    start = len(_HEADER) + _HASH_SIZE
    # In a damaged SQLite file, the blob can be text instead of bytes.
    data = blob if isinstance(blob, bytes) else b""
    rest = memoryview(data)[start:]  # a view, because a copy could need much memory
    if not (
        data.startswith(_HEADER) and hmac.compare_digest(data[len(_HEADER) : start], _sealing_hash(label, (rest,), key))
    ):
        other = _ANY_HEADER.match(data)
        if other and other[0] != _HEADER:
            raise StateDamagedError(
                f"The stored state has the format {other[0].decode()}, but this server reads {FORMAT}: use a server of "
                "the version that wrote it."
            )
        raise StateDamagedError(
            "The stored state fails its keyed hash, because it was damaged or forged, or written with another secret "
            "key: restore a backup or that key, or reset the session."
        )
    end = 1 + rest[0]
    if rest[1:end] != fingerprint.encode():
        raise ClassesChangedError(
            "The stored state was written by other classes than those that are loaded. "
            "Reset the session to version 0 to rebuild it, or load the classes that wrote it."
        )
    return bytes(rest[end:])


class KeyedHash:
    """Keyed hashes for one purpose. A hash for one purpose is never valid for another purpose."""

    def __init__(self, key: bytes, purpose: str) -> None:
        # The method `of` copies this object, because setting up the key takes longer than hashing a short text.
        self._begun = hashlib.blake2b(_framed(purpose), key=_short(key), digest_size=_HASH_SIZE)

    def of(self, *parts: str | bytes | memoryview) -> str:
        """Return the keyed hash of parts as 64 hexadecimal digits."""
        keyed = self._begun.copy()
        for part in parts:  # the same bytes as `_framed` returns, but without a copy
            encoded = part.encode() if isinstance(part, str) else part
            keyed.update(b"%d:" % len(encoded))
            keyed.update(encoded)
        return keyed.hexdigest()


def _framed(part: str | bytes | memoryview) -> bytes:
    """Return a part with its length as prefix. Without lengths, different lists of parts could yield the same bytes."""
    encoded = part.encode() if isinstance(part, str) else part
    return b"".join((b"%d:" % len(encoded), encoded))


def _sealing_hash(label: str, rest: Iterable[bytes | memoryview], key: bytes) -> bytes:
    """Return the keyed hash of the format, the label and the rest of the blob."""
    keyed = hashlib.blake2b(_HEADER + _framed(label), key=_short(key), digest_size=_HASH_SIZE)
    for piece in rest:
        keyed.update(piece)
    return keyed.digest()


def _short(key: bytes) -> bytes:
    """Return a key that isn't too long for BLAKE2b."""
    if not key:
        raise ValueError("A keyed hash needs a secret key: without a key it proves nothing.")
    return hashlib.blake2b(key).digest() if len(key) > hashlib.blake2b.MAX_KEY_SIZE else key
