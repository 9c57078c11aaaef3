"""Seal of stored data: a keyed hash that is checked before the data is used.

Without the key, an attacker can't forge a snapshot, change its fingerprint of classes, or exchange it for another one.
The hash is keyed BLAKE2b (RFC 7693).
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
    """Return the payload with a header: format, keyed hash of the rest and of the label, fingerprint of the classes.

    Args:
        label: Name of the sealed data, such as a session and a part. Only the same label unseals the data.
    """
    encoded = fingerprint.encode()
    classes = bytes([len(encoded)]) + encoded
    return b"".join((_HEADER, _sealing_hash(label, (classes, payload), key), classes, payload))


def unseal(blob: bytes, fingerprint: str, key: bytes, label: str) -> bytes:
    """Return the payload of a blob that was sealed with this key, label and fingerprint.

    Raises:
        StateDamagedError: The hash is wrong, as the bytes were damaged, or sealed with another key or label. Or the
            format is another one.
        ClassesChangedError: The hash is right, but the payload was written by other classes.
    """
    start = len(_HEADER) + _HASH_SIZE
    # SQLite returns text if text was written instead of bytes.
    whole = blob if isinstance(blob, bytes) else b""
    rest = memoryview(whole)[start:]  # without a copy
    if not (
        whole.startswith(_HEADER)
        and hmac.compare_digest(whole[len(_HEADER) : start], _sealing_hash(label, (rest,), key))
    ):
        other = _ANY_HEADER.match(whole)
        if other and other[0] != _HEADER:
            raise StateDamagedError(
                f"The stored state has the format {other[0].decode()}, this server reads {FORMAT}: use a server of the "
                "version that wrote it."
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
    """Keyed hashes for one purpose. Hashes for different purposes are unrelated."""

    def __init__(self, key: bytes, purpose: str) -> None:
        # Copied for every hash, because setting up the key takes longer than hashing a short text.
        self._begun = hashlib.blake2b(_framed(purpose), key=_short(key), digest_size=_HASH_SIZE)

    def of(self, *parts: str | bytes | memoryview) -> str:
        """Return the keyed hash of parts as 64 hexadecimal digits."""
        keyed = self._begun.copy()
        for part in parts:  # same as `_framed`, without a copy
            encoded = part.encode() if isinstance(part, str) else part
            keyed.update(b"%d:" % len(encoded))
            keyed.update(encoded)
        return keyed.hexdigest()


def _framed(part: str | bytes | memoryview) -> bytes:
    """Return a part with its length as prefix, so that different lists of parts have different bytes."""
    encoded = part.encode() if isinstance(part, str) else part
    return b"".join((b"%d:" % len(encoded), encoded))


def _sealing_hash(label: str, rest: Iterable[bytes | memoryview], key: bytes) -> bytes:
    keyed = hashlib.blake2b(_HEADER + _framed(label), key=_short(key), digest_size=_HASH_SIZE)
    for piece in rest:
        keyed.update(piece)
    return keyed.digest()


def _short(key: bytes) -> bytes:
    if not key:
        raise ValueError("A keyed hash needs a secret key: without a key it proves nothing.")
    return hashlib.blake2b(key).digest() if len(key) > hashlib.blake2b.MAX_KEY_SIZE else key
