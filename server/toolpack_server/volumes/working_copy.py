"""Working copies of volumes, and the metadata of the pieces that they were loaded from.

The docstring of `volume` explains volumes, and lists the states of a working copy.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import NamedTuple, Self

Key = int | str
"""Name of one unit of a volume's content, such as the number of a database page or the path of a file."""


class PieceInfo(NamedTuple):
    """Metadata of one piece of a chain, which the next commit needs.

    Attributes:
        id: The piece's id. The next piece in the chain refers to it.
        sizes: Size in bytes of each key's content in the piece. None for the first piece, which contains the whole
            volume.
        size: Total size of the piece in bytes.
    """

    id: str
    sizes: Mapping[Key, int] | None
    size: int


class WorkingCopy(ABC):
    """Content of a volume as a file, a folder or an object, which calls use. At most one call at a time can change it.

    Attributes:
        pieces: Metadata of the pieces whose content this copy contains.
    """

    pieces: tuple[PieceInfo, ...] = ()

    @property
    @abstractmethod
    def size(self) -> int:
        """Approximate size in bytes, in the scratch folder or in memory."""

    @abstractmethod
    def clone(self) -> Self:
        """Return a separate copy that the caller can change. Meanwhile, other calls can read this working copy."""

    @abstractmethod
    def discard(self) -> None:
        """Free the file, folder or memory. The server calls this method once, after the last use. It must be quick."""
