"""Which paths of a tree fit a pattern: as `pathlib.Path.glob` of Python 3.13 says, on every version.

`**` stands for any number of folders, and at the end of a pattern for all that is in them; it doesn't go
through links. What can't be reached fits nothing.
"""

import errno
import fnmatch
import re
from collections.abc import Callable, Iterator

from toolpack_server.features.volumes.files.files_paths import check_length, failure, reached
from toolpack_server.features.volumes.files.files_tree import SEPARATOR, FolderNode, Node

MOST = 500_000  # places to which a pattern leads: through links there may be any number

_ANY_DEPTH = "**"
_ALL = "**/"  # stands for that at the end of a pattern
_UP = ".."
_MAGIC = re.compile(r"[*?\[]")


def matching(root: FolderNode, pattern: str) -> list[str]:
    """Get the paths that fit, sorted.

    Raises:
        ValueError: The pattern is empty.
        OSError: It is too long, leads out of the tree, or to too many places.
    """
    if not isinstance(pattern, str):
        raise TypeError(f"a pattern is a str, not {type(pattern).__name__}")
    steps = [step for step in pattern.split(SEPARATOR) if step not in {"", "."}]
    if not steps:
        raise ValueError(f"Unacceptable pattern: {pattern!r}")
    check_length(SEPARATOR.join(steps))
    if pattern.endswith(SEPARATOR):  # only folders
        steps.append("")
    elif steps[-1] == _ANY_DEPTH:
        steps[-1] = _ALL
    return sorted({path or "." for path in _select(root, steps)})


def _select(root: FolderNode, steps: list[str]) -> Iterator[str]:
    """Get the paths that fit.

    Each path meets each step once, so the time grows with the number of paths and of steps, whatever the pattern.
    """
    fits = [_fitting(step) for step in steps]
    pending: list[tuple[str, Node, int]] = [("", root, 0)]  # paths, what is at each, and the step that comes next
    met: set[tuple[str, int]] = set()
    while pending:
        path, node, number = pending.pop()
        if number == len(steps):
            yield path
            continue
        folder = node if isinstance(node, FolderNode) else reached(root, path)
        if not isinstance(folder, FolderNode):
            continue
        for inner, found, more in _further(root, path, folder, steps[number], fits[number]):
            place = inner, number + more
            if place not in met:
                if len(met) == MOST:
                    raise failure(errno.E2BIG, SEPARATOR.join(steps), why=f"the pattern leads to over {MOST} places")
                met.add(place)
                pending.append((inner, found, number + more))


def _fitting(step: str) -> Callable[[str], object] | None:
    """Get what says whether a name fits a step; None for a step that isn't about names, or is one."""
    if step in {_ANY_DEPTH, _ALL} or not _MAGIC.search(step):
        return None
    return re.compile(fnmatch.translate(step.replace(_ANY_DEPTH, "*"))).match


def _further(
    root: FolderNode, path: str, folder: FolderNode, step: str, fits: Callable[[str], object] | None
) -> Iterator[tuple[str, Node, int]]:
    """Get where a step leads from a folder: a path, what is there, and whether the next step follows (1) or it (0)."""
    if step in {"", _ANY_DEPTH, _ALL}:
        yield path, folder, 1
    if step in {_ANY_DEPTH, _ALL}:
        for name, found in folder.entries.items():
            if isinstance(found, FolderNode):
                yield _joined(path, name), found, 0
            elif step == _ALL:
                yield _joined(path, name), found, 1
    elif fits is not None:
        yield from ((_joined(path, name), found, 1) for name, found in folder.entries.items() if fits(name))
    elif step:
        inner = _joined(path, step)
        there = reached(root, inner, follow=False) if step == _UP else folder.entries.get(step)
        if there is not None:
            yield inner, there, 1


def _joined(path: str, name: str) -> str:
    return f"{path}{SEPARATOR}{name}" if path else name
