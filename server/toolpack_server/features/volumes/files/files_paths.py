"""Path resolution in a tree of files. Results and errors are the same as on Linux.

A path is resolved step by step, through links and `..`. A path that leads out of the tree raises an error.
"""

import errno
import os
import re
from collections.abc import Sequence
from typing import NamedTuple

from toolpack_server.base.errors import shown
from toolpack_server.features.volumes.files.files_tree import EMPTY, SEPARATOR, FolderNode, LinkNode, Node

MAX_CHARACTERS = 1024
_MAX_BYTES = 4095  # Linux's limit for a path
_MAX_NAME_BYTES = 255
_MAX_LINKS = 40
_UP = ".."
_MISSING = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG}  # error numbers for paths that don't exist
_SURROGATES = 0xDC00  # code point of byte 0 among Python's surrogate escapes
_SURROGATE_ESCAPES = re.compile("[\udc80-\udcff]")
_SHOWN_BYTE = re.compile("//([89a-f][0-9a-f])")

Path = str | os.PathLike[str]


class ResolvedPath(NamedTuple):
    """Result of resolving a path.

    Attributes:
        path: The path without links and `..`. The root is "".
        node: The node. None if only its parent folder exists.
        up: Whether the given path ends with `..`, or is the root.
    """

    path: str
    node: Node | None
    up: bool


def failure(number: int, *paths: str, why: str = "") -> OSError:
    """Return the error that a system call raises for an error number, such as `FileNotFoundError` for ENOENT.

    Args:
        number: The error number, from `errno`.
        paths: The path, or the two paths of a renaming.
        why: The error message. Default: Linux's message for the number.
    """
    text = why or os.strerror(number)
    first, *second = (shown(path) for path in paths)
    return OSError(number, text, first, None, *second) if second else OSError(number, text, first)


def text_of(path: Path) -> str:
    """Return a path as a string relative to the root, normalized in the same way as `pathlib` does.

    Raises:
        OSError: The path is too long.
        ValueError: The path contains a character that isn't allowed in paths.
        TypeError: The path is neither a `str` nor an `os.PathLike` of `str`.
    """
    text = os.fspath(path)
    if not isinstance(text, str):
        raise TypeError(f"a path must be a str or an os.PathLike of str, not {type(path).__name__}")
    names = SEPARATOR.join(name for name in text.split(SEPARATOR) if name not in {"", "."})
    check_length(names)
    return names if names.isascii() else os.fsdecode(os.fsencode(names))


def to_shown(path: str) -> str:
    """Return a path in its form for JSON. A byte that isn't UTF-8 becomes `//` and two hexadecimal digits."""
    return (
        path if path.isascii() else _SURROGATE_ESCAPES.sub(lambda match: f"//{ord(match[0]) - _SURROGATES:02x}", path)
    )


def from_shown(shown_path: str) -> str:
    """Convert the result of `to_shown` back to a path."""
    return _SHOWN_BYTE.sub(lambda match: chr(_SURROGATES + int(match[1], 16)), shown_path)


def check_length(path: str) -> None:
    """Check the length and the characters of a path.

    Raises:
        OSError: The path is too long.
        ValueError: The path contains a null character.
    """
    if "\0" in path:
        raise ValueError("embedded null byte")
    # A character takes at most 4 bytes, so a short path needn't be encoded to check its length.
    if len(path) > MAX_CHARACTERS or len(path) * 4 > _MAX_BYTES < len(os.fsencode(path)):
        raise failure(errno.ENAMETOOLONG, path)


def check_name(name: str, path: str) -> None:
    """Check the length of a path's last name.

    Args:
        name: The name, or a path that ends with it.
        path: The path that the error shows.

    Raises:
        OSError: The name is too long.
    """
    name = name.rpartition(SEPARATOR)[2]
    if len(name) * 4 > _MAX_NAME_BYTES < len(os.fsencode(name)):
        raise failure(errno.ENAMETOOLONG, path)


def find(root: FolderNode, text: str, *, follow: bool = True, lenient: bool = False) -> ResolvedPath:
    """Resolve a path. If the path doesn't exist, the result has no node. The length of the last name isn't checked.

    Args:
        root: The tree.
        text: The path, as `text_of` returns it.
        follow: Whether to follow a link at the end of the path.
        lenient: Whether to treat a missing folder as an empty folder.

    Raises:
        OSError: A parent doesn't exist, or the path leads out of the tree.
    """
    parents: list[tuple[str, FolderNode]] = []
    folder, links, up = root, 0, True
    names = _reversed_names(text)
    while names:
        name = names.pop()
        up = name == _UP
        if up:
            if not parents:
                raise _outside_error(text)
            folder = parents.pop()[1]
            continue
        node = folder.entries.get(name)
        if isinstance(node, LinkNode) and (names or follow):
            links += 1
            if links > _MAX_LINKS:
                raise failure(errno.ELOOP, text)
            if node.target.startswith(SEPARATOR):
                raise _outside_error(text)
            names += _reversed_names(node.target)
            continue
        if not names:
            return ResolvedPath(_join(parents, name), node, up=False)
        if node is None:
            check_name(name, text)
            if not lenient:
                raise failure(errno.ENOENT, text)
        if not isinstance(node, FolderNode):
            if not lenient:
                raise failure(errno.ENOTDIR, text)
            node = EMPTY
        parents.append((name, folder))
        folder = node
    return ResolvedPath(_join(parents), folder, up)


def node_at(root: FolderNode, text: str, *, follow: bool = True) -> Node | None:
    """Return the node at a path, or None if it doesn't exist.

    Raises:
        PermissionError: The path leads out of the tree.
    """
    try:
        return find(root, text, follow=follow).node
    except OSError as error:
        if error.errno in _MISSING:
            return None
        raise


def _outside_error(text: str) -> OSError:
    """Return the error for a path that leads out of the tree."""
    return failure(errno.EACCES, text, why="the path leads out of the session's files")


def _reversed_names(text: str) -> list[str]:
    """Return the names in a path in reverse order, because `find` takes names from the end of a list."""
    return [name for name in reversed(text.split(SEPARATOR)) if name not in {"", "."}]


def _join(parents: Sequence[tuple[str, FolderNode]], *names: str) -> str:
    return SEPARATOR.join([*(name for name, _ in parents), *names])
