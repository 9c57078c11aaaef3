"""The keyed hash on whatever is stored, checked before a byte of it is used.

Without the key nobody can forge a snapshot, change which classes it claims to be written by, or put it in
another's place. The hash is keyed BLAKE2b (RFC 7693).
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


def seal(payload: bytes, fingerprint: str, key: bytes, place: str) -> bytes:
    """Prepend a header: format, keyed hash of all the rest and of the place, fingerprint of the classes."""
    encoded = fingerprint.encode()
    classes = bytes([len(encoded)]) + encoded
    return b"".join((_HEADER, _sealing_hash(place, (classes, payload), key), classes, payload))


def unseal(blob: bytes, fingerprint: str, key: bytes, place: str) -> bytes:
    """Check that a blob was sealed for this place, by classes of this fingerprint, and return the payload.

    Raises:
        StateDamagedError: The hash is wrong: the bytes were damaged, sealed with another key or for another place. Or
            they have another format.
        ClassesChangedError: The hash is right, but the payload was written by other classes.
    """
    start = len(_HEADER) + _HASH_SIZE
    # SQLite keeps text as text if somebody has written that instead of bytes.
    whole = blob if isinstance(blob, bytes) else b""
    rest = memoryview(whole)[start:]  # a large one isn't copied
    if not (
        whole.startswith(_HEADER)
        and hmac.compare_digest(whole[len(_HEADER) : start], _sealing_hash(place, (rest,), key))
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
    """Keyed hashes for one purpose; those for different purposes have nothing in common."""

    def __init__(self, key: bytes, purpose: str) -> None:
        # Copied for every hash: setting the key up takes longer than hashing a short text.
        self._begun = hashlib.blake2b(_framed(purpose), key=_short(key), digest_size=_HASH_SIZE)

    def of(self, *parts: str | bytes | memoryview) -> str:
        """Get the keyed hash of parts, as 64 hexadecimal digits."""
        keyed = self._begun.copy()
        for part in parts:  # as `_framed` does, without a copy
            encoded = part.encode() if isinstance(part, str) else part
            keyed.update(b"%d:" % len(encoded))
            keyed.update(encoded)
        return keyed.hexdigest()


def _framed(part: str | bytes | memoryview) -> bytes:
    """Put the length in front, so that no two lists of parts are the same text."""
    encoded = part.encode() if isinstance(part, str) else part
    return b"".join((b"%d:" % len(encoded), encoded))


def _sealing_hash(place: str, rest: Iterable[bytes | memoryview], key: bytes) -> bytes:
    keyed = hashlib.blake2b(_HEADER + _framed(place), key=_short(key), digest_size=_HASH_SIZE)
    for piece in rest:
        keyed.update(piece)
    return keyed.digest()


def _short(key: bytes) -> bytes:
    if not key:
        raise ValueError("A keyed hash needs a secret key: without one it would prove nothing.")
    return hashlib.blake2b(key).digest() if len(key) > hashlib.blake2b.MAX_KEY_SIZE else key
