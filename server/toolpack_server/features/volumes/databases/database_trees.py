"""Which rows of a table two files of a database may have otherwise, found by their pages without reading the rows.

A table is a tree of pages, whose inner pages say where the rowids of each leaf begin and end
(https://www.sqlite.org/fileformat2.html#b_tree_pages). A row in a leaf that both files have at the same place with the
same bytes is the same in both, unless a page that its large values overflow to has changed.

Whoever asks compares in full what isn't found out here, so that a file that is read wrongly costs no row.
"""

import mmap
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Self

_LEAVES, _INNER_TABLE, _INNER_INDEX = (10, 13), 5, 2
_FIRST_PAGE_HEADER, _FREELIST, _ENCODING = 100, 32, slice(56, 60)
_LEAST, _MOST = -(2**63), 2**63 - 1

Ranges = Sequence[tuple[int, int]]
"""The first and the last of rowids that follow each other."""

Tree = tuple[str, str, str | None]
"""What a tree of pages is for: the type, the name and the SQL of a table or an index."""

Roots = Mapping[Tree, int]

_Leaves = dict[int, tuple[int, int]]


def changed_ranges(
    files: tuple[Path, Path], roots: tuple[Roots, Roots], page_size: int, differing: set[int]
) -> dict[Tree, Ranges]:
    """Get the rowids whose rows may have changed, for each tree that both files have; of an index or such all or none.

    Args:
        files: Both files, with pages of the same size.
        roots: The first page of each tree of both.
        page_size: In bytes.
        differing: The numbers of the pages that the second one has, and has otherwise.

    Returns:
        By tree; nothing if that can't be found out.
    """
    try:
        with ExitStack() as stack:
            one, other = (stack.enter_context(_Trees(file, page_size)) for file in files)
            lefts, rights = (
                {tree: trees.leaves(root) for tree, root in of_one.items()}
                for trees, of_one in zip((one, other), roots, strict=True)
            )
            one.note_free()
            other.note_free()
            # A large value changes in place only where both files have pages that are neither in a tree nor free.
            overflown = any(
                page not in one.known and page not in other.known for page in differing if page <= one.pages
            )
            if overflown or one.encoding != other.encoding:
                return {}
            return {tree: _ranges(left, rights[tree], differing) for tree, left in lefts.items() if tree in rights}
    except (IndexError, ValueError, struct.error):
        return {}


def _ranges(left: _Leaves, right: _Leaves, differing: set[int]) -> Ranges:
    changed = [
        span
        for leaves, others in ((left, right), (right, left))
        for page, span in leaves.items()
        if page in differing or page not in others
    ]
    merged: list[tuple[int, int]] = []
    for first, last in sorted(changed):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = merged[-1][0], max(last, merged[-1][1])
        else:
            merged.append((first, last))
    return merged


class _Trees:
    """The pages of a file.

    Attributes:
        pages: How many there are.
        known: Those that were seen in trees, or that are free.
        encoding: Of its texts.
    """

    def __init__(self, path: Path, page_size: int) -> None:
        with path.open("rb") as file:
            self._data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._size = page_size
        self.pages = len(self._data) // page_size
        self.known: set[int] = set()
        self.encoding = self._data[_ENCODING]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._data.close()

    def leaves(self, root: int) -> _Leaves:
        """Get the leaves of a tree, with the rowids that they can have; of an index all pages, which all have keys."""
        level: _Leaves = {root: (_LEAST, _MOST)}
        found = level
        while (kind := self._data[self._start(next(iter(level)))]) not in _LEAVES:  # all leaves are equally deep
            self._note(level)
            level = {page: span for inner, around in level.items() for page, span in self._children(inner, *around)}
            found = level if kind == _INNER_TABLE else found | level
        self._note(level)
        return found

    def note_free(self) -> None:
        trunk = self._number(_FREELIST)
        while trunk:
            self._note([trunk])
            start = (trunk - 1) * self._size
            trunk, count = struct.unpack_from(">II", self._data, start)
            self._note(struct.unpack_from(f">{count}I", self._data, start + 8))

    def _note(self, pages: Iterable[int]) -> None:
        pages = set(pages)
        if pages & self.known:
            raise ValueError("a page is in two places")
        self.known |= pages

    def _start(self, page: int) -> int:
        if page < 1:
            raise ValueError("there is no such page")
        return (page - 1) * self._size + (_FIRST_PAGE_HEADER if page == 1 else 0)

    def _number(self, place: int) -> int:
        number: int = struct.unpack_from(">I", self._data, place)[0]
        return number

    def _children(self, page: int, first: int, last: int) -> Iterator[tuple[int, tuple[int, int]]]:
        data, start = self._data, self._start(page)
        kind, (count,) = data[start], struct.unpack_from(">H", data, start + 3)
        if kind not in (_INNER_TABLE, _INNER_INDEX):
            raise ValueError("it isn't an inner page")
        for cell in struct.unpack_from(f">{count}H", data, start + 12):
            place = (page - 1) * self._size + cell
            until = _varint(data, place + 4) if kind == _INNER_TABLE else last
            yield self._number(place), (first, until)
            first = until + 1 if kind == _INNER_TABLE else first
        yield self._number(start + 8), (first, last)


def _varint(data: mmap.mmap, place: int) -> int:
    """Read a number as SQLite writes it: seven bits a byte, but eight in the ninth; with a sign."""
    number = 0
    for byte in data[place : place + 8]:
        number = number << 7 | byte & 0x7F
        if byte < 0x80:  # noqa: PLR2004 - the highest bit
            return number
    number = number << 8 | data[place + 8]
    return number - 2**64 if number > _MOST else number
