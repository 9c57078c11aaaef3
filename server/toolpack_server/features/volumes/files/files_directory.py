"""A tree of files as a real directory, and back.

What is there is recognised without reading it: by its inode and the time of its last change, which the kernel alone
sets. That clock moves in steps, so what has changed within the last step is read again.

Anybody may have used the directory between two looks at it, so each look is at all of it. A tree says what is
kept; the rest is set back when a tree is laid out again, so that it makes no difference whether a directory is new.
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

WATCH_SECONDS = 0.1  # between two looks at a folder in which a program works
WATCH_SHARE = 20  # a look takes one part of so many of the time
BLOCK_BYTES = 512  # of `st_blocks`
PAGE_BYTES = 4096

_LIST = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class _Stat(NamedTuple):
    """What was seen at a path."""

    node: FileNode | LinkNode
    sign: tuple[int, int, int, int]  # if it is the same again, nothing has changed
    settled: bool  # a later change can't have the same sign


class Directory:
    """A real directory that holds a tree of files.

    Args:
        base: An empty folder, for the directory and what belongs to it.
        limits: How large what is there may be.
        folder: A directory that is only read, instead of one of its own.

    Attributes:
        folder: The directory; one of its own is there once a tree has been laid out.
    """

    def __init__(self, base: Path, limits: Limits, folder: Path | None = None) -> None:
        self.folder = folder or base / "files"
        self._is_ours = folder is None  # somebody else's is only read
        self._base = base
        self._probe = base / "probe"
        self._limits = limits
        self._root = -1
        self._now_ns, self._mode = 0, 0o777
        self._size = Size()  # of the tree that was laid out
        self._looks: dict[str, _Stat] = {}
        self._folders: dict[str, FolderNode] = {}
        self._odd: list[str] = []  # files that have what isn't kept
        self._is_full = False  # files were emptied, as they had grown too large

    def lay_out(self, tree: FolderNode, time_ns: int | None = None) -> None:
        """Make the directory hold a tree.

        Args:
            tree: What it is to hold. What it holds already, and is the same, isn't written again.
            time_ns: The time of all files and folders, in nanoseconds since the epoch, where it can be set; None for
                any.

        Raises:
            OSError: A link leads out of the tree, or there is no space for it.
        """
        self._is_full = False
        if tree is not self._folders.get(""):  # what was laid out or read before has no such link
            check_links(tree)
        present = self._present()
        differing = [*changes(present, tree)]
        with self._opened():
            for path, old, _ in reversed(differing):
                if isinstance(old, FolderNode):
                    os.rmdir(path, dir_fd=self._root)
                elif old is not None:
                    os.unlink(path, dir_fd=self._root)
            signs = {path: self._create(path, new) for path, _, new in differing if new is not None}
            if time_ns is not None:
                with contextlib.suppress(PermissionError):  # in a sandbox, in which no file's times can be set
                    signs = self._set_times(tree, time_ns)
            if tree is not present or signs:
                self._note(tree, signs)

    def clear(self) -> None:
        """Remove the directory; it is made anew when a tree is laid out."""
        _remove(self.folder)

    def remove(self) -> None:
        _remove(self._base)

    def read(self) -> FolderNode:
        """Get the tree that the directory holds; what is as it was is the same object.

        Raises:
            OSError: It holds something that can't be kept, or is too large.
        """
        if self._is_full:
            check_size(Size(sys.maxsize, 0), self._limits)
        known = self._folders.get("")
        with self._opened():
            tree = self._read()
        if tree is not known:
            check_links(tree)
        return tree

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Look at the directory's size during a block: what grows too large is emptied at once, and can't be read.

        A program in the block writes where the kernel lets it, which may be the machine's memory.
        """
        ended, looking = threading.Event(), threading.Lock()
        try:
            # No thread of `threading`'s: it isn't one that the function in the block has left behind.
            _thread.start_new_thread(self._watch, (ended, looking))
            yield
        finally:
            ended.set()
            with uninterruptible, looking:  # afterwards nothing is emptied any more
                pass

    def _watch(self, ended: threading.Event, looking: threading.Lock) -> None:
        most = max(self._limits.max_bytes, self._size.bytes)
        pause = WATCH_SECONDS
        while not ended.wait(pause):
            began = time.perf_counter()
            with looking, contextlib.suppress(OSError):
                files = {path: status.st_blocks * BLOCK_BYTES for path, status in _files_below(self.folder)}
                if sum(files.values()) > most + len(files) * PAGE_BYTES:  # the last page of each is only begun
                    self._is_full = True
                for path in files if self._is_full and not ended.is_set() else ():
                    with contextlib.suppress(OSError):
                        os.truncate(path, 0)
            pause = max(WATCH_SECONDS, WATCH_SHARE * (time.perf_counter() - began))

    @contextlib.contextmanager
    def _opened(self) -> Iterator[None]:
        """Open the directory, and look at the clock by which the kernel dates changes in it."""
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
        """Get the tree that the directory holds, of which nothing has what isn't kept."""
        try:
            with self._opened():
                tree = self._read()
                for path in self._odd:
                    os.unlink(path, dir_fd=self._root)
                return with_changes(tree, [(path, None) for path in self._odd]) if self._odd else tree
        except OSError:  # it isn't there yet, or can't be read
            _remove(self.folder)
            self.folder.mkdir()
            self._looks, self._folders = {}, {}
            return EMPTY

    def _read(self) -> FolderNode:
        looks: dict[str, _Stat] = {}
        found: dict[str, dict[str, Node]] = {}
        self._odd = []
        size = Size()
        waiting = [""]
        while waiting:
            folder = waiting.pop()
            entries = found[folder] = {}
            for name, status in self._list(folder):
                path = f"{folder}{SEPARATOR}{name}" if folder else name
                check_length(path)
                if stat.S_ISDIR(status.st_mode):
                    if self._is_ours and status.st_mode & 0o777 != self._mode:
                        with contextlib.suppress(PermissionError):  # in a sandbox
                            os.chmod(path, self._mode, dir_fd=self._root)
                    waiting.append(path)
                    size = Size(size.bytes, size.entries + 1)
                else:
                    check_size(Size(size.bytes + status.st_size, size.entries + 1), self._limits, self._size)
                    look = looks[path] = self._look(path, status)
                    entries[name] = look.node
                    size = Size(size.bytes + byte_size(look.node), size.entries + 1)
                check_size(size, self._limits, self._size)
        self._looks = looks
        self._folders = self._as_known(found)
        return self._folders[""]

    def _as_known(self, found: dict[str, dict[str, Node]]) -> dict[str, FolderNode]:
        """Make folders of their entries; one that is as it was is the same object."""
        folders: dict[str, FolderNode] = {}
        for path in reversed(found):  # a folder comes before what is in it
            entries, known = found[path], self._folders.get(path)
            if (
                known is not None
                and len(known.entries) == len(entries)
                and all(known.entries.get(name) is node for name, node in entries.items())
            ):
                folders[path] = known
            else:
                folders[path] = FolderNode(entries)
            if path:
                parent, _, name = path.rpartition(SEPARATOR)
                found[parent][name] = folders[path]
        return folders

    def _list(self, folder: str) -> Iterator[tuple[str, os.stat_result]]:
        opened = self._reachable(folder or ".", lambda path: os.open(path, _LIST, dir_fd=self._root))
        try:
            with os.scandir(opened) as entries:
                for entry in entries:
                    yield entry.name, entry.stat(follow_symlinks=False)
        finally:
            os.close(opened)

    def _look(self, path: str, status: os.stat_result) -> _Stat:
        known, sign = self._looks.get(path), _sign(status)
        node: FileNode | LinkNode
        if stat.S_ISREG(status.st_mode):
            executable = bool(status.st_mode & stat.S_IXUSR)
            usual = self._mode if executable else self._mode & 0o666
            if status.st_nlink > 1 or stat.S_IMODE(status.st_mode) != usual:
                self._odd.append(path)
            if known is not None and known.settled and known.sign == sign:
                return known
            node = FileNode(self._content(path), executable)
        elif stat.S_ISLNK(status.st_mode):
            node = LinkNode(self._target(path))
        else:
            raise failure(errno.EINVAL, path, why="only files, folders and symbolic links can be kept")
        if known is not None and is_same(known.node, node):
            node = known.node
        return _Stat(node, sign, status.st_ctime_ns < self._now_ns)

    def _content(self, path: str) -> bytes:
        opened = self._reachable(path, lambda path: os.open(path, _READ, dir_fd=self._root))
        with os.fdopen(opened, "rb") as file:
            return file.read()

    def _target(self, path: str) -> str:
        """Get the target of a link, relative to the link's folder if it is the path of something in the directory."""
        target = os.readlink(path, dir_fd=self._root)
        for folder in (str(self.folder), os.path.realpath(self.folder)):
            if target == folder or target.startswith(f"{folder}{SEPARATOR}"):
                inner = target.removeprefix(folder).strip(SEPARATOR)
                target = (f"..{SEPARATOR}" * path.count(SEPARATOR) + inner).rstrip(SEPARATOR) or "."
        check_length(target)
        return target

    def _reachable(self, path: str, use: Callable[[str], T]) -> T:
        """Use a file or a folder; its owner may, whatever its permissions say."""
        try:
            return use(path)
        except PermissionError:
            if not self._is_ours:
                raise
            os.chmod(path, stat.S_IRWXU, dir_fd=self._root)
            return use(path)

    def _create(self, path: str, node: Node) -> os.stat_result:
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
        signs = {}
        for path in reversed([".", *(path for path, _ in walk(tree))]):  # a folder after what is in it
            os.utime(path, ns=(time_ns, time_ns), dir_fd=self._root, follow_symlinks=False)
            signs[path] = os.stat(path, dir_fd=self._root, follow_symlinks=False)
        return signs

    def _note(self, tree: FolderNode, statuses: dict[str, os.stat_result]) -> None:
        """Note what the directory holds now, with the status of what is new."""
        looks: dict[str, _Stat] = {}
        folders = {"": tree}
        for path, node in walk(tree):
            if isinstance(node, FolderNode):
                folders[path] = node
            elif path in statuses:
                looks[path] = _Stat(node, _sign(statuses[path]), settled=False)
            else:
                looks[path] = self._looks[path]._replace(node=node)
        self._looks, self._folders = looks, folders
        self._size = size_of(tree)


def _files_below(folder: str | Path) -> Iterator[tuple[str, os.stat_result]]:
    """Yield the files of a folder that changes meanwhile, without following links."""
    waiting = [os.fspath(folder)]
    while waiting:
        with contextlib.suppress(OSError), os.scandir(waiting.pop()) as entries:
            for entry in entries:
                status = entry.stat(follow_symlinks=False)
                if stat.S_ISDIR(status.st_mode):
                    waiting.append(entry.path)
                elif stat.S_ISREG(status.st_mode):
                    yield entry.path, status


def check_links(tree: FolderNode) -> None:
    """Raise `OSError` if a link leads out of its tree."""
    for path, node in walk(tree):
        if isinstance(node, LinkNode):
            try:
                find(tree, path, lenient=True)
            except PermissionError:
                raise failure(
                    errno.EINVAL, path, why="a symbolic link that leads out of the session's files can't be kept"
                ) from None
            except OSError:  # a link that leads to itself leads nowhere
                continue


def read_folder(folder: Path, limits: Limits) -> FolderNode:
    """Get a folder as a tree; raises as `Directory.read`."""
    with tempfile.TemporaryDirectory() as base:
        return Directory(Path(base), limits, folder).read()


def _remove(folder: Path) -> None:
    """Remove a folder with all that is in it, if it is there, however deep it is."""
    shutil.rmtree(folder, ignore_errors=True)


def _sign(status: os.stat_result) -> tuple[int, int, int, int]:
    return status.st_ino, status.st_ctime_ns, status.st_size, status.st_mode
