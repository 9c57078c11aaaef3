"""Files volume: a tree of files that is a field of an environment.

The methods and their errors behave like those of `pathlib.Path` in a Linux directory. The tree is an immutable value
(`files_tree.py`), so copies share their unchanged nodes.
"""

import errno
import io
import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path as RealPath
from typing import Any, ClassVar, Self

from toolpack_server.base.errors import InvalidParamsError, OverloadedError, RegistrationError, shown
from toolpack_server.base.uninterruptible import uninterruptible
from toolpack_server.features.volumes.caller_paths import relative_to_caller
from toolpack_server.features.volumes.files import files_json, files_pieces
from toolpack_server.features.volumes.files.files_directory import Directory, read_folder
from toolpack_server.features.volumes.files.files_glob import matching
from toolpack_server.features.volumes.files.files_paths import (
    Path,
    ResolvedPath,
    check_length,
    check_name,
    failure,
    find,
    node_at,
    text_of,
)
from toolpack_server.features.volumes.files.files_tar import to_tar
from toolpack_server.features.volumes.files.files_tree import (
    SEPARATOR,
    FileNode,
    FolderNode,
    Node,
    Size,
    byte_size,
    changes,
    check_size,
    size_of,
    walk,
    with_changes,
)
from toolpack_server.features.volumes.files.files_working import FilesCopy
from toolpack_server.volumes.scratch import FULL_TEXT, is_full
from toolpack_server.volumes.volume import Body, Limits, Volume, VolumeContext
from toolpack_server.volumes.working_copy import Key

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


class Files(Volume):  # noqa: PLW1641 - no volume has a hash
    """A tree of files as a field of an environment.

    Paths are strings, relative to the root of the tree. Arguments and errors are the same as those of `pathlib.Path`.
    Text is UTF-8 by default.

    Args:
        start: Initial content, which is a folder, or a mapping from paths to strings and bytes. The relative path of a
            folder starts at the folder of the calling module. Default: no files.

    Raises:
        RegistrationError: The initial content is invalid.
    """

    kind: ClassVar[str] = "files"

    _tree: tuple[FolderNode, Size] | None = None  # None means the tree of the working copy
    _write_lock: threading.Lock
    _folder: RealPath | None = None  # the directory that the last block of `materialize` used, in the scratch folder
    _is_materialized = False  # whether a block of `materialize` hasn't ended yet

    def __new__(cls, *_args: Any, **_kwargs: Any) -> Self:
        """Create an instance with its own lock, even if `__init__` isn't called."""
        files = super().__new__(cls)
        files._write_lock = threading.Lock()
        return files

    def __init__(self, start: Path | Mapping[str, str | bytes] | None = None) -> None:
        root = FolderNode()
        try:
            if isinstance(start, Mapping):
                root = files_json.tree_of((path, _file_node(path, content)) for path, content in start.items())
            elif start is not None:
                root = _read_start(start)
        except (OSError, TypeError, ValueError) as error:
            raise RegistrationError(f"Files can't start with {shown(repr(start))}: {error}") from error
        self._tree = root, size_of(root)

    # Methods for authors

    def read_bytes(self, path: Path) -> bytes:
        """Return the content of a file."""
        node = self._find(path).node
        if not isinstance(node, FileNode):
            raise failure(errno.ENOENT if node is None else errno.EISDIR, text_of(path))
        return node.content

    def read_text(
        self, path: Path, encoding: str | None = None, errors: str | None = None, newline: str | None = None
    ) -> str:
        """Return the content of a file as text."""
        content = io.BytesIO(self.read_bytes(path))
        return io.TextIOWrapper(content, encoding or "utf-8", errors, newline).read()

    def write_bytes(self, path: Path, data: bytes) -> int:
        """Write a file, overwriting an existing file. Return the number of bytes."""
        content = bytes(memoryview(data))
        self._write(path, content)
        return len(content)

    def write_text(
        self,
        path: Path,
        data: str,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
    ) -> int:
        """Write a text file, overwriting an existing file. Return the number of characters."""
        if not isinstance(data, str):
            raise TypeError(f"data must be str, not {type(data).__name__}")
        content = io.BytesIO()
        text = io.TextIOWrapper(content, encoding or "utf-8", errors, newline)
        text.write(data)
        text.flush()
        self._write(path, content.getvalue())
        return len(data)

    def exists(self, path: Path) -> bool:
        """Return whether the path exists, after following links."""
        return self._node_at(path) is not None

    def is_file(self, path: Path) -> bool:
        return isinstance(self._node_at(path), FileNode)

    def is_dir(self, path: Path) -> bool:
        return isinstance(self._node_at(path), FolderNode)

    def size(self, path: Path) -> int:
        """Return the number of bytes of a file."""
        return len(self.read_bytes(path))

    def iterdir(self, path: Path = "") -> list[str]:
        """Return the paths of a folder's entries, sorted by name. The default folder is the root."""
        folder = self._find(path).node
        if not isinstance(folder, FolderNode):
            raise failure(errno.ENOENT if folder is None else errno.ENOTDIR, text_of(path))
        prefix = text_of(path)
        return [f"{prefix}{SEPARATOR}{name}" if prefix else name for name in sorted(folder.entries)]

    def glob(self, pattern: str) -> list[str]:
        """Return the sorted paths that match a pattern such as `orders/*.txt`. `**` matches folders and files."""
        return matching(self._root, pattern)

    def mkdir(self, path: Path, parents: bool = False, exist_ok: bool = False) -> None:
        """Create a folder."""
        missing: list[str] = []
        text = text_of(path)
        # Go up to the first folder that can be created or exists, then create the missing folders from there.
        while not self._make_folder(text, parents=parents, exist_ok=exist_ok or bool(missing)):
            missing.append(text)
            text = text.rpartition(SEPARATOR)[0]
        for inner in reversed(missing):
            self._make_folder(inner, parents=False, exist_ok=exist_ok or inner != missing[0])

    def unlink(self, path: Path, missing_ok: bool = False) -> None:
        """Remove a file or a link."""
        text = text_of(path)
        with self._changing(text):
            try:
                resolved = self._find(text, follow=False)
                if resolved.node is None:
                    raise failure(errno.ENOENT, text)
            except FileNotFoundError:
                if not missing_ok:
                    raise
                return
            if isinstance(resolved.node, FolderNode):
                raise failure(errno.EISDIR, text)
            self._update([(resolved.path, None)], Size(-byte_size(resolved.node), -1))

    def rmdir(self, path: Path) -> None:
        """Remove an empty folder."""
        text = text_of(path)
        with self._changing(text):
            resolved = self._find(text, follow=False)
            if resolved.node is None:
                raise failure(errno.ENOENT, text)
            if not isinstance(resolved.node, FolderNode):
                raise failure(errno.ENOTDIR, text)
            if not text:
                raise failure(errno.EBUSY, text)
            if resolved.up or resolved.node.entries:
                raise failure(errno.ENOTEMPTY, text)
            self._update([(resolved.path, None)], Size(0, -1))

    def rename(self, path: Path, target: Path) -> str:
        """Move a file, a folder or a link, and return its new path. Replace a file or an empty folder at that path."""
        text, target_text = text_of(path), text_of(target)
        with self._changing(text):
            try:
                source = find(self._root, text, follow=False)
                destination = find(self._root, target_text, follow=False)
                _check_renaming(source, destination)
            except OSError as error:
                if error.errno == errno.EACCES:
                    raise
                raise failure(error.errno or 0, text, target_text) from None
            if source.path != destination.path:
                if isinstance(source.node, FolderNode):
                    for inner, _ in walk(source.node):
                        check_length(f"{destination.path}{SEPARATOR}{inner}")
                growth = Size(-byte_size(destination.node), -int(destination.node is not None))
                self._update([(source.path, None), (destination.path, source.node)], growth)
        return target_text

    @contextmanager
    def materialize(self) -> Iterator[RealPath]:
        """Yield a real directory with the files. Changes to the directory are stored when the block ends.

        During the block, the files can only be used in the directory. Contents, the executable permission, empty
        folders, and symbolic links within the directory are stored. Owners, times, other permissions and hard links
        aren't stored.

        Raises:
            OSError: At the end, the directory is too large, or contains something that can't be stored.
            PermissionError: The directory has changed, but the function is registered with read_only=True.
        """
        root, size = self._state
        working = FilesCopy(root, _temporary_folder, size) if self.mount is None else self._working()
        now_ns = time.time_ns() if self.mount is not None and self.mount.pinned else None
        try:
            with working.directory(self._limits) as directory:
                try:
                    with uninterruptible:
                        self._lay_out(directory, root, now_ns)
                        self._is_materialized, self._folder = True, directory.folder if self.mount else None
                    try:
                        with directory.watched():
                            yield directory.folder
                    except Exception:
                        self._read_back(directory)
                        raise
                    else:
                        self._read_back(directory)
                finally:
                    self._is_materialized = False
        finally:
            if self.mount is None:
                working.discard()

    def __eq__(self, other: object) -> bool:
        """Return whether both objects contain the same files."""
        if not isinstance(other, Files):
            return NotImplemented
        return next(changes(self._root, other._root), None) is None

    def __repr__(self) -> str:
        return "Files()" if self._tree is None else f"Files(<{self._tree[1].entries} files and folders>)"

    # Methods for the server

    def __deepcopy__(self, memo: Any) -> Self:
        return self._from_tree(self._state)

    def build(self, limits: Limits) -> Body:
        root, size = self._state
        try:
            check_size(size, limits)
        except OSError as error:
            raise InvalidParamsError(f"{error.strerror}.") from error
        return files_pieces.to_body(root, None)

    @classmethod
    def parse(cls, value: Any) -> Self:
        root = files_json.parse_tree(value)
        return cls._from_tree((root, size_of(root)))

    @classmethod
    def _from_tree(cls, tree: tuple[FolderNode, Size]) -> Self:
        """Return an instance with this tree, as if an author had created it."""
        files = cls.__new__(cls)
        files._tree = tree  # noqa: SLF001 - created here
        return files

    @classmethod
    def load(cls, bodies: Sequence[Body], context: VolumeContext) -> FilesCopy:
        def new_folder() -> RealPath:
            folder: RealPath = context.scratch.new_path()
            folder.mkdir(mode=0o700)
            return folder

        return FilesCopy(files_pieces.apply_pieces(bodies), new_folder)

    @classmethod
    def sizes(cls, body: Body) -> Mapping[Key, int]:
        return files_pieces.sizes(body)

    def finish(self) -> Mapping[Key, int]:
        root, size = self._state
        working = self._working()
        changed = files_pieces.changed_paths(working.root, root)
        working.replace(root, size)
        return changed

    def body(self, keys: Mapping[Key, int] | None) -> Body:
        return files_pieces.to_body(self._root, keys)

    def abandon(self) -> bool:
        self._tree, self._is_materialized = None, False
        return True  # a call never changes the working copy's tree, and each use of the directory reads it again

    def explain(self, error: BaseException) -> BaseException:
        folder = self._folder if isinstance(error, OSError) and error.errno in _NO_ROOM else None
        return OverloadedError(FULL_TEXT) if folder is not None and is_full(folder) else error

    def view(self) -> Any:
        return files_json.view_tree(self._root)

    def at(self, steps: Sequence[str], after: str | None, limit: int | None) -> Any:
        return files_json.view_at(self._root, steps) if steps else files_json.view_tree(self._root, after, limit)

    def patch(self, after: Self, path: str, *, text_diffs: bool) -> list[dict[str, Any]]:
        return files_json.patch(self._root, after._root, path, text_diffs=text_diffs)

    def export(self) -> bytes:
        return to_tar(self._root)

    @property
    def _state(self) -> tuple[FolderNode, Size]:
        """The tree and its size."""
        if self.mount is not None and self.mount.ended:
            raise self.mount.too_late()
        if self._is_materialized:
            raise OSError(
                errno.EBUSY, "until the block of materialize() ends, the files can only be used in its folder"
            )
        if self._tree is None:
            working = self._working()
            self._tree = working.root, working.tree_size
        return self._tree

    @property
    def _root(self) -> FolderNode:
        return self._state[0]

    @property
    def _limits(self) -> Limits:
        return Limits() if self.mount is None else self.mount.context.limits

    def _working(self) -> FilesCopy:
        """Return the call's working copy."""
        return self.mount.copy()  # type: ignore[return-value,union-attr] # `load` returned it

    def _find(self, path: Path, *, follow: bool = True) -> ResolvedPath:
        """Resolve a path. If it doesn't exist, check that a file at this path can be created."""
        text = text_of(path)
        resolved = find(self._root, text, follow=follow)
        if resolved.node is None:
            check_name(resolved.path, text)
        return resolved

    def _node_at(self, path: Path) -> Node | None:
        """Return the node at a path after following links, or None if the path doesn't exist."""
        try:
            text = text_of(path)
        except (OSError, ValueError):  # no node can have this name
            return None
        return node_at(self._root, text)

    @contextmanager
    def _changing(self, path: str) -> Iterator[None]:
        """Lock the files during a change, so that no parallel change is lost. Refuse the change in a read-only call."""
        if self.mount is not None and self.mount.read_only:
            raise self._read_only_error(path)
        with self._write_lock:
            yield

    def _write(self, path: Path, content: bytes) -> None:
        """Write a file. An existing file keeps its executable permission."""
        text = text_of(path)
        with self._changing(text):
            resolved = self._find(text)
            if isinstance(resolved.node, FolderNode):
                raise failure(errno.EISDIR, text)
            executable = isinstance(resolved.node, FileNode) and resolved.node.executable
            growth = Size(len(content) - byte_size(resolved.node), int(resolved.node is None))
            self._update([(resolved.path, FileNode(content, executable))], growth)

    def _make_folder(self, text: str, *, parents: bool, exist_ok: bool) -> bool:
        """Create one folder for `mkdir`. Return False if its parent must be created first."""
        try:
            with self._changing(text):
                resolved = self._find(text, follow=False)
                if resolved.node is not None:
                    raise failure(errno.EEXIST, text)
                self._update([(resolved.path, FolderNode())], Size(0, 1))
        except FileNotFoundError:
            if not parents or SEPARATOR not in text:
                raise
            return False
        except OSError:
            if not exist_ok or not self.is_dir(text):
                raise
        return True

    def _update(self, updates: Sequence[tuple[str, Node | None]], growth: Size) -> None:
        """Replace the nodes at some paths.

        Args:
            updates: The new node of each path. None removes the node.
            growth: The change in the tree's size.
        """
        root, size = self._state
        new = Size(size.bytes + growth.bytes, size.entries + growth.entries)
        check_size(new, self._limits, size)
        self._tree = with_changes(root, updates), new

    def _lay_out(self, directory: Directory, root: FolderNode, now_ns: int | None) -> None:
        """Write the tree into a directory. Refuse the request if the scratch folder is full."""
        try:
            directory.lay_out(root, now_ns)
        except OSError as error:
            directory.clear()  # Free the space of the files that were already written
            if error.errno in _NO_ROOM and self.mount is not None:
                # The request is refused, even if the function catches the error.
                self.mount.error = OverloadedError(FULL_TEXT)
                raise self.mount.error from error
            raise

    def _read_back(self, directory: Directory) -> None:
        """Make the content of a directory the current tree, at the end of the directory's block."""
        with uninterruptible:
            self._take_over(directory.read())

    def _take_over(self, root: FolderNode) -> None:
        """Replace the current tree by a tree that was read from a directory."""
        if self.mount is not None and self.mount.ended:
            raise self.mount.too_late()
        assert self._tree is not None  # noqa: S101 - `materialize` read `_state`, which sets the tree
        before = self._tree[0]
        if root is before:
            return
        if self.mount is not None and self.mount.read_only:
            for path, _, _ in changes(before, root):
                raise self._read_only_error(path)
        self._tree = root, size_of(root)

    def _read_only_error(self, path: str) -> OSError:
        """Return the error for a change to a path in a read-only call."""
        why = "" if self.mount is None else self.mount.read_only
        return failure(errno.EACCES, path, why=f"attempt to write readonly files: {why}")


def _check_renaming(source: ResolvedPath, destination: ResolvedPath) -> None:
    """Raise the same `OSError` as Linux if a rename isn't allowed. The checks are in Linux's order."""
    node, replaced = source.node, destination.node
    if source.up or destination.up:
        raise failure(errno.EBUSY, source.path)
    if node is None:
        check_name(source.path, source.path)
        raise failure(errno.ENOENT, source.path)
    check_name(destination.path, destination.path)
    if destination.path.startswith(source.path + SEPARATOR):
        raise failure(errno.EINVAL, source.path)
    if source.path.startswith(destination.path + SEPARATOR):
        raise failure(errno.ENOTEMPTY, source.path)
    if replaced is None or replaced is node:
        return
    if not isinstance(node, FolderNode) and isinstance(replaced, FolderNode):
        raise failure(errno.EISDIR, source.path)
    if isinstance(node, FolderNode) and not isinstance(replaced, FolderNode):
        raise failure(errno.ENOTDIR, source.path)
    if isinstance(replaced, FolderNode) and replaced.entries:
        raise failure(errno.ENOTEMPTY, source.path)


def _file_node(path: Path, content: Any) -> Node:
    """Return the node of a file whose content is a string or bytes."""
    if not isinstance(content, str | bytes):
        raise TypeError(f"the content of {os.fspath(path)!r} must be str or bytes, not {type(content).__name__}")
    return FileNode(content.encode() if isinstance(content, str) else content)


def _read_start(path: Path) -> FolderNode:
    """Return the tree of a folder. The size isn't limited here, because `build` checks it."""
    folder = relative_to_caller(path)
    if not folder.is_dir():
        raise ValueError(f"the folder {str(folder)!r} doesn't exist")
    return read_folder(folder, Limits(max_bytes=sys.maxsize - 1, max_entries=sys.maxsize))


def _temporary_folder() -> RealPath:
    return RealPath(tempfile.mkdtemp(prefix="toolpack-files-"))
