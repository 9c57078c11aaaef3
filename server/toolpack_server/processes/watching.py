"""Which Python files some folders have, and when they were changed.

Nothing is imported, and a look takes little of the processor.
"""

import os
import time
from collections.abc import Sequence
from pathlib import Path

SHARE = 0.05  # of the time, at most, is spent on looking

Files = dict[str, tuple[int, int, int]]
"""For each path the time of its last change, its size and its inode."""


def python_files(folders: Sequence[Path]) -> Files:
    """Get the Python files in folders and all in them, but hidden ones, caches and virtual environments."""
    found: Files = {}
    for top in folders:
        for folder, inner, names in os.walk(top):
            inner[:] = [name for name in inner if not name.startswith((".", "__pycache__"))]
            if "pyvenv.cfg" in names:
                inner.clear()
                continue
            for name in names:
                if name.endswith(".py"):
                    path = os.path.join(folder, name)  # noqa: PTH118 - many of them, twice a second
                    try:
                        status = os.stat(path)  # noqa: PTH116
                    except OSError:  # deleted meanwhile
                        continue
                    found[path] = status.st_mtime_ns, status.st_size, status.st_ino
    return found


class FileWatch:
    """Notices changes of the Python files in some folders, which may be missing."""

    def __init__(self, folders: Sequence[Path], seconds: float) -> None:
        self._folders = folders
        self._seconds = seconds
        self._seen = self._settled = python_files(folders)
        self._next = time.monotonic() + seconds

    def changed(self) -> list[str]:
        """Get the files that have changed, come or gone, once that has ended; else an empty list."""
        began = time.monotonic()
        if began < self._next:
            return []
        files = python_files(self._folders)
        now = time.monotonic()
        self._next = now + max(self._seconds, (now - began) / SHARE)
        # An editor, or a checkout, writes several files, or one in several steps: wait until nothing changes.
        if files != self._seen:
            self._seen = files
            return []
        changed = sorted({path for path, _ in files.items() ^ self._settled.items()})
        self._settled = files
        return changed
