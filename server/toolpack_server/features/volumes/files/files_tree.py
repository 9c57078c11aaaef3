"""Immutable tree of files. Its versions share unchanged nodes.

A change creates new folders only along its path. So a copy costs nothing, a comparison skips shared nodes without
reading them, and several sessions can use one tree at the same time.
"""

import errno
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from toolpack_server.volumes.volume import Limits

SEPARATOR = "/"


@dataclass(frozen=True, slots=True, eq=False)
class FileNode:
    """File in a tree."""

    content: bytes
    executable: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class LinkNode:
    """Symbolic link in a tree."""

    target: str


@dataclass(frozen=True, slots=True, eq=False)
class FolderNode:
    """Folder in a tree, with its nodes by name.

    Only its creator is allowed to change the dictionary, and only before other code uses the folder.
    """

    entries: dict[str, "Node"] = field(default_factory=dict)


Node = FileNode | LinkNode | FolderNode

EMPTY = FolderNode()


class Size(NamedTuple):
    """Size of a tree, as bytes and as number of nodes."""

    bytes: int = 0  # total size of the contents of all files
    entries: int = 0  # number of files, folders and links


NOTHING = Size()


class TreeChange(NamedTuple):
    """Difference between two trees at one path. `old` or `new` is None if the path doesn't exist in that tree."""

    path: str
    old: Node | None
    new: Node | None


def walk(folder: FolderNode) -> Iterator[tuple[str, Node]]:
    """Yield each path in a folder with its node, sorted by name. A folder comes before its content."""
    pending: list[tuple[str, Node]] = [("", folder)]
    while pending:
        path, node = pending.pop()
        if path:
            yield path, node
        if isinstance(node, FolderNode):
            prefix = f"{path}{SEPARATOR}" if path else ""
            pending += [(prefix + name, node.entries[name]) for name in sorted(node.entries, reverse=True)]


def size_of(folder: FolderNode) -> Size:
    """Return the size of a tree."""
    count = total = 0
    for _, node in walk(folder):
        count += 1
        total += byte_size(node)
    return Size(total, count)


def byte_size(node: Node | None) -> int:
    """Return the number of bytes of a file, or 0 for links and folders."""
    return len(node.content) if isinstance(node, FileNode) else 0


def is_same(old: Node | None, new: Node | None) -> bool:
    """Return whether two nodes are equal, without comparing the content of folders."""
    if old is new:
        return True
    if isinstance(old, FileNode):
        return isinstance(new, FileNode) and old.executable == new.executable and old.content == new.content
    if isinstance(old, LinkNode):
        return isinstance(new, LinkNode) and old.target == new.target
    return isinstance(old, FolderNode) and isinstance(new, FolderNode)


def changes(old: FolderNode, new: FolderNode) -> Iterator[TreeChange]:
    """Yield the differences between two trees in the order of `walk`. Shared nodes aren't read."""
    pending: list[TreeChange] = [TreeChange("", old, new)]
    while pending:
        change = pending.pop()
        path, before, after = change
        if not is_same(before, after):
            yield change
        if before is after:
            continue
        was = before.entries if isinstance(before, FolderNode) else {}
        now = after.entries if isinstance(after, FolderNode) else {}
        prefix = f"{path}{SEPARATOR}" if path else ""
        differing = [name for name in {**was, **now} if was.get(name) is not now.get(name)]
        pending += [TreeChange(prefix + name, was.get(name), now.get(name)) for name in sorted(differing, reverse=True)]


def with_changes(root: FolderNode, updates: Iterable[tuple[str, Node | None]]) -> FolderNode:
    """Return a copy of a tree with other nodes at some paths.

    Args:
        root: The tree.
        updates: Paths with their new nodes. None removes the node. A folder must come before its content.

    Raises:
        KeyError: A parent folder doesn't exist.
        AttributeError: A parent isn't a folder.
    """
    new = FolderNode(dict(root.entries))
    owned = {"": new.entries}  # entries of the folders that this function has copied, which no other tree shares
    for path, node in updates:
        parent, _, name = path.rpartition(SEPARATOR)
        if parent not in owned:
            _own(owned, parent)
        entries = owned[parent]
        if node is None:
            entries.pop(name, None)
        elif isinstance(node, FolderNode):
            owned[path] = dict(node.entries)
            entries[name] = FolderNode(owned[path])
        else:
            entries[name] = node
    return new


def _own(owned: dict[str, dict[str, Node]], path: str) -> None:
    """Replace the folders along `path` by copies that no other tree shares, and add their entries to `owned`."""
    parent, folder = owned[""], ""
    for name in path.split(SEPARATOR):
        folder = f"{folder}{SEPARATOR}{name}" if folder else name
        if folder not in owned:
            owned[folder] = dict(parent[name].entries)  # type: ignore[union-attr]
            parent[name] = FolderNode(owned[folder])
        parent = owned[folder]


def check_size(size: Size, limits: Limits, before: Size = NOTHING) -> None:
    """Check that a tree fits its limits. A tree that exceeded a limit before is allowed to stay as large.

    Raises:
        OSError: The tree has grown beyond a limit.
    """
    if before.bytes < size.bytes > limits.max_bytes:
        raise OSError(
            errno.ENOSPC, f"the files may have at most {limits.max_bytes} bytes in total (TOOLPACK_MAX_VOLUME_BYTES)"
        )
    if before.entries < size.entries > limits.max_entries:
        raise OSError(
            errno.ENOSPC,
            f"there may be at most {limits.max_entries} files, folders and links (TOOLPACK_MAX_VOLUME_BYTES)",
        )
