"""Glob patterns in a tree of files.

On every Python version, the results equal those of `pathlib.Path.glob` in Python 3.13.

`**` matches any number of folders. At the end of a pattern, `**` matches everything below these folders. `**` doesn't
follow links. Broken links don't match.
"""

import errno
import fnmatch
import re
from collections.abc import Callable, Iterator

from toolpack_server.features.volumes.files.files_paths import check_length, failure, node_at
from toolpack_server.features.volumes.files.files_tree import SEPARATOR, FolderNode, Node

# Maximum number of pairs of a path and a step that a match visits; links can create any number of pairs.
MAX_STATES = 500_000

_ANY_DEPTH = "**"
_ALL = "**/"  # replaces `**` at the end of a pattern
_UP = ".."
_MAGIC = re.compile(r"[*?\[]")


def matching(root: FolderNode, pattern: str) -> list[str]:
    """Return the paths that match a pattern, sorted.

    Raises:
        ValueError: The pattern is empty.
        OSError: The pattern is too long, leads out of the tree, or matches too much.
    """
    if not isinstance(pattern, str):
        raise TypeError(f"a pattern must be a str, not {type(pattern).__name__}")
    steps = [step for step in pattern.split(SEPARATOR) if step not in {"", "."}]
    if not steps:
        raise ValueError(f"Unacceptable pattern: {pattern!r}")
    check_length(SEPARATOR.join(steps))
    if pattern.endswith(SEPARATOR):  # the pattern matches only folders
        steps.append("")
    elif steps[-1] == _ANY_DEPTH:
        steps[-1] = _ALL
    return sorted({path or "." for path in _select(root, steps)})


def _select(root: FolderNode, steps: list[str]) -> Iterator[str]:
    """Yield the paths that match.

    Each pair of a path and a step is visited only once, because a path can be reached in many ways.
    """
    matchers = [_matcher(step) for step in steps]
    pending: list[tuple[str, Node, int]] = [("", root, 0)]  # items are a path, its node, and the index of the next step
    visited: set[tuple[str, int]] = set()
    while pending:
        path, node, number = pending.pop()
        if number == len(steps):
            yield path
            continue
        folder = node if isinstance(node, FolderNode) else node_at(root, path)
        if not isinstance(folder, FolderNode):
            continue
        for inner, target, advance in _expand(root, path, folder, steps[number], matchers[number]):
            state = inner, number + advance
            if state not in visited:
                if len(visited) == MAX_STATES:
                    raise failure(
                        errno.E2BIG, SEPARATOR.join(steps), why=f"the pattern matches over {MAX_STATES} paths"
                    )
                visited.add(state)
                pending.append((inner, target, number + advance))


def _matcher(step: str) -> Callable[[str], object] | None:
    """Return the matcher for the names that a step stands for, or None if the step is `**` or a plain name."""
    if step in {_ANY_DEPTH, _ALL} or not _MAGIC.search(step):
        return None
    return re.compile(fnmatch.translate(step.replace(_ANY_DEPTH, "*"))).match


def _expand(
    root: FolderNode, path: str, folder: FolderNode, step: str, matches: Callable[[str], object] | None
) -> Iterator[tuple[str, Node, int]]:
    """Yield each path that a step leads to, its node, and the number of steps to advance.

    `**` leads to inner folders without advancing (0), because the same step can also match folders inside them.
    """
    if step in {"", _ANY_DEPTH, _ALL}:
        yield path, folder, 1
    if step in {_ANY_DEPTH, _ALL}:
        for name, node in folder.entries.items():
            if isinstance(node, FolderNode):
                yield _join(path, name), node, 0
            elif step == _ALL:
                yield _join(path, name), node, 1
    elif matches is not None:
        yield from ((_join(path, name), node, 1) for name, node in folder.entries.items() if matches(name))
    elif step:
        inner = _join(path, step)
        entry = node_at(root, inner, follow=False) if step == _UP else folder.entries.get(step)
        if entry is not None:
            yield inner, entry, 1


def _join(path: str, name: str) -> str:
    return f"{path}{SEPARATOR}{name}" if path else name
