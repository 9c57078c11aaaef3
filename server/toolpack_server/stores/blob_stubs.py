"""Stubs of blobs that are kept outside a store, and the size of a blob or stub.

A *stub* takes the place of a blob in the store. It has the blob's size and the name of the outside object. A store
counts the bytes of the blob, not those of the stub, and lists the stub of each blob that it deletes.
"""

from collections.abc import Sequence
from typing import Protocol

MARK = b"\0outside:"
"""Prefix of each stub. No blob begins with it."""
DIGITS = 16  # of the size in a stub
MAX_STUB_BYTES = 400


def stub(size: int, name: str) -> bytes:
    """Return the stub of a blob of this size in bytes. `name` is the name of the object that has the blob."""
    return b"%b%016d:%b" % (MARK, size, name.encode())


def size_of(body: bytes) -> int:
    """Return the size of a blob in bytes, given its body or its stub."""
    if body.startswith(MARK):
        return int(body[len(MARK) : len(MARK) + DIGITS])
    return len(body)


def name_of(body: bytes) -> str | None:
    """Return the object's name in a stub, or None if `body` is the blob itself."""
    return body[len(MARK) + DIGITS + 1 :].decode() if body.startswith(MARK) else None


class OutsideStore(Protocol):
    """Further methods of a `SessionStore` that can keep large blobs elsewhere."""

    def outside_name(self, new: str) -> str:
        """Return the name of this store in the bucket of its blobs. It never changes once it is set.

        If no name is set, set it to `new`. If `new` is "", nothing is set and the answer is "".
        """

    def take_dropped(self, limit: int) -> Sequence[bytes]:
        """Remove and return up to `limit` stubs of deleted blobs. Each was listed in the step that deleted its blob."""
