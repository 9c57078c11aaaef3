"""Blobs that are kept outside a store: what stands in their place, and how large they are.

Whoever has put a blob elsewhere stores a *stub* for it, which says its size and its name there. A store
counts the bytes of the blob, not those of its stub, and notes the stub of each blob that it deletes.
"""

from collections.abc import Sequence
from typing import Protocol

MARK = b"\0outside:"
"""What each stub begins with, and no other blob."""
DIGITS = 16
MAX_STUB_BYTES = 400


def stub(size: int, name: str) -> bytes:
    """Make what stands for a blob of so many bytes that is elsewhere under this name."""
    return b"%b%016d:%b" % (MARK, size, name.encode())


def size_of(body: bytes) -> int:
    """Get how many bytes a blob has, of which this is the body or the stub."""
    if body.startswith(MARK):
        return int(body[len(MARK) : len(MARK) + DIGITS])
    return len(body)


def name_of(body: bytes) -> str | None:
    """Get the name in a stub; None if it is a whole blob."""
    return body[len(MARK) + DIGITS + 1 :].decode() if body.startswith(MARK) else None


class OutsideStore(Protocol):
    """A `SessionStore` of which large blobs may be kept outside has these methods, too."""

    def outside_name(self, new: str) -> str:
        """Get the name under which blobs are kept outside, the same for ever; `new` if there is none yet.

        With "" for `new` nothing is noted, and the answer is "" if nothing was kept outside so far.
        """

    def take_dropped(self, limit: int) -> Sequence[bytes]:
        """Get up to `limit` stubs of blobs that were deleted, each once: they were noted in the step that deleted."""
