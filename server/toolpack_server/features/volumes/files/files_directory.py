"""Real directory with the content of a tree of files, and the conversion of the directory back to a tree.

A file is known to be unchanged, without reading it, by its inode and the time of its last status change, which only the
kernel sets. The kernel's clock is coarse, so files that changed in the clock's current tick are read again.

Any program might have used the directory since the last scan, so each scan covers the whole directory. When a tree is
laid out again, attributes that a tree doesn't store, such as permissions, are reset. So a reused directory behaves like
a new one.
"""

import _thread
import contextlib
import errno
import os
import shutil
import stat
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple, TypeVar

from toolpack_server.base.uninterruptible import uninterruptible
from toolpack_server.features.volumes.files.files_paths import check_length, failure, find
from toolpack_server.features.volumes.files.files_tree import (
    EMPTY,
    SEPARATOR,
    FileNode,
    FolderNode,
    LinkNode,
    Node,
    Size,
    byte_size,
    changes,
    check_size,
    is_same,
    size_of,
    walk,
    with_changes,
)
from toolpack_server.volumes.volume import Limits

T = TypeVar("T")

WATCH_SECONDS = 0.1  # minimum delay in seconds between two scans while a program uses the directory
WATCH_SHARE = 20  # the delay is at least 20 times the duration of the last scan
BLOCK_BYTES = 512  # the unit of `st_blocks` in bytes
PAGE_BYTES = 4096

_LIST = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class _Stat(NamedTuple):
    """State of a path at its last scan.

    Attributes:
        node: The node.
        signature: Inode, time, size and mode.
        settled: Whether any later change is certain to alter the signature. If so, an equal signature proves that the
            node is unchanged.
    """

    node: FileNode | LinkNode
    signature: tuple[int, int, int, int]
    settled: bool


class Directory:
    """Real directory with the content of a tree of files.

    Args:
        base: An empty folder for the directory and its auxiliary files.
        limits: Size limits of the content.
        folder: An author's directory, which is only read. None means a new directory in `base`.

    Attributes:
        folder: The directory. A new directory is created when a tree is laid out.
    """

    def __init__(self, base: Path, limits: Limits, folder: Path | None = None) -> None:
        self.folder = folder or base / "files"
        self._may_change = folder is None  # an author's directory is only read
        self._base = base
        self._probe = base / "probe"
        self._limits = limits
        self._root = -1
        self._now_ns, self._mode = 0, 0o777
        self._size = Size()  # size of the tree that was laid out
        self._stats: dict[str, _Stat] = {}
        self._folders: dict[str, FolderNode] = {}
        self._irregular: list[str] = []  # paths of files with hard links or permissions that a tree doesn't store
        self._is_full = False  # whether the directory grew too large, so that its files were emptied

    def lay_out(self, tree: FolderNode, time_ns: int | None = None) -> None:
        """Write a tree into the directory. Files that the directory already contains aren't written again.

        Args:
            tree: The tree.
            time_ns: Modification time of all files and folders in nanoseconds since the epoch. Ignored if the system
                forbids setting times. None means any time.

        Raises:
            OSError: A link leads out of the tree, or the disk is full.
        """
        self._is_full = False
        if tree is not self._folders.get(""):  # the directory contains this tree's links, so they were checked before
            check_links(tree)
        present = self._present()
        differing = [*changes(present, tree)]
        with self._opened():
            for path, old, _ in reversed(differing):
                if isinstance(old, FolderNode):
                    os.rmdir(path, dir_fd=self._root)
                elif old is not None:
                    os.unlink(path, dir_fd=self._root)
            statuses = {path: self._create(path, new) for path, _, new in differing if new is not None}
            if time_ns is not None:
                with contextlib.suppress(PermissionError):  # a sandbox can forbid setting times
                    statuses = self._set_times(tree, time_ns)
            if tree is not present or statuses:
                self._record(tree, statuses)

    def clear(self) -> None:
        """Remove the directory. `lay_out` can create it again."""
        _remove(self.folder)

    def remove(self) -> None:
        """Remove the directory and its auxiliary files. It can't be used afterwards."""
        _remove(self._base)

    def read(self) -> FolderNode:
        """Return the tree that the directory contains. Unchanged nodes are the same objects as before.

        Raises:
            OSError: The directory is too large, or contains something that a tree can't store.
        """
        if self._is_full:
            check_size(Size(sys.maxsize, 0), self._limits)
        previous = self._folders.get("")
        with self._opened():
            tree = self._read()
        if tree is not previous:
            check_links(tree)
        return tree

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Check the directory's size during a block.

        If the directory grows too large, its files are emptied, and `read` fails.

        The check is needed because a program in the block can write as much as the kernel allows, even into the host's
        memory.
        """
        ended, scanning = threading.Event(), threading.Lock()
        try:
            # Don't use a `threading.Thread`, because it would count as a thread that the function left running.
            _thread.start_new_thread(self._watch, (ended, scanning))
            yield
        finally:
            ended.set()
            with uninterruptible, scanning:  # wait for a running scan, so that no file is emptied after the block
                pass

    def _watch(self, ended: threading.Event, scanning: threading.Lock) -> None:
        """Scan the directory again and again until the block has ended. If its files are too large, empty them."""
        max_bytes = max(self._limits.max_bytes, self._size.bytes)
        delay = WATCH_SECONDS
        while not ended.wait(delay):
            began = time.perf_counter()
            with scanning, contextlib.suppress(OSError):
                files = {path: status.st_blocks * BLOCK_BYTES for path, status in _files_below(self.folder)}
                # Allow a page more for each file, because the last page of a file can be mostly empty.
                padding = len(files) * PAGE_BYTES
                if sum(files.values()) > max_bytes + padding:
                    self._is_full = True
                for path in files if self._is_full and not ended.is_set() else ():
                    with contextlib.suppress(OSError):
                        os.truncate(path, 0)
            delay = max(WATCH_SECONDS, WATCH_SHARE * (time.perf_counter() - began))

    @contextlib.contextmanager
    def _opened(self) -> Iterator[None]:
        """Open the directory, and read the kernel's clock from a new file's status."""
        probe = os.open(self._probe, _CREATE, 0o777)
        try:
            status = os.fstat(probe)
        finally:
            os.close(probe)
            self._probe.unlink()
        self._now_ns, self._mode = status.st_ctime_ns, stat.S_IMODE(status.st_mode)
        self._root = os.open(self.folder, _LIST)
        try:
            yield
        finally:
            os.close(self._root)

    def _present(self) -> FolderNode:
        """Return the tree that the directory contains. Remove files that a tree can't store exactly."""
        try:
            with self._opened():
                tree = self._read()
                for path in self._irregular:
                    os.unlink(path, dir_fd=self._root)
                return with_changes(tree, [(path, None) for path in self._irregular]) if self._irregular else tree
        except OSError:  # the directory doesn't exist yet, or is unreadable
            _remove(self.folder)
            self.folder.mkdir()
            self._stats, self._folders = {}, {}
            return EMPTY

    def _read(self) -> FolderNode:
        """Scan the opened directory, and return its tree. Unchanged nodes are the same objects as before."""
        stats: dict[str, _Stat] = {}
        folders: dict[str, dict[str, Node]] = {}
        self._irregular = []
        size = Size()
        pending = [""]
        while pending:
            folder = pending.pop()
            entries = folders[folder] = {}
            for name, status in self._list(folder):
                path = f"{folder}{SEPARATOR}{name}" if folder else name
                check_length(path)
                if stat.S_ISDIR(status.st_mode):
                    if self._may_change and status.st_mode & 0o777 != self._mode:
                        with contextlib.suppress(PermissionError):  # a sandbox can forbid changing permissions
                            os.chmod(path, self._mode, dir_fd=self._root)
                    pending.append(path)
                    size = Size(size.bytes, size.entries + 1)
                else:
                    check_size(Size(size.bytes + status.st_size, size.entries + 1), self._limits, self._size)
                    state = stats[path] = self._scan(path, status)
                    entries[name] = state.node
                    size = Size(size.bytes + byte_size(state.node), size.entries + 1)
                check_size(size, self._limits, self._size)
        self._stats = stats
        self._folders = self._reuse_folders(folders)
        return self._folders[""]

    def _reuse_folders(self, contents: dict[str, dict[str, Node]]) -> dict[str, FolderNode]:
        """Return a folder for each dictionary of entries. An unchanged folder is the same object as before."""
        folders: dict[str, FolderNode] = {}
        # Go in reverse order, so that inner folders come first, because the scan read each folder before its content.
        for path in reversed(contents):
            entries, previous = contents[path], self._folders.get(path)
            if (
                previous is not None
                and len(previous.entries) == len(entries)
                and all(previous.entries.get(name) is node for name, node in entries.items())
            ):
                folders[path] = previous
            else:
                folders[path] = FolderNode(entries)
            if path:
                parent, _, name = path.rpartition(SEPARATOR)
                contents[parent][name] = folders[path]
        return folders

    def _list(self, folder: str) -> Iterator[tuple[str, os.stat_result]]:
        """Yield the name and the status of each entry in a folder."""
        opened = self._reachable(folder or ".", lambda path: os.open(path, _LIST, dir_fd=self._root))
        try:
            with os.scandir(opened) as entries:
                for entry in entries:
                    yield entry.name, entry.stat(follow_symlinks=False)
        finally:
            os.close(opened)

    def _scan(self, path: str, status: os.stat_result) -> _Stat:
        """Return the state of a file or a link. Read the content only if it might have changed."""
        previous, signature = self._stats.get(path), _signature(status)
        node: FileNode | LinkNode
        if stat.S_ISREG(status.st_mode):
            executable = bool(status.st_mode & stat.S_IXUSR)
            expected_mode = self._mode if executable else self._mode & 0o666
            if status.st_nlink > 1 or stat.S_IMODE(status.st_mode) != expected_mode:
                self._irregular.append(path)
            if previous is not None and previous.settled and previous.signature == signature:
                return previous
            node = FileNode(self._content(path), executable)
        elif stat.S_ISLNK(status.st_mode):
            node = LinkNode(self._target(path))
        else:
            raise failure(errno.EINVAL, path, why="only files, folders and symbolic links can be stored")
        if previous is not None and is_same(previous.node, node):
            node = previous.node
        return _Stat(node, signature, status.st_ctime_ns < self._now_ns)

    def _content(self, path: str) -> bytes:
        """Return the content of a file."""
        opened = self._reachable(path, lambda path: os.open(path, _READ, dir_fd=self._root))
        with os.fdopen(opened, "rb") as file:
            return file.read()

    def _target(self, path: str) -> str:
        """Return a link's target. An absolute path inside the directory becomes relative to the link's folder."""
        target = os.readlink(path, dir_fd=self._root)
        for folder in (str(self.folder), os.path.realpath(self.folder)):
            if target == folder or target.startswith(f"{folder}{SEPARATOR}"):
                inner = target.removeprefix(folder).strip(SEPARATOR)
                target = (f"..{SEPARATOR}" * path.count(SEPARATOR) + inner).rstrip(SEPARATOR) or "."
        check_length(target)
        return target

    def _reachable(self, path: str, use: Callable[[str], T]) -> T:
        """Call `use`, which opens a path, and return its result.

        If the path's permissions forbid that, change the permissions first, but not in an author's directory.
        """
        try:
            return use(path)
        except PermissionError:
            if not self._may_change:
                raise
            os.chmod(path, stat.S_IRWXU, dir_fd=self._root)
            return use(path)

    def _create(self, path: str, node: Node) -> os.stat_result:
        """Create a folder, a link or a file for a node, and return its status."""
        if isinstance(node, FolderNode):
            os.mkdir(path, dir_fd=self._root)
        elif isinstance(node, LinkNode):
            os.symlink(node.target, path, dir_fd=self._root)
        else:
            opened = os.open(path, _CREATE, 0o777 if node.executable else 0o666, dir_fd=self._root)
            with os.fdopen(opened, "wb", buffering=0) as file:
                unwritten = memoryview(node.content)
                while unwritten:
                    unwritten = unwritten[file.write(unwritten) :]
                return os.fstat(opened)
        return os.stat(path, dir_fd=self._root, follow_symlinks=False)

    def _set_times(self, tree: FolderNode, time_ns: int) -> dict[str, os.stat_result]:
        """Set the times of all files and folders of a tree that is completely written. Return their new statuses.

        The times are the same in each run. Writing an entry would change its folder's time again.

        Raises:
            PermissionError: The system forbids setting times.
        """
        statuses = {}
        for path in reversed([".", *(path for path, _ in walk(tree))]):
            os.utime(path, ns=(time_ns, time_ns), dir_fd=self._root, follow_symlinks=False)
            statuses[path] = os.stat(path, dir_fd=self._root, follow_symlinks=False)
        return statuses

    def _record(self, tree: FolderNode, statuses: dict[str, os.stat_result]) -> None:
        """Record that the directory contains a tree. `statuses` has the statuses of files that were written."""
        stats: dict[str, _Stat] = {}
        folders = {"": tree}
        for path, node in walk(tree):
            if isinstance(node, FolderNode):
                folders[path] = node
            elif path in statuses:
                stats[path] = _Stat(node, _signature(statuses[path]), settled=False)
            else:
                stats[path] = self._stats[path]._replace(node=node)
        self._stats, self._folders = stats, folders
        self._size = size_of(tree)


def _files_below(folder: str | Path) -> Iterator[tuple[str, os.stat_result]]:
    """Yield the files below a folder, with their statuses. Other programs can change the folder meanwhile."""
    pending = [os.fspath(folder)]
    while pending:
        with contextlib.suppress(OSError), os.scandir(pending.pop()) as entries:
            for entry in entries:
                status = entry.stat(follow_symlinks=False)
                if stat.S_ISDIR(status.st_mode):
                    pending.append(entry.path)
                elif stat.S_ISREG(status.st_mode):
                    yield entry.path, status


def check_links(tree: FolderNode) -> None:
    """Check that no link leads out of a tree.

    Raises:
        OSError: A link leads out of the tree.
    """
    for path, node in walk(tree):
        if isinstance(node, LinkNode):
            try:
                find(tree, path, lenient=True)
            except PermissionError:
                raise failure(
                    errno.EINVAL, path, why="a symbolic link that leads out of the session's files can't be stored"
                ) from None
            except OSError:  # a broken link, or a loop
                continue


def read_folder(folder: Path, limits: Limits) -> FolderNode:
    """Return the tree of a folder. Raise the same errors as `Directory.read`."""
    with tempfile.TemporaryDirectory() as base:
        return Directory(Path(base), limits, folder).read()


def _remove(folder: Path) -> None:
    """Remove a folder and its content, if the folder exists."""
    shutil.rmtree(folder, ignore_errors=True)


def _signature(status: os.stat_result) -> tuple[int, int, int, int]:
    """Return the values of a file's status that change when the file is changed."""
    return status.st_ino, status.st_ctime_ns, status.st_size, status.st_mode
