"""Scratch folder of a process, which caches the working copies of volumes.

A *working copy* is the content of a volume, such as a database, as a file, a folder or an object. A call that changes a
working copy first takes the copy out of the cache, so no other call can use it meanwhile. A copy stays in the cache as
long as a session or a reader holds its `CopyHandle`. The docstring of `volume` lists the states of a working copy.

When a process starts, it removes the scratch folders of processes that have exited.
"""

import contextlib
import fcntl
import itertools
import os
import secrets
import shutil
import tempfile
import threading
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable
from pathlib import Path

from toolpack_server.base.after_fork import detach, run_after_fork
from toolpack_server.base.errors import OverloadedError, SettingsError
from toolpack_server.base.logger import log
from toolpack_server.base.settings import Settings
from toolpack_server.volumes.working_copy import WorkingCopy

PREFIX = "toolpack-server-"
_LOCK = "lock"
# Maximum number of shared copies that the cache itself keeps for the next reader, by holding their handles.
MAX_RECENT = 16

FULL_TEXT = "The scratch folder is full; nothing was changed. Free some space there, or set TOOLPACK_SCRATCH_DIR."
_FREE_BYTES = 2**16  # a folder with fewer free bytes counts as full


def is_full(folder: Path) -> bool:
    """Return whether the file system of a folder has almost no free space."""
    filesystem = os.statvfs(folder)
    return filesystem.f_bavail * filesystem.f_frsize < _FREE_BYTES


def check_folder(settings: Settings) -> None:
    """Check that `TOOLPACK_SCRATCH_DIR` is a writable folder.

    A full folder is accepted, because space can become free later.

    Raises:
        SettingsError: The path isn't a folder, or the server can't write to it.
    """
    folder = settings.scratch_dir
    if folder is not None and not (folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)):
        raise SettingsError(f"TOOLPACK_SCRATCH_DIR: {folder} isn't a folder that the server can write to: create it.")


class _CacheEntry:
    """Cache entry of one working copy.

    Attributes:
        handle: Weak reference to the entry's handle. None if no handle was created yet, or if a call has taken the
            copy.
        readers: Number of callers that are reading the copy.
        shared: Whether several sessions can use the copy. If so, it must not be changed.
        is_dropped: Whether the entry was removed from the cache. Its last reader then discards the copy.
    """

    __slots__ = ("copy", "handle", "is_dropped", "name", "readers", "shared", "size")

    def __init__(self, name: Hashable, copy: WorkingCopy, *, shared: bool) -> None:
        self.name = name
        self.copy = copy
        self.size = copy.size
        self.handle: _HandleRef | None = None
        self.readers = 0
        self.shared = shared
        self.is_dropped = False


class CopyHandle:
    """Handle of a cached working copy. The cache discards the copy when its handle is garbage-collected.

    A full cache can discard the copy earlier.

    Attributes:
        entry: The cache entry.
        source: Handle of the copy from which this copy was cloned, so that the original stays cached for other
            sessions.
    """

    __slots__ = ("__weakref__", "entry", "source")

    def __init__(self, entry: _CacheEntry, source: "CopyHandle | None", unreferenced: "deque[_HandleRef]") -> None:
        self.entry = entry
        self.source = source
        # The callback only appends to a deque, because garbage collection can run it while the thread holds any lock.
        entry.handle = _HandleRef(self, unreferenced.append)
        entry.handle.entry = entry


class _HandleRef(weakref.ref[CopyHandle]):
    """Weak reference to a handle, together with the handle's entry."""

    __slots__ = ("entry",)
    entry: _CacheEntry


class Scratch:
    """LRU cache of working copies; thread-safe.

    Args:
        folder: Parent of the process's own folder. None means /dev/shm if it has enough space, else the system's
            temporary folder.
        max_bytes: Maximum total size of the cached working copies.
        own: The process's own folder, if the caller creates and removes it.
    """

    def __init__(self, folder: Path | None, max_bytes: int, *, own: Path | None = None) -> None:
        self._parent = folder
        self._max_bytes = max_bytes
        self._own = own
        self._finalize: weakref.finalize[..., Scratch] | None = None
        self._lock = threading.Lock()
        self._entries: OrderedDict[Hashable, _CacheEntry] = OrderedDict()
        self._bytes = 0
        self._numbers = itertools.count()
        self._unreferenced: deque[_HandleRef] = deque()  # weak references to handles that were garbage-collected
        self._recent: deque[CopyHandle] = deque(maxlen=MAX_RECENT)

    @classmethod
    def of(cls, settings: Settings) -> "Scratch":
        """Create the scratch folder of a server, and remove the folders of servers that have ended."""
        remove_leftovers(settings.scratch_dir)
        return cls(settings.scratch_dir, settings.scratch_bytes)

    @property
    def folder(self) -> Path:
        """The process's own folder. It is created at first use.

        Raises:
            OverloadedError: The folder can't be created.
        """
        if self._own is None:
            with self._lock:
                if self._own is None:
                    self._own = self._make_folder()
        return self._own

    def new_path(self) -> Path:
        """Return an unused path in the folder."""
        return self.folder / self._new_name()

    def share(self, key: Hashable | None, handle: CopyHandle | None, load: Callable[[], WorkingCopy]) -> CopyHandle:
        """Return the handle of a working copy, which the caller reads until it calls `release`.

        Load the copy if it isn't cached.

        Args:
            key: Cache key of the volume's version. None if the key isn't known, so that only `handle` can find a copy.
            handle: Handle of the session's own copy, if it has one.
            load: Function that creates the working copy.

        Raises:
            OverloadedError: The scratch folder has no space for the copy.
        """
        with self._lock:
            entry = self._find(key, handle)
            if entry is not None:
                entry.shared |= handle is None  # a caller without a handle isn't the session that owns the copy
                return self._acquire(entry)
        return self._add_shared(key, self._make(load))

    def take(
        self, key: Hashable | None, handle: CopyHandle | None, load: Callable[[], WorkingCopy]
    ) -> tuple[WorkingCopy, CopyHandle | None]:
        """Return a working copy that the caller changes until `put` or `discard`, and the handle of the copy's source.

        The session's own copy leaves the cache if no other session shares or reads it. Otherwise the copy is cloned,
        because the next fork of this version will need the original. `share` describes the arguments and errors.
        """
        with self._lock:
            entry = None if handle is None else self._entries.get(handle.entry.name)
            if handle is not None and entry is not None and not entry.shared and not entry.readers:
                del self._entries[entry.name]
                self._bytes -= entry.size
                entry.handle = None  # keep the copy when the old handle is garbage-collected
                return entry.copy, handle.source
        shared = self.share(key, handle, load)
        try:
            clone = self._make(shared.entry.copy.clone)
            clone.pieces = shared.entry.copy.pieces
        finally:
            self.release(shared)
        return clone, shared.source or shared

    def _add_shared(self, key: Hashable | None, loaded: WorkingCopy) -> CopyHandle:
        """Cache a loaded working copy as a shared copy, and return its handle for the first reader."""
        name = self._new_name() if key is None else key
        with self._lock:
            entry = self._entries.get(name)
            if entry is None:
                entry = self._entries[name] = _CacheEntry(name, loaded, shared=True)
                self._bytes += entry.size
            handle = self._acquire(entry)
        if handle.entry.copy is not loaded:  # another thread has loaded the copy first
            loaded.discard()
        self._make_room()
        return handle

    def release(self, handle: CopyHandle, *, keep: bool = True) -> None:
        """End reading a working copy.

        Args:
            keep: Whether to keep the copy for other readers. False if the copy might have been changed.
        """
        entry = handle.entry
        discarded: list[WorkingCopy] = []
        with self._lock:
            entry.readers -= 1
            if not keep and self._entries.get(entry.name) is entry:
                self._drop(entry, discarded)
            elif entry.is_dropped and not entry.readers:
                discarded.append(entry.copy)
        for copy in discarded:
            copy.discard()

    def put(self, key: Hashable | None, copy: WorkingCopy, source: CopyHandle | None) -> CopyHandle:
        """Put a taken working copy back, and return its handle, which the session holds for its next call.

        Args:
            key: Cache key of the volume's version. None if the key isn't known yet.
            source: The handle that `take` returned.
        """
        try:
            with self._lock:
                # If the cache already contains the key, that entry is shared. This copy then gets its own name, because
                # each call of the session would have to clone a shared copy.
                name: Hashable = self._new_name() if key is None or key in self._entries else key
                entry = _CacheEntry(name, copy, shared=False)
                handle = CopyHandle(entry, source, self._unreferenced)
                self._entries[name] = entry
                self._bytes += entry.size
        except BaseException:
            copy.discard()
            raise
        self._make_room()
        return handle

    @property
    def has_unreferenced(self) -> bool:
        """Whether `tidy` has working copies to discard."""
        return bool(self._unreferenced)

    def tidy(self) -> None:
        """Discard the working copies whose handles were garbage-collected."""
        discarded: list[WorkingCopy] = []
        with self._lock:
            while self._unreferenced:
                entry = self._unreferenced.popleft().entry
                # Keep the entry if a reader has found the entry again meanwhile, or if a call has taken its copy.
                if self._entries.get(entry.name) is entry and (entry.handle is None or entry.handle() is None):
                    self._drop(entry, discarded)
        for copy in discarded:
            copy.discard()

    def close(self) -> None:
        """Remove the folder, if this process created it."""
        if self._finalize is not None:
            self._finalize()

    def _new_name(self) -> str:
        """Return an unused name. The name isn't random, because the random generators of a call can be pinned."""
        return f"copy-{next(self._numbers)}"

    def _find(self, key: Hashable | None, handle: CopyHandle | None) -> _CacheEntry | None:
        """Return the entry of a handle, or else the entry with a key. The caller must hold the lock."""
        for name in (handle and handle.entry.name, key):
            if name is not None and name in self._entries:
                self._entries.move_to_end(name)
                return self._entries[name]
        return None

    def _acquire(self, entry: _CacheEntry) -> CopyHandle:
        """Add a reader to an entry, and return the entry's handle. The reader calls `release` when it has finished.

        The caller of this method must hold the lock. If the entry is shared, `_recent` keeps the handle, so that the
        copy stays cached for the next reader.
        """
        handle = (entry.handle and entry.handle()) or CopyHandle(entry, None, self._unreferenced)
        entry.readers += 1
        if entry.shared:
            self._recent.append(handle)
        return handle

    def _drop(self, entry: _CacheEntry, discarded: list[WorkingCopy]) -> None:
        """Remove an entry from the cache. If no reader uses its copy, add the copy to `discarded`.

        The caller must hold the lock. After the caller has released the lock, it discards these copies.
        """
        del self._entries[entry.name]
        self._bytes -= entry.size
        entry.is_dropped = True
        if not entry.readers:
            discarded.append(entry.copy)

    def _make_room(self) -> None:
        """Discard copies without a handle, and then the least recently used copies, until the cache fits its limit.

        The last copy always stays, even if it exceeds the limit.
        """
        if self._unreferenced:
            self.tidy()
        discarded: list[WorkingCopy] = []
        with self._lock:
            while self._bytes > self._max_bytes and len(self._entries) > 1:
                self._drop(next(iter(self._entries.values())), discarded)
        for copy in discarded:
            copy.discard()

    def _make(self, make: Callable[[], WorkingCopy]) -> WorkingCopy:
        """Return the working copy that `make` creates. Raise `OverloadedError` if the disk is full."""
        try:
            return make()
        except OSError as error:
            raise OverloadedError(
                f"The scratch folder has no space for the data of the call ({error.strerror}); nothing was changed. "
                "Free some space there, or set TOOLPACK_SCRATCH_DIR."
            ) from error

    def _make_folder(self) -> Path:
        """Create the process's own folder.

        A locked file in the folder shows other processes that this process still runs.
        """
        try:
            parent = self._parent or _default_folder(self._max_bytes)
            folder = parent / f".{PREFIX}{secrets.token_hex(8)}"
            folder.mkdir(mode=0o700)
            # Lock the folder before renaming it, because `remove_leftovers` of other processes finds it by its final
            # name.
            lock = os.open(folder / _LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
            fcntl.flock(lock, fcntl.LOCK_EX)
            folder = folder.rename(parent / folder.name[1:])
        except OSError as error:
            raise OverloadedError(
                f"The scratch folder can't be created ({error.strerror}: {error.filename}): set TOOLPACK_SCRATCH_DIR."
            ) from error
        self._finalize = weakref.finalize(self, _remove, folder, lock, os.getpid())
        self._lock_file = lock
        run_after_fork(self._detach_lock)
        return folder

    def _detach_lock(self) -> None:
        """Close the lock file in a forked process, so that the lock becomes free when the folder's owner exits."""
        if self._finalize is not None and self._finalize.alive:
            detach([self._lock_file])


def _remove(folder: Path, lock: int, process: int) -> None:
    """Remove the folder of a process, and close its lock file."""
    if process == os.getpid():  # a forked process also runs this finalizer, but must not remove the folder
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def remove_leftovers(folder: Path | None) -> None:
    """Remove the folders of processes that have exited without removing them."""
    for parent in {folder} if folder else {_MEMORY, Path(tempfile.gettempdir())}:
        for leftover in parent.glob(f"{PREFIX}*"):
            with contextlib.suppress(OSError):
                lock = os.open(leftover / _LOCK, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # raises an error if the process still runs
                    shutil.rmtree(leftover, ignore_errors=True)
                finally:
                    os.close(lock)


_MEMORY = Path("/dev/shm")  # noqa: S108 - the server creates a folder with mode 0700 inside this folder


def _default_folder(max_bytes: int) -> Path:
    """Return /dev/shm if it has `max_bytes` of free space, else the system's temporary folder."""
    temporary = Path(tempfile.gettempdir())
    try:
        filesystem = os.statvfs(_MEMORY)
    except OSError:
        return temporary
    free = filesystem.f_bavail * filesystem.f_frsize
    if free >= max_bytes and os.access(_MEMORY, os.W_OK):
        return _MEMORY
    log.warning(
        "%s has %d bytes free, less than %d. Working copies of databases and files are in %s, which may be slower.",
        *(_MEMORY, free, max_bytes, temporary),
    )
    return temporary
