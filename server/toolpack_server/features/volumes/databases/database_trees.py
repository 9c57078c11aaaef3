"""Search for rows that might differ between two files of a database, without reading the rows.

A table is a tree of pages, whose inner pages contain the first and last rowid of each leaf
(https://www.sqlite.org/fileformat2.html#b_tree_pages). If a leaf has the same page number and bytes in both files, its
rows are equal, unless an overflow page with a large value has changed.

If the result is uncertain, for example because a file has an unexpected format, `changed_ranges` returns an empty
result. The caller then compares all rows, so that no change is missed.
"""

import mmap
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Self

_LEAVES, _INNER_TABLE, _INNER_INDEX = (10, 13), 5, 2
_FIRST_PAGE_HEADER, _FREELIST, _ENCODING = 100, 32, slice(56, 60)
_MIN_ROWID, _MAX_ROWID = -(2**63), 2**63 - 1

Ranges = Sequence[tuple[int, int]]
"""Ranges of rowids, each with its first and its last rowid."""

Tree = tuple[str, str, str | None]
"""Identity of a tree of pages, which is the type, the name and the SQL of a table or an index."""

Roots = Mapping[Tree, int]
"""The number of each tree's first page."""

_Leaves = dict[int, tuple[int, int]]
"""The range of rowids of each leaf, by page number."""


def changed_ranges(
    files: tuple[Path, Path], roots: tuple[Roots, Roots], page_size: int, differing: set[int]
) -> dict[Tree, Ranges]:
    """Return the rowids of the rows that might have changed, for each tree that both files contain.

    Indexes and tables WITHOUT ROWID have no rowids, so their range covers either all rows or no rows.

    Args:
        files: Both files, with pages of the same size.
        roots: Numbers of the trees' first pages, for both files.
        page_size: Size of a page in bytes.
        differing: Numbers of the pages in the second file that are new or differ.

    Returns:
        Ranges by tree. The result is empty if the ranges can't be determined.
    """
    try:
        with ExitStack() as stack:
            one, other = (stack.enter_context(_Trees(file, page_size)) for file in files)
            lefts, rights = (
                {tree: trees.leaves(root) for tree, root in file_roots.items()}
                for trees, file_roots in zip((one, other), roots, strict=True)
            )
            one.add_free_pages()
            other.add_free_pages()
            # A page that is neither in a tree nor free, in both files, is an overflow page.
            has_changed_overflow = any(
                page not in one.visited and page not in other.visited for page in differing if page <= one.pages
            )
            if has_changed_overflow or one.encoding != other.encoding:
                return {}
            return {tree: _ranges(left, rights[tree], differing) for tree, left in lefts.items() if tree in rights}
    except (IndexError, ValueError, struct.error):
        return {}


def _ranges(left: _Leaves, right: _Leaves, differing: set[int]) -> Ranges:
    """Return the merged ranges of the leaves that differ, or that only one of the two trees contains."""
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
    """Trees of pages in one file.

    Attributes:
        pages: Number of pages.
        visited: Pages that were already found in a tree or in the list of free pages.
        encoding: Encoding of strings in the file.
    """

    def __init__(self, path: Path, page_size: int) -> None:
        with path.open("rb") as file:
            self._data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._size = page_size
        self.pages = len(self._data) // page_size
        self.visited: set[int] = set()
        self.encoding = self._data[_ENCODING]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._data.close()

    def leaves(self, root: int) -> _Leaves:
        """Return the leaves of a tree, with their ranges of rowids.

        For an index, return all pages, because each contains keys.

        Raises:
            IndexError, ValueError, struct.error: The file has an unexpected format.
        """
        level: _Leaves = {root: (_MIN_ROWID, _MAX_ROWID)}
        leaves = level
        # All leaves are at the same depth, so the first page of a level shows the kind of all pages on this level.
        while (kind := self._data[self._start(next(iter(level)))]) not in _LEAVES:
            self._add_visited(level)
            level = {page: span for inner, around in level.items() for page, span in self._children(inner, *around)}
            leaves = level if kind == _INNER_TABLE else leaves | level
        self._add_visited(level)
        return leaves

    def add_free_pages(self) -> None:
        """Add the free pages to `visited`."""
        trunk = self._number(_FREELIST)
        while trunk:
            self._add_visited([trunk])
            start = (trunk - 1) * self._size
            trunk, count = struct.unpack_from(">II", self._data, start)
            self._add_visited(struct.unpack_from(f">{count}I", self._data, start + 8))

    def _add_visited(self, pages: Iterable[int]) -> None:
        """Add pages to `visited`.

        Raise `ValueError` for a page that was visited before, because the file is then damaged.
        """
        pages = set(pages)
        if pages & self.visited:
            raise ValueError("a page is used twice")
        self.visited |= pages

    def _start(self, page: int) -> int:
        """Return the offset of a page's header. In page 1, the page's header comes after the file's header."""
        if page < 1:
            raise ValueError("a page number is below 1")
        return (page - 1) * self._size + (_FIRST_PAGE_HEADER if page == 1 else 0)

    def _number(self, offset: int) -> int:
        """Return the page number at an offset in the file."""
        number: int = struct.unpack_from(">I", self._data, offset)[0]
        return number

    def _children(self, page: int, first: int, last: int) -> Iterator[tuple[int, tuple[int, int]]]:
        """Yield the child pages of an inner page, with their ranges of rowids.

        Args:
            page: The inner page.
            first: First rowid of the page's range.
            last: Last rowid of the page's range.
        """
        data, start = self._data, self._start(page)
        kind, (count,) = data[start], struct.unpack_from(">H", data, start + 3)
        if kind not in (_INNER_TABLE, _INNER_INDEX):
            raise ValueError("a page in an inner level isn't an inner page")
        for cell in struct.unpack_from(f">{count}H", data, start + 12):
            offset = (page - 1) * self._size + cell
            until = _varint(data, offset + 4) if kind == _INNER_TABLE else last
            yield self._number(offset), (first, until)
            first = until + 1 if kind == _INNER_TABLE else first
        yield self._number(start + 8), (first, last)


def _varint(data: mmap.mmap, offset: int) -> int:
    """Return a signed number in SQLite's varint format: seven bits per byte, but eight in a ninth byte."""
    number = 0
    for byte in data[offset : offset + 8]:
        number = number << 7 | byte & 0x7F
        if byte < 0x80:  # noqa: PLR2004 - the highest bit
            return number
    number = number << 8 | data[offset + 8]
    return number - 2**64 if number > _MAX_ROWID else number
