"""Working copy of a tree of files.

It consists of the tree in memory and, after a call has used `materialize`, of a real directory.

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

_ENTRY_BYTES = 400  # approximate bytes that a node takes in memory, without its content


class FilesCopy(WorkingCopy):
    """Working copy of a tree of files.

    Args:
        root: The tree.
        new_folder: Function that creates an empty folder for a directory.
        tree_size: Size of the tree, or None if it isn't known yet.
    """

    def __init__(self, root: FolderNode, new_folder: Callable[[], Path], tree_size: Size | None = None) -> None:
        self.root = root
        self.tree_size = size_of(root) if tree_size is None else tree_size
        self._new_folder = new_folder
        # The unused directory, if any; parallel readers can use further directories meanwhile.
        self._directories: list[Directory] = []
        self._discarded = False

    @property
    def size(self) -> int:
        """Approximate size in bytes. It includes a directory, because any call can create one."""
        return 2 * self.tree_size.bytes + _ENTRY_BYTES * self.tree_size.entries

    def clone(self) -> Self:
        return type(self)(self.root, self._new_folder, self.tree_size)

    def discard(self) -> None:
        # If a function has left a block open, that block's directory is removed when the block ends.
        self._discarded = True
        while self._directories:
            self._directories.pop().remove()

    def replace(self, root: FolderNode, size: Size) -> None:
        """Replace the tree by another tree of this size."""
        self.root, self.tree_size = root, size

    @contextmanager
    def directory(self, limits: Limits) -> Iterator[Directory]:
        """Yield a directory for a block of `materialize`. Reuse the directory of an earlier block if it is free."""
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
