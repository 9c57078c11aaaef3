"""Where a path leads in a tree of files: what Linux would find, with the same errors.

A path is resolved step by step, through links and `..`, and can't lead out of the tree.
"""

import errno
import os
import re
from collections.abc import Sequence
from typing import NamedTuple

from toolpack_server.base.errors import shown
from toolpack_server.features.volumes.files.files_tree import EMPTY, SEPARATOR, FolderNode, LinkNode, Node

MAX_CHARACTERS = 1024
_MAX_BYTES = 4095  # of a path, on Linux
_MAX_NAME_BYTES = 255
_MAX_LINKS = 40
_UP = ".."
_NOWHERE = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG}  # of a path that leads nowhere
_SURROGATES = 0xDC00  # Python's texts have bytes that aren't UTF-8 as surrogates from here on
_NO_TEXT = re.compile("[\udc80-\udcff]")
_SHOWN_BYTE = re.compile("//([89a-f][0-9a-f])")

Path = str | os.PathLike[str]


class FoundEntry(NamedTuple):
    """Where a path leads."""

    path: str  # without links and `..`; "" is the root
    node: Node | None  # None if nothing is there, but the folder that it would be in
    up: bool  # the path ends with `..`, or is the root


def failure(number: int, *paths: str, why: str = "") -> OSError:
    """Make the error of a system call, of the class that belongs to its number."""
    text = why or os.strerror(number)
    first, *second = (shown(path) for path in paths)
    return OSError(number, text, first, None, *second) if second else OSError(number, text, first)


def text_of(path: Path) -> str:
    """Get a path as `pathlib` would show it, but from the root.

    Raises:
        OSError: It is too long.
        ValueError: No file can be called so.
        TypeError: It is no text.
    """
    text = os.fspath(path)
    if not isinstance(text, str):
        raise TypeError(f"a path is a str or an os.PathLike of str, not {type(path).__name__}")
    names = SEPARATOR.join(name for name in text.split(SEPARATOR) if name not in {"", "."})
    check_length(names)
    return names if names.isascii() else os.fsdecode(os.fsencode(names))


def to_shown(path: str) -> str:
    """Get a path as JSON has it: a byte of a name that isn't UTF-8 is shown as `//` and two digits."""
    return path if path.isascii() else _NO_TEXT.sub(lambda found: f"//{ord(found[0]) - _SURROGATES:02x}", path)


def from_shown(shown_path: str) -> str:
    """Get the path that `to_shown` shows so."""
    return _SHOWN_BYTE.sub(lambda found: chr(_SURROGATES + int(found[1], 16)), shown_path)


def check_length(path: str) -> None:
    """Raise `OSError` if a path is too long, and `ValueError` if no path can have one of its characters."""
    if "\0" in path:
        raise ValueError("embedded null byte")
    if len(path) > MAX_CHARACTERS or len(path) * 4 > _MAX_BYTES < len(os.fsencode(path)):
        raise failure(errno.ENAMETOOLONG, path)


def check_name(name: str, path: str) -> None:
    """Raise `OSError` if no file can be called so, which is the last name of a path or one before."""
    name = name.rpartition(SEPARATOR)[2]
    if len(name) * 4 > _MAX_NAME_BYTES < len(os.fsencode(name)):
        raise failure(errno.ENAMETOOLONG, path)


def find(root: FolderNode, text: str, *, follow: bool = True, lenient: bool = False) -> FoundEntry:
    """Find what is at a path, or the place where it would be; whether it can be called so isn't checked.

    Args:
        root: The tree.
        text: The path, as `text_of` gets it.
        follow: Whether to follow a link at its end.
        lenient: Take what is missing for a folder.

    Raises:
        OSError: It leads nowhere, or out of the tree.
    """
    way: list[tuple[str, FolderNode]] = []
    here, links, up = root, 0, True
    names = _reversed_names(text)
    while names:
        name = names.pop()
        up = name == _UP
        if up:
            if not way:
                raise leads_out(text)
            here = way.pop()[1]
            continue
        node = here.entries.get(name)
        if isinstance(node, LinkNode) and (names or follow):
            links += 1
            if links > _MAX_LINKS:
                raise failure(errno.ELOOP, text)
            if node.target.startswith(SEPARATOR):
                raise leads_out(text)
            names += _reversed_names(node.target)
            continue
        if not names:
            return FoundEntry(_joined(way, name), node, up=False)
        if node is None:
            check_name(name, text)
            if not lenient:
                raise failure(errno.ENOENT, text)
        if not isinstance(node, FolderNode):
            if not lenient:
                raise failure(errno.ENOTDIR, text)
            node = EMPTY
        way.append((name, here))
        here = node
    return FoundEntry(_joined(way), here, up)


def reached(root: FolderNode, text: str, *, follow: bool = True) -> Node | None:
    """Get what is at a path, None if it leads nowhere; `PermissionError` if it leads out of the tree."""
    try:
        return find(root, text, follow=follow).node
    except OSError as error:
        if error.errno in _NOWHERE:
            return None
        raise


def leads_out(text: str) -> OSError:
    return failure(errno.EACCES, text, why="the path leads out of the session's files")


def _reversed_names(text: str) -> list[str]:
    return [name for name in reversed(text.split(SEPARATOR)) if name not in {"", "."}]


def _joined(way: Sequence[tuple[str, FolderNode]], *more: str) -> str:
    return SEPARATOR.join([*(name for name, _ in way), *more])
