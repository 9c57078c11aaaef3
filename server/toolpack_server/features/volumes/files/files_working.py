"""The working copy of files: their tree in memory and, once somebody has asked for it, a real directory.

The tree never changes, so several calls can read a copy. A directory serves one block at a time.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from toolpack_server.base.uninterruptible import uninterruptible
from toolpack_server.features.volumes.files.files_directory import Directory
from toolpack_server.features.volumes.files.files_tree import FolderNode, Size, size_of
from toolpack_server.volumes.volume import Limits
from toolpack_server.volumes.working_copy import WorkingCopy

_ENTRY_BYTES = 400  # what a file or a folder takes in memory beside its content


class FilesCopy(WorkingCopy):
    """A tree of files that is in use.

    Args:
        root: The tree.
        new_folder: Makes an empty folder, in which a directory can be.
        tree_size: How large the tree is, if that is known.
    """

    def __init__(self, root: FolderNode, new_folder: Callable[[], Path], tree_size: Size | None = None) -> None:
        self.root = root
        self.tree_size = size_of(root) if tree_size is None else tree_size
        self._new_folder = new_folder
        self._directories: list[Directory] = []  # at most one, but for calls that read at the same time
        self._discarded = False

    @property
    def size(self) -> int:
        """About how many bytes it takes, the directory included, which any call may ask for."""
        return 2 * self.tree_size.bytes + _ENTRY_BYTES * self.tree_size.entries

    def clone(self) -> Self:
        return type(self)(self.root, self._new_folder, self.tree_size)

    def discard(self) -> None:
        self._discarded = True  # a block that somebody has kept may end later
        while self._directories:
            self._directories.pop().remove()

    def changed_to(self, root: FolderNode, size: Size) -> None:
        self.root, self.tree_size = root, size

    @contextmanager
    def directory(self, limits: Limits) -> Iterator[Directory]:
        """Get a directory for a block, the one of an earlier block if there is one."""
        found: Directory | None = None
        try:
            with uninterruptible:
                try:
                    found = self._directories.pop()
                except IndexError:
                    found = Directory(self._new_folder(), limits)
            yield found
        finally:
            with uninterruptible:
                if found is not None:
                    self._give_back(found)

    def _give_back(self, found: Directory) -> None:
        if self._directories or self._discarded:
            found.remove()
        else:
            self._directories.append(found)
