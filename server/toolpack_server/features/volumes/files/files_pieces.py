"""Pieces of a tree of files: what has changed, as bytes.

A piece has an entry for each path that has changed: what is there now, or that nothing is. A folder's entry stands for
a new folder, which begins empty; what has changed in a folder that was there before has entries of its own. The
contents follow each other in the order of the entries.

An entry says what is there now, whatever the pieces below say. So pieces are merged by uniting their paths.
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

ENTRY_BYTES = 32  # about what an entry takes beside its path and its content

_FILE, _EXECUTABLE, _LINK, _FOLDER, _GONE = "f", "x", "l", "d", "-"


def changed_paths(old: FolderNode, new: FolderNode) -> dict[Key, int]:
    """Get the paths whose entries lead from one tree to the other, each with about the bytes of its entry."""
    found: dict[Key, int] = {}
    replaced: str | None = None  # the folder in whose place something else is now, with a separator
    for path, before, after in changes(old, new):
        if replaced is None or not path.startswith(replaced):
            found[path] = _entry_bytes(path, len(_content(after)))
            replaced = path + SEPARATOR if isinstance(before, FolderNode) else None
    return found


def to_body(root: FolderNode, paths: Iterable[Key] | None) -> Body:
    """Get a piece that says what is at these paths now; None: all that there is."""
    entries: list[tuple[str, str, int]] = []
    contents: list[bytes] = []
    for path, node in walk(root) if paths is None else _at(root, paths):
        content = _content(node)
        entries.append((to_shown(path), _letter(node), len(content)))
        contents.append(content)
    return Body({"entries": entries}, b"".join(contents))


def sizes(body: Body) -> dict[Key, int]:
    """Get the paths that a piece has entries for, each with about its bytes; raises as `applied`."""
    return {from_shown(path): _entry_bytes(from_shown(path), size) for path, _, size in body.head["entries"]}


def applied(bodies: Sequence[Body]) -> FolderNode:
    """Get the tree that pieces lead to, the first one first.

    Raises:
        ValueError: They can't be read.
    """
    root = FolderNode()
    for body in bodies:
        try:
            root = with_changes(root, _entries(body))
        except (LookupError, AttributeError, TypeError) as error:
            raise ValueError("the pieces of a tree of files don't fit together") from error
    return root


def _entries(body: Body) -> Iterator[tuple[str, Node | None]]:
    at = 0
    for path, letter, size in body.head["entries"]:
        content = bytes(body.data[at : at + size])
        if len(content) != size:
            raise ValueError("a piece of a tree of files is cut")
        at += size
        yield from_shown(path), _node(letter, content)


def _at(root: FolderNode, paths: Iterable[Key]) -> Iterator[tuple[str, Node | None]]:
    """Get what is at each path, a folder before what is in it; nothing twice that is gone with its folder."""
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
    if isinstance(node, FileNode):
        return node.content
    return os.fsencode(node.target) if isinstance(node, LinkNode) else b""


def _letter(node: Node | None) -> str:
    if isinstance(node, FileNode):
        return _EXECUTABLE if node.executable else _FILE
    if isinstance(node, LinkNode):
        return _LINK
    return _GONE if node is None else _FOLDER


def _node(letter: str, content: bytes) -> Node | None:
    if letter in {_FILE, _EXECUTABLE}:
        return FileNode(content, letter == _EXECUTABLE)
    if letter == _LINK:
        return LinkNode(os.fsdecode(content))
    if letter not in {_FOLDER, _GONE}:
        raise ValueError(f"a piece of a tree of files has an unknown entry: {letter!r}")
    return FolderNode() if letter == _FOLDER else None
