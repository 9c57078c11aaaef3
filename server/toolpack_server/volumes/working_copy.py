"""Working copies of volumes, and the shape of the chain that each equals. `volume` has the table of their lives."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import NamedTuple, Self

Key = int | str
"""What a piece holds is known by keys: the number of a page, the path of a file."""


class PieceShape(NamedTuple):
    """One piece of a chain, as far as the next commit must know it.

    Attributes:
        id: By which the piece above it names it.
        sizes: The bytes of each key that it holds; None for the first one, which holds everything.
        size: Its bytes.
    """

    id: str
    sizes: Mapping[Key, int] | None
    size: int


Shape = tuple[PieceShape, ...]


class WorkingCopy(ABC):
    """A volume's content while it is used: a file, a folder or an object. It belongs to one call at a time.

    Attributes:
        shape: The chain that it equals.
    """

    shape: Shape = ()

    @property
    @abstractmethod
    def size(self) -> int:
        """About how many bytes it takes in the scratch folder, or in memory."""

    @abstractmethod
    def clone(self) -> Self:
        """Make another one with the same content, which may be changed. Other calls may read this one meanwhile."""

    @abstractmethod
    def discard(self) -> None:
        """Remove what it takes. Brief; called once, when nobody uses it."""
