"""Process that reports changed Python files in folders, for `serve --reload`.

The library `watchfiles` starts native threads. The parent of this process forks, which is safe only without threads. So
the library runs in its own process, which imports no toolpack.
"""

import json
import logging
import os
import time
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from multiprocessing.connection import Connection
from pathlib import Path

from toolpack_server.base.errors import SettingsError, StartError
from toolpack_server.processes.child import Child, set_up_child

SETTLE_MS = 100  # time without a further change before a report, because editors and checkouts write several files
CHECK_MS = 250  # time between two checks that the parent is still running and that no folder was replaced

Files = dict[str, tuple[int, int, int]]
"""The time of the last change, the size and the inode of each file, by path."""


class FileWatch(Child):
    """Watches the Python files in folders, which needn't exist. The watch is active when the constructor returns.

    Raises:
        SettingsError: `watchfiles` isn't installed.
        StartError: The files can't be watched.
    """

    def __init__(self, folders: Sequence[Path]) -> None:
        if find_spec("watchfiles") is None:
            raise SettingsError("--reload needs watchfiles: pip install 'toolpack-server[reload]'.")
        parent = os.getpid()
        super().__init__(lambda pipe: _report(folders, pipe, parent))
        self._receive()

    def changed(self) -> list[str]:
        """Return the sorted paths of the files that were changed, added or removed since the last call."""
        return self._receive() if self.pipe.poll() else []

    def _receive(self) -> list[str]:
        """Wait for the next report and return its files. Raise a `StartError` if the files can't be watched."""
        try:
            message = json.loads(self.pipe.recv_bytes())
        except (EOFError, OSError):
            message = "the process that watches them has ended"
        if isinstance(message, str):
            raise StartError(f"--reload can't watch the files: {message}.")
        return list(message)


def python_files(folders: Sequence[Path]) -> Files:
    """Return the Python files in and below folders, without hidden files, caches and virtual environments."""
    files: Files = {}
    for top in folders:
        for folder, inner, names in os.walk(top):
            inner[:] = [name for name in inner if not name.startswith((".", "__pycache__"))]
            if "pyvenv.cfg" in names:
                inner.clear()
                continue
            for name in names:
                if name.endswith(".py"):
                    path = os.path.join(folder, name)  # noqa: PTH118 - a checkout has many of them
                    try:
                        status = os.stat(path)  # noqa: PTH116
                    except OSError:  # deleted meanwhile
                        continue
                    files[path] = status.st_mtime_ns, status.st_size, status.st_ino
    return files


def _report(folders: Sequence[Path], pipe: Connection, parent: int) -> int:
    """Send the paths of changed files until the parent exits. The first message, an empty list, reports the start."""
    set_up_child(parent, own_group=True)
    logging.getLogger("watchfiles").setLevel(logging.WARNING)  # by default, it logs the number of changes
    before: Files | None = None
    try:
        for may_differ in _checks(folders):
            if os.getppid() != parent:
                break
            if not may_differ:
                continue
            # Compare the files themselves, because the library also reports changes of other files and folders.
            files = python_files(folders)
            changed = set() if before is None else {path for path, _ in files.items() ^ before.items()}
            if changed or before is None:
                pipe.send_bytes(json.dumps(sorted(changed)).encode())
            before = files
    except OSError as error:  # such as more folders than the system can watch
        pipe.send_bytes(json.dumps(str(error)).encode())
        return 1
    return 0


def _checks(folders: Sequence[Path]) -> Iterator[bool]:
    """Yield whether files might have changed since the last value. Yield at each change, and four times a second.

    A watch of a folder stops working when the folder is removed or replaced. So a new watch starts when a folder was
    replaced, removed or added. A change between two watches goes unnoticed, so the first value of each watch is True.
    """
    import watchfiles  # noqa: PLC0415 - it starts threads, which are allowed only in this process

    while True:
        may_differ = True
        try:
            present = _inodes(folders)
            for changes in watchfiles.watch(
                *present,
                watch_filter=lambda _, path: os.path.splitext(path)[1] in {"", ".py"},  # noqa: PTH122 - many of them
                step=SETTLE_MS,
                rust_timeout=CHECK_MS,
                yield_on_timeout=True,
                ignore_permission_denied=True,
            ):
                yield may_differ or bool(changes)
                may_differ = False
                gone = {Path(path) for kind, path in changes if kind == watchfiles.Change.deleted}
                if gone & present.keys() or _inodes(folders) != present:
                    break
        except FileNotFoundError:  # a folder was deleted meanwhile
            yield False
            time.sleep(CHECK_MS / 1000)


def _inodes(folders: Sequence[Path]) -> dict[Path, int]:
    """Return the inode of each folder that exists."""
    return {path: path.stat().st_ino for path in (folder.resolve() for folder in folders) if path.is_dir()}
