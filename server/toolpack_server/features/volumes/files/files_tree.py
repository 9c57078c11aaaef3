"""A tree of files as a value: versions of it share what they have in common.

Nothing in a tree ever changes; whoever writes a file makes new folders along its path. So a copy costs
nothing, what two trees share is recognised without reading it, and trees can be used by several sessions at once.
"""

import errno
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from toolpack_server.volumes.volume import Limits

SEPARATOR = "/"


@dataclass(frozen=True, slots=True, eq=False)
class FileNode:
    content: bytes
    executable: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class LinkNode:
    """A symbolic link."""

    target: str


@dataclass(frozen=True, slots=True, eq=False)
class FolderNode:
    """A folder: what is in it, by name. Only who has made the dictionary may change it, until others see it."""

    entries: dict[str, "Node"] = field(default_factory=dict)


Node = FileNode | LinkNode | FolderNode

EMPTY = FolderNode()


class Size(NamedTuple):
    """How large a tree is."""

    bytes: int = 0  # of the contents of all files
    entries: int = 0  # files, folders and links


NOTHING = Size()


class TreeChange(NamedTuple):
    """What differs at one path; None: nothing is there."""

    path: str
    old: Node | None
    new: Node | None


def walk(folder: FolderNode) -> Iterator[tuple[str, Node]]:
    """Get the path of everything in a folder, by name, what is in a folder after the folder itself."""
    waiting: list[tuple[str, Node]] = [("", folder)]
    while waiting:
        path, node = waiting.pop()
        if path:
            yield path, node
        if isinstance(node, FolderNode):
            prefix = f"{path}{SEPARATOR}" if path else ""
            waiting += [(prefix + name, node.entries[name]) for name in sorted(node.entries, reverse=True)]


def size_of(folder: FolderNode) -> Size:
    count = total = 0
    for _, node in walk(folder):
        count += 1
        total += byte_size(node)
    return Size(total, count)


def byte_size(node: Node | None) -> int:
    return len(node.content) if isinstance(node, FileNode) else 0


def is_same(old: Node | None, new: Node | None) -> bool:
    """Whether two nodes are the same but for what is in a folder."""
    if old is new:
        return True
    if isinstance(old, FileNode):
        return isinstance(new, FileNode) and old.executable == new.executable and old.content == new.content
    if isinstance(old, LinkNode):
        return isinstance(new, LinkNode) and old.target == new.target
    return isinstance(old, FolderNode) and isinstance(new, FolderNode)


def changes(old: FolderNode, new: FolderNode) -> Iterator[TreeChange]:
    """Get what differs between two trees, in the order of `walk`; what they share isn't read."""
    waiting: list[TreeChange] = [TreeChange("", old, new)]
    while waiting:
        change = waiting.pop()
        path, before, after = change
        if not is_same(before, after):
            yield change
        if before is after:
            continue
        was = before.entries if isinstance(before, FolderNode) else {}
        now = after.entries if isinstance(after, FolderNode) else {}
        prefix = f"{path}{SEPARATOR}" if path else ""
        differing = [name for name in {**was, **now} if was.get(name) is not now.get(name)]
        waiting += [TreeChange(prefix + name, was.get(name), now.get(name)) for name in sorted(differing, reverse=True)]


def with_changes(root: FolderNode, updates: Iterable[tuple[str, Node | None]]) -> FolderNode:
    """Get a tree in which other nodes, or None for nothing, are at some paths.

    Args:
        root: The tree.
        updates: What is there takes the place of whatever was there before; a folder comes before what is in it.

    Raises:
        KeyError: A path leads through a folder that isn't there; or `AttributeError`, if it is no folder.
    """
    new = FolderNode(dict(root.entries))
    owned = {"": new.entries}  # those that nobody else sees
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
    """Copy the folders on the way to `path`, where they are shared."""
    above, way = owned[""], ""
    for name in path.split(SEPARATOR):
        way = f"{way}{SEPARATOR}{name}" if way else name
        if way not in owned:
            owned[way] = dict(above[name].entries)  # type: ignore[union-attr]
            above[name] = FolderNode(owned[way])
        above = owned[way]


def check_size(size: Size, limits: Limits, before: Size = NOTHING) -> None:
    """Raise `OSError` if a tree is larger than it may be, and than it was before."""
    if before.bytes < size.bytes > limits.max_bytes:
        raise OSError(errno.ENOSPC, f"the files may have {limits.max_bytes} bytes in all (TOOLPACK_MAX_VOLUME_BYTES)")
    if before.entries < size.entries > limits.max_entries:
        raise OSError(
            errno.ENOSPC,
            f"there may be {limits.max_entries} files, folders and links in all (TOOLPACK_MAX_VOLUME_BYTES)",
        )
