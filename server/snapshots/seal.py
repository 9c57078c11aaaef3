"""The seal on stored snapshots: a keyed hash that is checked before a byte of the snapshot is read.

The rule: without the key nobody can forge a snapshot or change which classes it claims to be written by. The hash is
keyed BLAKE2b (RFC 7693).
"""

import hashlib
import hmac

from server.errors import ClassesChangedError, StateDamagedError

FORMAT = "toolpack-snapshot-1"
"""The name of the snapshot format; the keyed hash covers it."""

_HASH_SIZE = 32
_HEADER = FORMAT.encode()


def seal(payload: bytes, fingerprint: str, key: bytes) -> bytes:
    """Prepend a header: format, keyed hash of all the rest, fingerprint of the classes."""
    encoded = fingerprint.encode()
    rest = bytes([len(encoded)]) + encoded + payload
    return _HEADER + _keyed_hash(rest, key) + rest


def unseal(blob: bytes, fingerprint: str, key: bytes) -> bytes:
    """Check the header and return the payload.

    Raises:
        StateDamagedError: The hash is wrong: the bytes were damaged, or sealed with another key.
        ClassesChangedError: The hash is right, but the payload was written by other classes.
    """
    start = len(_HEADER) + _HASH_SIZE
    found, rest = blob[len(_HEADER) : start], blob[start:]
    if not (blob.startswith(_HEADER) and hmac.compare_digest(found, _keyed_hash(rest, key))):
        raise StateDamagedError(
            "The stored state fails its keyed hash: it was damaged or forged, or written with another secret key."
        )
    end = 1 + rest[0]
    if rest[1:end] != fingerprint.encode():
        raise ClassesChangedError(
            "The stored state was written by other classes than those that are loaded. "
            "Reset the session to version 0 to rebuild it, or load the classes that wrote it."
        )
    return rest[end:]


def _keyed_hash(rest: bytes, key: bytes) -> bytes:
    if not key:
        raise ValueError("A snapshot needs a secret key: without one the hash would prove nothing.")
    if len(key) > hashlib.blake2b.MAX_KEY_SIZE:
        key = hashlib.blake2b(key).digest()
    keyed = hashlib.blake2b(_HEADER, key=key, digest_size=_HASH_SIZE)
    keyed.update(rest)
    return keyed.digest()
