"""Working copy of a tree of files: the tree in memory, and a real directory after a call has used `materialize`.

The tree is immutable, so parallel calls can read one working copy. A directory serves one block of `materialize` at a
time.
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

_ENTRY_BYTES = 400  # memory of a node, without its content


class FilesCopy(WorkingCopy):
    """Working copy of a tree of files.

    Args:
        root: The tree.
        new_folder: Creates an empty folder for a directory.
        tree_size: Size of the tree, if it is known.
    """

    def __init__(self, root: FolderNode, new_folder: Callable[[], Path], tree_size: Size | None = None) -> None:
        self.root = root
        self.tree_size = size_of(root) if tree_size is None else tree_size
        self._new_folder = new_folder
        self._directories: list[Directory] = []  # unused directories, at most one; parallel readers may use more
        self._discarded = False

    @property
    def size(self) -> int:
        """Approximate number of bytes, including those of a directory, because any call may create one."""
        return 2 * self.tree_size.bytes + _ENTRY_BYTES * self.tree_size.entries

    def clone(self) -> Self:
        return type(self)(self.root, self._new_folder, self.tree_size)

    def discard(self) -> None:
        self._discarded = True  # if a function left a block open, its directory is removed when the block ends
        while self._directories:
            self._directories.pop().remove()

    def replace(self, root: FolderNode, size: Size) -> None:
        """Replace the tree by another tree of this size."""
        self.root, self.tree_size = root, size

    @contextmanager
    def directory(self, limits: Limits) -> Iterator[Directory]:
        """Yield a directory for a block of `materialize`. The directory of an earlier block is used again."""
        directory: Directory | None = None
        try:
            with uninterruptible:
                try:
                    directory = self._directories.pop()
                except IndexError:
                    directory = Directory(self._new_folder(), limits)
            yield directory
        finally:
            with uninterruptible:
                if directory is not None:
                    self._give_back(directory)

    def _give_back(self, directory: Directory) -> None:
        """Keep a directory for the next block, or remove it if it isn't needed."""
        if self._directories or self._discarded:
            directory.remove()
        else:
            self._directories.append(directory)
