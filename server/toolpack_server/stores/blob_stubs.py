"""Stubs, which a store contains in place of large blobs that are kept in a bucket.

A *stub* consists of the size of a blob and the name of the bucket's object that contains the blob. A store counts the
size of the blob, not of the stub. When a store deletes a blob, it adds the stub to a list, so that the object can be
deleted later.
"""

from collections.abc import Sequence
from typing import Protocol

MARK = b"\0outside:"
"""Prefix of each stub. No blob begins with it."""
DIGITS = 16  # number of digits of the size in a stub
MAX_STUB_BYTES = 400


def stub(size: int, name: str) -> bytes:
    """Return the stub for a blob with this size in bytes, which the object with this name contains."""
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
        """Return the name of this store in the bucket that contains its blobs. Once set, the name never changes.

        If the store has no name yet, set its name to `new`. If `new` is "", leave the name unset and return "".
        """

    def take_dropped(self, limit: int) -> Sequence[bytes]:
        """Remove up to `limit` stubs of deleted blobs from the list, and return them.

        The transaction that deletes a blob also adds the blob's stub to the list.
        """
