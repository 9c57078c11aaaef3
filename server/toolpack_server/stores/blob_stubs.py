"""Stubs, which stand in a store for large blobs that are kept in a bucket.

A *stub* has the size of a blob and the name of the bucket's object that has the blob. A store counts the size of the
blob, not of the stub. It lists the stub of each blob that it deletes, so that the object can be deleted later.
"""

from collections.abc import Sequence
from typing import Protocol

MARK = b"\0outside:"
"""Prefix of each stub. No blob begins with it."""
DIGITS = 16  # digits of the size in a stub
MAX_STUB_BYTES = 400


def stub(size: int, name: str) -> bytes:
    """Return the stub for a blob: its size in bytes, and the name of the object that has it."""
    return b"%b%016d:%b" % (MARK, size, name.encode())


def size_of(body: bytes) -> int:
    """Return the size of a blob in bytes. `body` is the blob or its stub."""
    if body.startswith(MARK):
        return int(body[len(MARK) : len(MARK) + DIGITS])
    return len(body)


def name_of(body: bytes) -> str | None:
    """Return the object's name in a stub, or None if `body` is a blob."""
    return body[len(MARK) + DIGITS + 1 :].decode() if body.startswith(MARK) else None


class OutsideStore(Protocol):
    """Additional methods of a `SessionStore` that supports stubs."""

    def outside_name(self, new: str) -> str:
        """Return the name of this store in the bucket of its blobs. Once it is set, the name never changes.

        If the store has no name yet, its name becomes `new`. If `new` is "", return "" instead.
        """

    def take_dropped(self, limit: int) -> Sequence[bytes]:
        """Remove up to `limit` stubs of deleted blobs from the list, and return them.

        A stub is added to the list in the transaction that deletes its blob.
        """
