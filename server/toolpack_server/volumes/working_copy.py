"""Working copies of volumes, and the metadata of the pieces that they were loaded from.

`volume` has the table of a working copy's states.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import NamedTuple, Self

Key = int | str
"""Name of one unit of a volume's content: the number of a database page, or the path of a file."""


class PieceInfo(NamedTuple):
    """Metadata of one piece of a chain, which the next commit needs.

    Attributes:
        id: The piece's id. The next piece in the chain refers to it.
        sizes: Bytes of each key in the piece. None for the first piece, which holds the whole content.
        size: Total bytes of the piece.
    """

    id: str
    sizes: Mapping[Key, int] | None
    size: int


class WorkingCopy(ABC):
    """Content of a volume while calls use it: a file, a folder or an object. Only one call at a time may change it.

    Attributes:
        pieces: Metadata of the pieces whose content the copy equals.
    """

    pieces: tuple[PieceInfo, ...] = ()

    @property
    @abstractmethod
    def size(self) -> int:
        """Approximate number of bytes in the scratch folder or in memory."""

    @abstractmethod
    def clone(self) -> Self:
        """Return a separate copy that may be changed. Other calls may read this working copy meanwhile."""

    @abstractmethod
    def discard(self) -> None:
        """Free the file, folder or memory. This is called once, after the last use, and must be quick."""
