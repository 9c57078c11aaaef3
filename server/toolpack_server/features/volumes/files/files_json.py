"""A tree of files as JSON: an object with a value for each file, link and empty folder, by its path.

The contents of files are shown up to 1 MiB in all, in the order of their paths; of others the size. What
`shown_tree` shows, `parsed_tree` reads, but for the permission to execute.
"""

import base64
import errno
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from toolpack_server.base.errors import shown
from toolpack_server.features.volumes.files.files_directory import check_links
from toolpack_server.features.volumes.files.files_paths import check_length, check_name, from_shown, text_of, to_shown
from toolpack_server.features.volumes.files.files_text import unified_diff
from toolpack_server.features.volumes.files.files_tree import (
    SEPARATOR,
    FileNode,
    FolderNode,
    LinkNode,
    Node,
    byte_size,
    is_same,
    walk,
)

MAX_SHOWN_BYTES = 2**20

_BASE64, _DIR, _LINK, _SIZE, _DIFF = "$base64", "$dir", "$link", "$size", "$diff"


class _Shown(NamedTuple):
    """What is shown at a key, and whether its content is."""

    node: Node
    whole: bool

    def value(self) -> Any:
        node = self.node
        if isinstance(node, FolderNode):
            return {_DIR: True}
        if isinstance(node, LinkNode):
            return {_LINK: to_shown(node.target)}
        if not self.whole:
            return {_SIZE: len(node.content)}
        text = _text(node)
        return {_BASE64: base64.b64encode(node.content).decode()} if text is None else text


def shown_tree(root: FolderNode, after: str | None = None, limit: int | None = None) -> dict[str, Any]:
    """Get the JSON of a tree.

    Args:
        root: The tree.
        after: Begin after this key; None: with the first one.
        limit: Get so many keys at most; None: all.
    """
    keys = _keys(root)
    chosen = sorted(key for key in keys if after is None or key > after)[:limit]
    return {key: shown.value() for key, shown in _planned(keys, chosen).items()}


def shown_at(root: FolderNode, steps: Sequence[str]) -> Any:
    """Get what the steps of a pointer lead to in the JSON of a tree, a file's content whatever its size.

    Raises:
        LookupError: They lead to nothing.
    """
    key, *inner = steps
    node: Node | None = root
    for name in from_shown(key).split(SEPARATOR):
        node = node.entries.get(name) if isinstance(node, FolderNode) else None
    if node is None or (isinstance(node, FolderNode) and node.entries):
        raise KeyError(key)
    found = _Shown(node, whole=True).value()
    for step in inner:
        if not isinstance(found, dict):
            raise KeyError(step)
        found = found[step]
    return found


def patch(before: FolderNode, after: FolderNode, path: str, *, text_diffs: bool) -> list[dict[str, Any]]:
    """Get the operations of a JSON Patch that lead from the JSON of one tree to that of another one.

    Args:
        path: The pointer to the tree.
        text_diffs: Show a changed text as a unified diff instead.
    """
    old_keys, new_keys = _keys(before), _keys(after)
    was, now = _planned(old_keys, sorted(old_keys)), _planned(new_keys, sorted(new_keys))
    operations: list[dict[str, Any]] = []
    for key in sorted({**was, **now}):
        where = f"{path}/{key.replace('~', '~0').replace('/', '~1')}"
        old, new = was.get(key), now.get(key)
        if new is None:
            operations.append({"op": "remove", "path": where})
        elif old is None:
            operations.append({"op": "add", "path": where, "value": new.value()})
        elif old.whole != new.whole or not is_same(old.node, new.node):
            difference = _difference(old.node, new.node) if text_diffs else None
            value = new.value() if difference is None else {_DIFF: difference}
            operations.append({"op": "replace", "path": where, "value": value})
    return operations


def parsed_tree(given: Any) -> FolderNode:
    """Get the tree that a JSON value shows.

    Raises:
        ValueError: It is no tree of files.
    """
    if not isinstance(given, dict):
        raise ValueError("files are an object, with a value for each path")  # noqa: TRY004 - as for any other JSON
    return tree_of((from_shown(key), _parsed(key, value)) for key, value in given.items())


def tree_of(nodes: Iterable[tuple[str, Node]]) -> FolderNode:
    """Get a tree that has these nodes at these paths, and the folders that they are in.

    Raises:
        ValueError: It can't have them.
    """
    root = FolderNode()
    for given, node in nodes:
        try:
            *way, name = _names(given)
            here = root
            for folder in way:
                inner = here.entries.setdefault(folder, FolderNode())
                if not isinstance(inner, FolderNode):
                    raise NotADirectoryError(errno.ENOTDIR, "there is a file or a link on the way")
                here = inner
            there = here.entries.setdefault(name, node)
            if there is not node and not (isinstance(there, FolderNode) and isinstance(node, FolderNode)):
                raise FileExistsError(errno.EEXIST, "there is something else")
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise ValueError(f"no file can be at {shown(given)!r}: {reason}") from None
    try:
        check_links(root)
    except OSError as error:
        raise ValueError(f"{error.strerror}: {error.filename!r}") from None
    return root


def _names(path: str) -> list[str]:
    names = text_of(path).split(SEPARATOR)
    if ".." in names or not names[0]:
        raise ValueError("give a path from the root, without `..`")
    for name in names:
        check_name(name, path)
    return names


def _parsed(path: str, value: Any) -> Node:
    """Make what a JSON value shows."""
    match value:
        case str():
            return FileNode(value.encode())
        case {"$base64": str(encoded), **others} if not others:
            try:
                return FileNode(base64.b64decode(encoded, validate=True))
            except ValueError as error:
                raise ValueError(f"{shown(path)!r} isn't in base64: {error}") from None
        case {"$link": str(target), **others} if not others and target:
            try:
                check_length(from_shown(target))
            except (OSError, ValueError) as error:
                raise ValueError(f"{shown(path)!r} is a link to no path: {error}") from None
            return LinkNode(from_shown(target))
        case {"$dir": True, **others} if not others:
            return FolderNode()
        case {"$size": _}:
            raise ValueError(f'{shown(path)!r} is given without its content: give a text or {{"$base64": …}}')
    raise ValueError(f'{shown(path)!r} is no file: give a text, {{"$base64": …}}, {{"$link": …}} or {{"$dir": true}}')


def _text(node: Node) -> str | None:
    try:
        return node.content.decode() if isinstance(node, FileNode) else None
    except UnicodeDecodeError:
        return None


def _difference(old: Node, new: Node) -> str | None:
    was, now = _text(old), _text(new)
    return None if was is None or now is None else unified_diff(was, now)


def _keys(root: FolderNode) -> dict[str, Node]:
    """Get what is shown, by key."""
    return {to_shown(path): node for path, node in walk(root) if not (isinstance(node, FolderNode) and node.entries)}


def _planned(nodes: Mapping[str, Node], keys: Iterable[str]) -> dict[str, _Shown]:
    """Decide of which files the content is shown."""
    room = MAX_SHOWN_BYTES
    planned = {}
    for key in keys:
        node = nodes[key]
        whole = byte_size(node) <= room
        room -= byte_size(node) if whole else 0
        planned[key] = _Shown(node, whole)
    return planned
