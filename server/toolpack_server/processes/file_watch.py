"""A process that reports which Python files in some folders have changed.

It runs the native threads of the library `watchfiles`, because its parent forks, which is safe only without threads. It
imports no toolpack.
"""

import json
import logging
import os
import signal
import time
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from multiprocessing.connection import Connection
from pathlib import Path

from toolpack_server.base.errors import SettingsError, StartError
from toolpack_server.processes.child import Child, follow, handle_stop

SETTLE_MS = 100  # without a change: an editor, or a checkout, writes several files
CHECK_MS = 250  # between two checks whether the parent still runs, and whether a folder was replaced

Files = dict[str, tuple[int, int, int]]
"""For each path the time of its last change, its size and its inode."""


class FileWatch(Child):
    """Watches the Python files in some folders, which may be missing, once it is constructed.

    Raises:
        StartError: The files can't be watched.
    """

    def __init__(self, folders: Sequence[Path]) -> None:
        if find_spec("watchfiles") is None:
            raise SettingsError("--reload needs watchfiles: pip install 'toolpack-server[reload]'.")
        parent = os.getpid()
        super().__init__(lambda pipe: _report(folders, pipe, parent))
        self._receive()

    def changed(self) -> list[str]:
        """Return the files that were changed, added or removed, sorted; an empty list if there are none."""
        return self._receive() if self.pipe.poll() else []

    def _receive(self) -> list[str]:
        try:
            message = json.loads(self.pipe.recv_bytes())
        except (EOFError, OSError):
            message = "the process that does it has ended"
        if isinstance(message, str):
            raise StartError(f"--reload can't watch the files: {message}.")
        return list(message)


def python_files(folders: Sequence[Path]) -> Files:
    """Return the Python files in folders and all in them, but hidden ones, caches and virtual environments."""
    found: Files = {}
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
                    found[path] = status.st_mtime_ns, status.st_size, status.st_ino
    return found


def _report(folders: Sequence[Path], pipe: Connection, parent: int) -> int:
    """Send the files of each change until the parent ends; the first message, an empty list, says that it watches."""
    os.setpgid(0, 0)  # Ctrl-C reaches the parent only, which decides
    handle_stop(signal.SIG_DFL)
    follow(parent)
    logging.getLogger("watchfiles").setLevel(logging.WARNING)  # it would log the number of changes
    known: Files | None = None
    try:
        for look in _looks(folders):
            if os.getppid() != parent:
                break
            if not look:
                continue
            files = python_files(folders)
            changed = set() if known is None else {path for path, _ in files.items() ^ known.items()}
            if changed or known is None:
                pipe.send_bytes(json.dumps(sorted(changed)).encode())
            known = files
    except OSError as error:  # such as more folders than the system can watch
        pipe.send_bytes(json.dumps(str(error)).encode())
        return 1
    return 0


def _looks(folders: Sequence[Path]) -> Iterator[bool]:
    """Yield four times a second, and at each change, whether files may have changed since the last time.

    A watch ends with its folder, so there is a new one when a folder was replaced, has gone or has come.
    """
    import watchfiles  # noqa: PLC0415 - it has threads, and only this process may

    while True:
        look = True
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
                yield look or bool(changes)
                look = False
                gone = {Path(path) for kind, path in changes if kind == watchfiles.Change.deleted}
                if gone & present.keys() or _inodes(folders) != present:
                    break
        except FileNotFoundError:  # deleted meanwhile
            yield False
            time.sleep(CHECK_MS / 1000)


def _inodes(folders: Sequence[Path]) -> dict[Path, int]:
    """Return the inode of each folder that exists."""
    return {path: path.stat().st_ino for path in (folder.resolve() for folder in folders) if path.is_dir()}
