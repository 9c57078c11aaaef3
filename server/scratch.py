"""The scratch folder of a process: where working copies of volumes lie, and which are kept for the next call.

The rule: whatever is here is a cache. A working copy is changed by one call at a time, and while nobody else reads it;
what was changed and isn't committed is never kept. The folder of a process that has ended is removed by the next one
that starts.
"""

import contextlib
import fcntl
import itertools
import logging
import os
import secrets
import shutil
import tempfile
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable
from pathlib import Path

from server.errors import OverloadedError
from server.forked import in_forked, let_go
from server.volumes import WorkingCopy

log = logging.getLogger("toolpack_server")

PREFIX = "toolpack-server-"
_LOCK = "lock"


FULL_TEXT = "The scratch folder is full; nothing was changed. Free some of it, or set TOOLPACK_SCRATCH_DIR."
_FREE_BYTES = 2**16  # with fewer, a folder is full


def is_full(folder: Path) -> bool:
    """Whether there is next to no room where a folder is."""
    state = os.statvfs(folder)
    return state.f_bavail * state.f_frsize < _FREE_BYTES


class _Kept:
    """A working copy in the cache; a shared one stays as it is, as several sessions may need it."""

    __slots__ = ("copy", "readers", "shared", "size", "unwanted")

    def __init__(self, copy: WorkingCopy, *, shared: bool) -> None:
        self.copy = copy
        self.size = copy.size
        self.readers = 0
        self.shared = shared
        self.unwanted = False  # to be discarded when the last reader has ended


class Scratch:
    """Working copies, as many as fit, those used longest ago first to go. From any thread.

    Args:
        folder: Where to make the process's own folder; None: in memory, if there is room, else where temporary files
            are.
        max_bytes: What all working copies may take that are kept.
        own: The process's own folder, if somebody else has made it, and removes it.
    """

    def __init__(self, folder: Path | None, max_bytes: int, *, own: Path | None = None) -> None:
        self._parent = folder
        self._max_bytes = max_bytes
        self._own = own
        self._finalize: weakref.finalize[..., Scratch] | None = None
        self._lock = threading.Lock()
        self._kept: OrderedDict[Hashable, _Kept] = OrderedDict()
        self._read: dict[int, _Kept] = {}  # those that are read now, by the working copy's identity
        self._bytes = 0
        self._numbers = itertools.count()

    @property
    def folder(self) -> Path:
        """The process's own folder, made when it is first needed.

        Raises:
            OverloadedError: It can't be made.
        """
        if self._own is None:
            with self._lock:
                if self._own is None:
                    self._own = self._made()
        return self._own

    def new_path(self) -> Path:
        """Get a path in the folder at which there is nothing yet."""
        return self.folder / self._new_name()

    def share(self, key: Hashable | None, token: Hashable | None, load: Callable[[], WorkingCopy]) -> WorkingCopy:
        """Get a working copy to read, until `release`; it is loaded if it isn't here.

        Args:
            key: What all that equal it have in common; None if that isn't known.
            token: What `put` has returned for it; None if nobody has put it here.

        Raises:
            OverloadedError: There is no room for it.
        """
        with self._lock:
            kept = self._find(key, token)
            if kept is not None:
                kept.shared |= token is None
                kept.readers += 1
                self._read[id(kept.copy)] = kept
                return kept.copy
        return self._share(key, self._making(load))

    def take(self, key: Hashable | None, token: Hashable | None, load: Callable[[], WorkingCopy]) -> WorkingCopy:
        """Get a working copy to change, until `put` or `discard`; arguments and errors are those of `share`.

        One that nobody else needs is given out itself, if the token shows that the session's last call has left it.
        Else it is cloned: of a version that has forks, the next fork will need it, too.
        """
        with self._lock:
            kept = self._kept.get(token)
            if kept is not None and not kept.shared and not kept.readers:
                self._bytes -= self._kept.pop(token).size
                return kept.copy
        shared = self.share(key, token, load)
        try:
            cloned = self._making(shared.clone)
            cloned.shape = shared.shape
            return cloned
        finally:
            self.release(shared)

    def _share(self, key: Hashable | None, loaded: WorkingCopy) -> WorkingCopy:
        """Keep a working copy that was loaded for all who read it, and begin to."""
        name = self._new_name() if key is None else key
        with self._lock:
            kept = self._kept.get(name)
            if kept is None:
                kept = _Kept(loaded, shared=True)
                self._add(name, kept)
            kept.readers += 1
            self._read[id(kept.copy)] = kept
        if kept.copy is not loaded:  # somebody was faster
            loaded.discard()
        self._make_room()
        return kept.copy

    def release(self, copy: WorkingCopy) -> None:
        """End reading a shared working copy."""
        with self._lock:
            kept = self._read[id(copy)]
            kept.readers -= 1
            if not kept.readers:
                del self._read[id(copy)]
            ends = kept.unwanted and not kept.readers
        if ends:
            copy.discard()

    def put(self, key: Hashable | None, copy: WorkingCopy) -> Hashable:
        """Keep a working copy that was taken for the next call, and get a token for it.

        Args:
            key: What all that equal it have in common; None if that isn't known yet.
        """
        with self._lock:
            # One that has the name is shared: this one is kept beside it, or each call of the session would clone anew.
            token: Hashable = self._new_name() if key is None or key in self._kept else key
            self._add(token, _Kept(copy, shared=False))
        self._make_room()
        return token

    def close(self) -> None:
        """Remove the folder, if this process has made it."""
        if self._finalize is not None:
            self._finalize()

    def _new_name(self) -> str:
        """Get a name that nothing else here has; not by chance, which may be pinned."""
        return f"copy-{next(self._numbers)}"

    def _find(self, key: Hashable | None, token: Hashable | None) -> _Kept | None:
        for name in (token, key):
            if name is not None and name in self._kept:
                self._kept.move_to_end(name)
                return self._kept[name]
        return None

    def _add(self, name: Hashable, kept: _Kept) -> None:
        self._kept[name] = kept
        self._bytes += kept.size

    def _make_room(self) -> None:
        """Drop those used longest ago beyond the limit; the last one stays, however large it is."""
        unused: list[WorkingCopy] = []
        with self._lock:
            while self._bytes > self._max_bytes and len(self._kept) > 1:
                _, kept = self._kept.popitem(last=False)
                self._bytes -= kept.size
                kept.unwanted = True
                if not kept.readers:
                    unused.append(kept.copy)
        for copy in unused:
            copy.discard()

    def _making(self, make: Callable[[], WorkingCopy]) -> WorkingCopy:
        try:
            return make()
        except OSError as error:
            raise OverloadedError(
                f"The scratch folder has no room for what the call needs ({error.strerror}); nothing was changed. "
                "Free some, or set TOOLPACK_SCRATCH_DIR."
            ) from error

    def _made(self) -> Path:
        try:
            parent = self._parent or _default_folder(self._max_bytes)
            made = parent / f".{PREFIX}{secrets.token_hex(8)}"
            made.mkdir(mode=0o700)
            # Locked before it has the name by which others look for leftovers.
            lock = os.open(made / _LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
            fcntl.flock(lock, fcntl.LOCK_EX)
            made = made.rename(parent / made.name[1:])
        except OSError as error:
            raise OverloadedError(
                f"The scratch folder can't be made ({error.strerror}: {error.filename}): set TOOLPACK_SCRATCH_DIR."
            ) from error
        self._finalize = weakref.finalize(self, _remove, made, lock, os.getpid())
        self._lock_file = lock
        in_forked(self._let_go)
        return made

    def _let_go(self) -> None:
        """In a process that was forked from this one, don't keep the folder from those who remove leftovers."""
        if self._finalize is not None and self._finalize.alive:
            let_go([self._lock_file])


def _remove(folder: Path, lock: int, process: int) -> None:
    if process == os.getpid():  # not in one that was forked from it
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def remove_leftovers(folder: Path | None) -> None:
    """Remove the folders of processes that have ended without doing so themselves."""
    for parent in {folder} if folder else {_MEMORY, Path(tempfile.gettempdir())}:
        for found in parent.glob(f"{PREFIX}*"):
            with contextlib.suppress(OSError):
                lock = os.open(found / _LOCK, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(found, ignore_errors=True)
                finally:
                    os.close(lock)


_MEMORY = Path("/dev/shm")  # noqa: S108 - a folder of our own is made in it, which nobody else can enter


def _default_folder(wanted_bytes: int) -> Path:
    """Get the folder in memory if it has room, else the one for temporary files."""
    temporary = Path(tempfile.gettempdir())
    try:
        state = os.statvfs(_MEMORY)
    except OSError:
        return temporary
    free = state.f_bavail * state.f_frsize
    if free >= wanted_bytes and os.access(_MEMORY, os.W_OK):
        return _MEMORY
    log.warning(
        "%s has %d bytes free, less than TOOLPACK_SCRATCH_BYTES=%d: databases and files in use lie in %s, which may be "
        "slower.",
        *(_MEMORY, free, wanted_bytes, temporary),
    )
    return temporary
