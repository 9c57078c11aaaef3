"""Files: a tree of files that is a field of an environment.

What a method does, and what it raises, is what `pathlib.Path` would do in a Linux directory. A tree is kept
as a value (`files_tree.py`), so that copies of it share what they haven't changed.
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
    FoundEntry,
    Path,
    check_length,
    check_name,
    failure,
    find,
    reached,
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
    """A tree of files, as a field of an environment.

    Paths are texts, from the root of the tree; so are those that methods return. Arguments mean what they mean in
    `pathlib.Path`, and errors are the same. Text is UTF-8 by default.

    Args:
        start: What it begins with: a folder, a relative path from the folder of the module that makes this object; or
            texts and bytes by their paths. Nothing by default.

    Raises:
        RegistrationError: It can't begin with that.
    """

    kind: ClassVar[str] = "files"

    _tree: tuple[FolderNode, Size] | None = None  # None: as the working copy has it
    _writing: threading.Lock
    _folder: RealPath | None = None  # the last block's, in the scratch folder
    _lent = False  # a block of `materialize` has the tree

    def __new__(cls, *_args: Any, **_kwargs: Any) -> Self:
        """Make an object with a lock of its own, however it is made."""
        made = super().__new__(cls)
        made._writing = threading.Lock()
        return made

    def __init__(self, start: Path | Mapping[str, str | bytes] | None = None) -> None:
        root = FolderNode()
        try:
            if isinstance(start, Mapping):
                root = files_json.tree_of((path, _given(path, content)) for path, content in start.items())
            elif start is not None:
                root = _read_start(start)
        except (OSError, TypeError, ValueError) as error:
            raise RegistrationError(f"Files can't begin with {shown(repr(start))}: {error}") from error
        self._tree = root, size_of(root)

    # What authors use

    def read_bytes(self, path: Path) -> bytes:
        """Get the content of a file."""
        node = self._find(path).node
        if not isinstance(node, FileNode):
            raise failure(errno.ENOENT if node is None else errno.EISDIR, text_of(path))
        return node.content

    def read_text(
        self, path: Path, encoding: str | None = None, errors: str | None = None, newline: str | None = None
    ) -> str:
        """Get the content of a file as text."""
        content = io.BytesIO(self.read_bytes(path))
        return io.TextIOWrapper(content, encoding or "utf-8", errors, newline).read()

    def write_bytes(self, path: Path, data: bytes) -> int:
        """Write a file, and get the number of bytes; a file that is there is overwritten."""
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
        """Write a file, and get the number of characters; a file that is there is overwritten."""
        if not isinstance(data, str):
            raise TypeError(f"data must be str, not {type(data).__name__}")
        content = io.BytesIO()
        text = io.TextIOWrapper(content, encoding or "utf-8", errors, newline)
        text.write(data)
        text.flush()
        self._write(path, content.getvalue())
        return len(data)

    def exists(self, path: Path) -> bool:
        """Whether there is something, at the end of links."""
        return self._reached(path) is not None

    def is_file(self, path: Path) -> bool:
        return isinstance(self._reached(path), FileNode)

    def is_dir(self, path: Path) -> bool:
        return isinstance(self._reached(path), FolderNode)

    def size(self, path: Path) -> int:
        """Get the number of bytes of a file."""
        return len(self.read_bytes(path))

    def iterdir(self, path: Path = "") -> list[str]:
        """Get the paths of all that is in a folder, by default in the root, sorted by name."""
        folder = self._find(path).node
        if not isinstance(folder, FolderNode):
            raise failure(errno.ENOENT if folder is None else errno.ENOTDIR, text_of(path))
        prefix = text_of(path)
        return [f"{prefix}{SEPARATOR}{name}" if prefix else name for name in sorted(folder.entries)]

    def glob(self, pattern: str) -> list[str]:
        """Get the paths that fit a pattern, sorted, such as `orders/*.txt` or `**/*.txt`; `**` also takes in files."""
        return matching(self._root, pattern)

    def mkdir(self, path: Path, parents: bool = False, exist_ok: bool = False) -> None:
        """Make a folder."""
        missing: list[str] = []
        text = text_of(path)
        while not self._made_folder(text, parents=parents, exist_ok=exist_ok or bool(missing)):
            missing.append(text)
            text = text.rpartition(SEPARATOR)[0]
        for inner in reversed(missing):
            self._made_folder(inner, parents=False, exist_ok=exist_ok or inner != missing[0])

    def unlink(self, path: Path, missing_ok: bool = False) -> None:
        """Remove a file or a link."""
        text = text_of(path)
        with self._changing(text):
            try:
                found = self._find(text, follow=False)
                if found.node is None:
                    raise failure(errno.ENOENT, text)
            except FileNotFoundError:
                if not missing_ok:
                    raise
                return
            if isinstance(found.node, FolderNode):
                raise failure(errno.EISDIR, text)
            self._update([(found.path, None)], Size(-byte_size(found.node), -1))

    def rmdir(self, path: Path) -> None:
        """Remove an empty folder."""
        text = text_of(path)
        with self._changing(text):
            found = self._find(text, follow=False)
            if found.node is None:
                raise failure(errno.ENOENT, text)
            if not isinstance(found.node, FolderNode):
                raise failure(errno.ENOTDIR, text)
            if not text:
                raise failure(errno.EBUSY, text)
            if found.up or found.node.entries:
                raise failure(errno.ENOTEMPTY, text)
            self._update([(found.path, None)], Size(0, -1))

    def rename(self, path: Path, target: Path) -> str:
        """Move a file, a folder or a link, and get its new path; a file or an empty folder there is replaced."""
        text, wanted = text_of(path), text_of(target)
        with self._changing(text):
            try:
                source, place = find(self._root, text, follow=False), find(self._root, wanted, follow=False)
                _check_renaming(source, place)
            except OSError as error:
                if error.errno == errno.EACCES:
                    raise
                raise failure(error.errno or 0, text, wanted) from None
            if source.path != place.path:
                if isinstance(source.node, FolderNode):
                    for inner, _ in walk(source.node):
                        check_length(f"{place.path}{SEPARATOR}{inner}")
                more = Size(-byte_size(place.node), -int(place.node is not None))
                self._update([(source.path, None), (place.path, source.node)], more)
        return wanted

    @contextmanager
    def materialize(self) -> Iterator[RealPath]:
        """Get the files as a real directory for a block, and take over what has changed there at its end.

        Meanwhile they can only be used there. Kept are contents, the permission to execute, empty folders, and symbolic
        links that don't lead out of the directory; not kept are owners, times, other permissions and hard links.

        Raises:
            OSError: There is something in it at the end that can't be kept, or it is too large.
            PermissionError: It has changed, in a function that is registered with read_only=True.
        """
        root, size = self._state
        working = FilesCopy(root, _temporary_folder, size) if self.mount is None else self._working()
        now_ns = time.time_ns() if self.mount is not None and self.mount.pinned else None
        try:
            with working.directory(self._limits) as directory:
                try:
                    with uninterruptible:
                        self._lay_out(directory, root, now_ns)
                        self._lent, self._folder = True, directory.folder if self.mount else None
                    try:
                        with directory.watched():
                            yield directory.folder
                    except Exception:
                        self._read_back(directory)
                        raise
                    else:
                        self._read_back(directory)
                finally:
                    self._lent = False
        finally:
            if self.mount is None:
                working.discard()

    def __eq__(self, other: object) -> bool:
        """Whether both hold the same files."""
        if not isinstance(other, Files):
            return NotImplemented
        return next(changes(self._root, other._root), None) is None

    def __repr__(self) -> str:
        return "Files()" if self._tree is None else f"Files(<{self._tree[1].entries} files and folders>)"

    # What the server uses

    def __deepcopy__(self, memo: Any) -> Self:
        return self._holding(self._state)

    def build(self, limits: Limits) -> Body:
        root, size = self._state
        try:
            check_size(size, limits)
        except OSError as error:
            raise InvalidParamsError(f"{error.strerror}.") from error
        return files_pieces.to_body(root, None)

    @classmethod
    def parse(cls, given: Any) -> Self:
        root = files_json.parsed_tree(given)
        return cls._holding((root, size_of(root)))

    @classmethod
    def _holding(cls, tree: tuple[FolderNode, Size]) -> Self:
        made = cls.__new__(cls)
        made._tree = tree  # noqa: SLF001 - made here
        return made

    @classmethod
    def load(cls, bodies: Sequence[Body], context: VolumeContext) -> FilesCopy:
        def new_folder() -> RealPath:
            made: RealPath = context.scratch.new_path()
            made.mkdir(mode=0o700)
            return made

        return FilesCopy(files_pieces.applied(bodies), new_folder)

    @classmethod
    def sizes(cls, body: Body) -> Mapping[Key, int]:
        return files_pieces.sizes(body)

    def finish(self) -> Mapping[Key, int]:
        root, size = self._state
        working = self._working()
        changed = files_pieces.changed_paths(working.root, root)
        working.changed_to(root, size)
        return changed

    def body(self, keys: Mapping[Key, int] | None) -> Body:
        return files_pieces.to_body(self._root, keys)

    def abandon(self) -> bool:
        self._tree, self._lent = None, False
        return True  # nobody has changed the tree of the working copy, and its directory is looked at anew

    def explain(self, error: BaseException) -> BaseException:
        found = self._folder if isinstance(error, OSError) and error.errno in _NO_ROOM else None
        return OverloadedError(FULL_TEXT) if found is not None and is_full(found) else error

    def view(self) -> Any:
        return files_json.shown_tree(self._root)

    def at(self, steps: Sequence[str], after: str | None, limit: int | None) -> Any:
        return files_json.shown_at(self._root, steps) if steps else files_json.shown_tree(self._root, after, limit)

    def patch(self, after: Self, path: str, *, text_diffs: bool) -> list[dict[str, Any]]:
        return files_json.patch(self._root, after._root, path, text_diffs=text_diffs)

    def export(self) -> bytes:
        return to_tar(self._root)

    @property
    def _state(self) -> tuple[FolderNode, Size]:
        """The tree, and how large it is."""
        if self.mount is not None and self.mount.ended:
            raise self.mount.too_late()
        if self._lent:
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
        """Return the working copy; the files were given to a call."""
        return self.mount.copy()  # type: ignore[return-value,union-attr] # it is what `load` has made

    def _find(self, path: Path, *, follow: bool = True) -> FoundEntry:
        text = text_of(path)
        found = find(self._root, text, follow=follow)
        if found.node is None:
            check_name(found.path, text)
        return found

    def _reached(self, path: Path) -> Node | None:
        try:
            text = text_of(path)
        except (OSError, ValueError):  # nothing can be called so
            return None
        return reached(self._root, text)

    @contextmanager
    def _changing(self, path: str) -> Iterator[None]:
        """Let nobody else change the files in the block, so that none of two changes is lost."""
        if self.mount is not None and self.mount.read_only:
            raise self._read_only_error(path)
        with self._writing:
            yield

    def _write(self, path: Path, content: bytes) -> None:
        text = text_of(path)
        with self._changing(text):
            found = self._find(text)
            if isinstance(found.node, FolderNode):
                raise failure(errno.EISDIR, text)
            executable = isinstance(found.node, FileNode) and found.node.executable
            more = Size(len(content) - byte_size(found.node), int(found.node is None))
            self._update([(found.path, FileNode(content, executable))], more)

    def _made_folder(self, text: str, *, parents: bool, exist_ok: bool) -> bool:
        """Make a folder as `mkdir` does; False: first make the one that it is to be in."""
        try:
            with self._changing(text):
                found = self._find(text, follow=False)
                if found.node is not None:
                    raise failure(errno.EEXIST, text)
                self._update([(found.path, FolderNode())], Size(0, 1))
        except FileNotFoundError:
            if not parents or SEPARATOR not in text:
                raise
            return False
        except OSError:
            if not exist_ok or not self.is_dir(text):
                raise
        return True

    def _update(self, updates: Sequence[tuple[str, Node | None]], more: Size) -> None:
        """Change what is at some paths, which makes the tree so much larger."""
        root, size = self._state
        new = Size(size.bytes + more.bytes, size.entries + more.entries)
        check_size(new, self._limits, size)
        self._tree = with_changes(root, updates), new

    def _lay_out(self, directory: Directory, root: FolderNode, now_ns: int | None) -> None:
        try:
            directory.lay_out(root, now_ns)
        except OSError as error:
            directory.clear()  # what there was no room for takes none
            if error.errno in _NO_ROOM and self.mount is not None:
                # It refuses the request, whatever the function makes of it.
                self.mount.error = OverloadedError(FULL_TEXT)
                raise self.mount.error from error
            raise

    def _read_back(self, directory: Directory) -> None:
        """Keep what a directory holds at the end of its block."""
        with uninterruptible:
            self._take_over(directory.read())

    def _take_over(self, root: FolderNode) -> None:
        if self.mount is not None and self.mount.ended:
            raise self.mount.too_late()
        assert self._tree is not None  # noqa: S101 - the block has begun with it
        before = self._tree[0]
        if root is before:
            return
        if self.mount is not None and self.mount.read_only:
            for path, _, _ in changes(before, root):
                raise self._read_only_error(path)
        self._tree = root, size_of(root)

    def _read_only_error(self, path: str) -> OSError:
        why = "" if self.mount is None else self.mount.read_only
        return failure(errno.EACCES, path, why=f"attempt to write readonly files: {why}")


def _check_renaming(source: FoundEntry, place: FoundEntry) -> None:
    """Raise the `OSError` for which Linux refuses to rename something, which asks in this order."""
    node, replaced = source.node, place.node
    if source.up or place.up:
        raise failure(errno.EBUSY, source.path)
    if node is None:
        check_name(source.path, source.path)
        raise failure(errno.ENOENT, source.path)
    check_name(place.path, place.path)
    if place.path.startswith(source.path + SEPARATOR):
        raise failure(errno.EINVAL, source.path)
    if source.path.startswith(place.path + SEPARATOR):
        raise failure(errno.ENOTEMPTY, source.path)
    if replaced is None or replaced is node:
        return
    if not isinstance(node, FolderNode) and isinstance(replaced, FolderNode):
        raise failure(errno.EISDIR, source.path)
    if isinstance(node, FolderNode) and not isinstance(replaced, FolderNode):
        raise failure(errno.ENOTDIR, source.path)
    if isinstance(replaced, FolderNode) and replaced.entries:
        raise failure(errno.ENOTEMPTY, source.path)


def _given(path: Path, content: Any) -> Node:
    if not isinstance(content, str | bytes):
        raise TypeError(f"{os.fspath(path)!r} is given as {type(content).__name__}: give a text or bytes")
    return FileNode(content.encode() if isinstance(content, str) else content)


def _read_start(path: Path) -> FolderNode:
    folder = relative_to_caller(path)
    if not folder.is_dir():
        raise ValueError(f"there is no folder {str(folder)!r}")
    return read_folder(folder, Limits(max_bytes=sys.maxsize - 1, max_entries=sys.maxsize))


def _temporary_folder() -> RealPath:
    return RealPath(tempfile.mkdtemp(prefix="toolpack-files-"))
