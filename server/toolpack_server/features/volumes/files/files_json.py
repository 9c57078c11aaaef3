"""View of a tree of files as JSON, which is an object with a value for each file, link and empty folder, by path.

In the order of their paths, the object shows the contents of files up to 1 MiB in total. For all further files, it
shows only the size. `parse_tree` converts the object back to a tree, without executable permissions. It refuses files
that are shown only with their size.
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

MAX_CONTENT_BYTES = 2**20

_BASE64, _DIR, _LINK, _SIZE, _DIFF = "$base64", "$dir", "$link", "$size", "$diff"


class _ViewEntry(NamedTuple):
    """Entry of a view, which is a file, a link or an empty folder.

    Attributes:
        node: The node.
        whole: Whether the view contains the file's content, not only its size.
    """

    node: Node
    whole: bool

    def value(self) -> Any:
        """Return the JSON of the entry."""
        node = self.node
        if isinstance(node, FolderNode):
            return {_DIR: True}
        if isinstance(node, LinkNode):
            return {_LINK: to_shown(node.target)}
        if not self.whole:
            return {_SIZE: len(node.content)}
        text = _text(node)
        return {_BASE64: base64.b64encode(node.content).decode()} if text is None else text


def view_tree(root: FolderNode, after: str | None = None, limit: int | None = None) -> dict[str, Any]:
    """Return the JSON of a tree.

    Args:
        root: The tree.
        after: Begin after this key. None means the first key.
        limit: Maximum number of keys. None means no limit.
    """
    keys = _keys(root)
    page = sorted(key for key in keys if after is None or key > after)[:limit]
    return {key: entry.value() for key, entry in _entries(keys, page).items()}


def view_at(root: FolderNode, steps: Sequence[str]) -> Any:
    """Return the value at the steps of a JSON Pointer in the JSON of a tree. The content of a file can have any size.

    Raises:
        LookupError: The JSON contains no value there.
    """
    key, *inner = steps
    node: Node | None = root
    for name in from_shown(key).split(SEPARATOR):
        node = node.entries.get(name) if isinstance(node, FolderNode) else None
    if node is None or (isinstance(node, FolderNode) and node.entries):
        raise KeyError(key)
    value = _ViewEntry(node, whole=True).value()
    for step in inner:
        if not isinstance(value, dict):
            raise KeyError(step)
        value = value[step]
    return value


def patch(before: FolderNode, after: FolderNode, path: str, *, text_diffs: bool) -> list[dict[str, Any]]:
    """Return the JSON Patch operations that turn the JSON of one tree into the JSON of another tree.

    Args:
        before: The first tree.
        after: The second tree.
        path: JSON Pointer of the tree.
        text_diffs: Whether to show a changed text as a unified diff.
    """
    old_keys, new_keys = _keys(before), _keys(after)
    was, now = _entries(old_keys, sorted(old_keys)), _entries(new_keys, sorted(new_keys))
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


def parse_tree(value: Any) -> FolderNode:
    """Return the tree for a JSON value.

    Raises:
        ValueError: The value isn't a tree of files.
    """
    if not isinstance(value, dict):
        raise ValueError("files must be an object with a value for each path")  # noqa: TRY004 - as for any other JSON
    return tree_of((from_shown(key), _parse_node(key, node)) for key, node in value.items())


def tree_of(nodes: Iterable[tuple[str, Node]]) -> FolderNode:
    """Return a tree that contains these nodes at their paths. Missing folders are added.

    Raises:
        ValueError: A path is invalid or used twice, or a link leads out of the tree.
    """
    root = FolderNode()
    for path, node in nodes:
        try:
            *parents, name = _names(path)
            folder = root
            for parent in parents:
                inner = folder.entries.setdefault(parent, FolderNode())
                if not isinstance(inner, FolderNode):
                    raise NotADirectoryError(errno.ENOTDIR, "a file or a link is at the path of a parent folder")
                folder = inner
            existing = folder.entries.setdefault(name, node)
            if existing is not node and not (isinstance(existing, FolderNode) and isinstance(node, FolderNode)):
                raise FileExistsError(errno.EEXIST, "the path is used twice")
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise ValueError(f"no file can be at {shown(path)!r}: {reason}") from None
    try:
        check_links(root)
    except OSError as error:
        raise ValueError(f"{error.strerror}: {error.filename!r}") from None
    return root


def _names(path: str) -> list[str]:
    """Return the names in a path. Raise `OSError` or `ValueError` if the path is invalid."""
    names = text_of(path).split(SEPARATOR)
    if ".." in names or not names[0]:
        raise ValueError("use a path from the root, without `..`")
    for name in names:
        check_name(name, path)
    return names


def _parse_node(path: str, value: Any) -> Node:
    """Return the node for a JSON value."""
    match value:
        case str():
            return FileNode(value.encode())
        case {"$base64": str(encoded), **others} if not others:
            try:
                return FileNode(base64.b64decode(encoded, validate=True))
            except ValueError as error:
                raise ValueError(f"{shown(path)!r} isn't valid base64: {error}") from None
        case {"$link": str(target), **others} if not others and target:
            try:
                check_length(from_shown(target))
            except (OSError, ValueError) as error:
                raise ValueError(f"the target of the link {shown(path)!r} isn't a path: {error}") from None
            return LinkNode(from_shown(target))
        case {"$dir": True, **others} if not others:
            return FolderNode()
        case {"$size": _}:
            raise ValueError(f'{shown(path)!r} has a size but no content: use a text or {{"$base64": …}}')
    raise ValueError(
        f'the value of {shown(path)!r} must be a text, {{"$base64": …}}, {{"$link": …}} or {{"$dir": true}}'
    )


def _text(node: Node) -> str | None:
    """Return the text of a file. Return None for other nodes, and for a file that isn't UTF-8."""
    try:
        return node.content.decode() if isinstance(node, FileNode) else None
    except UnicodeDecodeError:
        return None


def _difference(old: Node, new: Node) -> str | None:
    """Return the unified diff of two text files, or None if a node isn't a text file."""
    was, now = _text(old), _text(new)
    return None if was is None or now is None else unified_diff(was, now)


def _keys(root: FolderNode) -> dict[str, Node]:
    """Return the nodes that a view shows, by key. A view shows all nodes except folders with content."""
    return {to_shown(path): node for path, node in walk(root) if not (isinstance(node, FolderNode) and node.entries)}


def _entries(nodes: Mapping[str, Node], keys: Iterable[str]) -> dict[str, _ViewEntry]:
    """Return the entries of a view for some keys.

    A file is shown with its content as long as all shown contents fit into `MAX_CONTENT_BYTES`, otherwise with its
    size.
    """
    remaining = MAX_CONTENT_BYTES
    entries = {}
    for key in keys:
        node = nodes[key]
        whole = byte_size(node) <= remaining
        remaining -= byte_size(node) if whole else 0
        entries[key] = _ViewEntry(node, whole)
    return entries
