"""Pieces of a tree of files, which are the form in which commits store its content and its changes.

A piece stores changed paths as a list of JSON entries, and their contents as bytes, in the order of the entries. Each
changed path has one entry, which describes its new node or its removal. The entry of a folder creates an empty folder.
Changes inside an existing folder have their own entries.

An entry doesn't depend on earlier pieces. So to merge pieces, write the current entry of each path that they contain.
"""

import os
from collections.abc import Iterable, Iterator, Sequence

from toolpack_server.features.volumes.files.files_paths import from_shown, to_shown
from toolpack_server.features.volumes.files.files_tree import (
    SEPARATOR,
    FileNode,
    FolderNode,
    LinkNode,
    Node,
    changes,
    walk,
    with_changes,
)
from toolpack_server.volumes.volume import Body
from toolpack_server.volumes.working_copy import Key

ENTRY_BYTES = 32  # approximate size of an entry in bytes, without its path and content

_FILE, _EXECUTABLE, _LINK, _FOLDER, _GONE = "f", "x", "l", "d", "-"


def changed_paths(old: FolderNode, new: FolderNode) -> dict[Key, int]:
    """Return the paths whose entries turn one tree into the other, and the approximate size in bytes of each entry."""
    changed: dict[Key, int] = {}
    replaced: str | None = None  # path of a folder that was replaced or removed, with a separator
    for path, before, after in changes(old, new):
        if replaced is None or not path.startswith(replaced):
            changed[path] = _entry_bytes(path, len(_content(after)))
            replaced = path + SEPARATOR if isinstance(before, FolderNode) else None
    return changed


def to_body(root: FolderNode, paths: Iterable[Key] | None) -> Body:
    """Return a piece with the current nodes at these paths. None means all nodes."""
    entries: list[tuple[str, str, int]] = []
    contents: list[bytes] = []
    for path, node in walk(root) if paths is None else _nodes_at(root, paths):
        content = _content(node)
        entries.append((to_shown(path), _type_letter(node), len(content)))
        contents.append(content)
    return Body({"entries": entries}, b"".join(contents))


def sizes(body: Body) -> dict[Key, int]:
    """Return the paths in a piece, with the approximate size in bytes of each entry.

    Raises:
        LookupError, TypeError, ValueError: The piece is damaged.
    """
    return {from_shown(path): _entry_bytes(from_shown(path), size) for path, _, size in body.head["entries"]}


def apply_pieces(bodies: Sequence[Body]) -> FolderNode:
    """Return the tree that a chain of pieces contains. The first piece must come first.

    Raises:
        ValueError: The pieces can't be read.
    """
    root = FolderNode()
    for body in bodies:
        try:
            root = with_changes(root, _entries(body))
        except (LookupError, AttributeError, TypeError) as error:
            raise ValueError("the pieces of a tree of files don't fit together") from error
    return root


def _entries(body: Body) -> Iterator[tuple[str, Node | None]]:
    """Yield the paths in a piece, each with its new node, or None if the node was removed."""
    offset = 0
    for path, letter, size in body.head["entries"]:
        content = bytes(body.data[offset : offset + size])
        if len(content) != size:
            raise ValueError("a piece of a tree of files is truncated")
        offset += size
        yield from_shown(path), _node(letter, content)


def _nodes_at(root: FolderNode, paths: Iterable[Key]) -> Iterator[tuple[str, Node | None]]:
    """Yield each path with its node. A folder comes before its content. Skip paths inside a removed folder."""
    gone: str | None = None
    for names in sorted(str(path).split(SEPARATOR) for path in paths):
        path = SEPARATOR.join(names)
        if gone is not None and path.startswith(gone):
            continue
        node: Node | None = root
        for name in names:
            node = node.entries.get(name) if isinstance(node, FolderNode) else None
        gone = None if isinstance(node, FolderNode) else path + SEPARATOR
        yield path, node


def _entry_bytes(path: str, size: int) -> int:
    return ENTRY_BYTES + len(path) + size


def _content(node: Node | None) -> bytes:
    """Return the bytes that a piece stores for a node, which are a file's content or a link's target."""
    if isinstance(node, FileNode):
        return node.content
    return os.fsencode(node.target) if isinstance(node, LinkNode) else b""


def _type_letter(node: Node | None) -> str:
    """Return the letter that stands for the type of a node in a piece."""
    if isinstance(node, FileNode):
        return _EXECUTABLE if node.executable else _FILE
    if isinstance(node, LinkNode):
        return _LINK
    return _GONE if node is None else _FOLDER


def _node(letter: str, content: bytes) -> Node | None:
    """Return the node for a type letter and a content, or None if the node was removed."""
    if letter in {_FILE, _EXECUTABLE}:
        return FileNode(content, letter == _EXECUTABLE)
    if letter == _LINK:
        return LinkNode(os.fsdecode(content))
    if letter not in {_FOLDER, _GONE}:
        raise ValueError(f"a piece of a tree of files has an unknown entry: {letter!r}")
    return FolderNode() if letter == _FOLDER else None
