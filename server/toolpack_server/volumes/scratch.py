"""The scratch folder of a process: where working copies of volumes lie, and which are kept for the next call.

Whatever is here is a cache, and belongs to whoever has its `Place`. A working copy is changed by one call at
a time, while it isn't here; what comes back is proven (`volumes` has the table). The folder of a process that has ended
is removed by the next one that starts.
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
LENT = 16  # of those that are shared, how many stay when nobody has their place, for who looks again

FULL_TEXT = "The scratch folder is full; nothing was changed. Free some of it, or set TOOLPACK_SCRATCH_DIR."
_FREE_BYTES = 2**16  # with fewer, a folder is full


def is_full(folder: Path) -> bool:
    """Whether there is next to no room where a folder is."""
    state = os.statvfs(folder)
    return state.f_bavail * state.f_frsize < _FREE_BYTES


def check_folder(settings: Settings) -> None:
    """Refuse, with a `SettingsError`, a folder for working copies that isn't one; a full one may be empty again."""
    folder = settings.scratch_dir
    if folder is not None and not (folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)):
        raise SettingsError(f"TOOLPACK_SCRATCH_DIR: {folder} is not a folder in which the server can write: make it.")


class _Kept:
    """A working copy in the cache; a shared one stays as it is, as several sessions may need it."""

    __slots__ = ("copy", "name", "place", "readers", "shared", "size", "unwanted")

    def __init__(self, name: Hashable, copy: WorkingCopy, *, shared: bool) -> None:
        self.name = name
        self.copy = copy
        self.size = copy.size
        self.place: _PlaceRef | None = None  # its place, as long as somebody has it
        self.readers = 0
        self.shared = shared
        self.unwanted = False  # to be discarded when the last reader has ended


class Place:
    """Where a working copy is kept. Whoever has this has the copy: when nobody has it any more, the copy goes.

    Attributes:
        kept: What `Scratch` knows of it.
        origin: The place of the one that it was cloned from: as long as this is kept, other sessions may need that.
    """

    __slots__ = ("__weakref__", "kept", "origin")

    def __init__(self, kept: _Kept, origin: "Place | None", left: "deque[_PlaceRef]") -> None:
        self.kept = kept
        self.origin = origin
        # Its end only notes that: it may come anywhere, under any lock.
        kept.place = _PlaceRef(self, left.append)
        kept.place.kept = kept


class _PlaceRef(weakref.ref[Place]):
    """Knows a place, and what was kept there when it is gone."""

    __slots__ = ("kept",)
    kept: _Kept


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
        self._bytes = 0
        self._numbers = itertools.count()
        self._left: deque[_PlaceRef] = deque()  # places that nobody has any more
        self._lent: deque[Place] = deque(maxlen=LENT)

    @classmethod
    def of(cls, settings: Settings) -> "Scratch":
        """Make that of a server with these settings; what ended servers have left is removed."""
        remove_leftovers(settings.scratch_dir)
        return cls(settings.scratch_dir, settings.scratch_bytes)

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

    def share(self, key: Hashable | None, place: Place | None, load: Callable[[], WorkingCopy]) -> Place:
        """Get a working copy to read, until `release`; it is loaded if it isn't here.

        Args:
            key: What all that equal it have in common; None if that isn't known.
            place: Where the session has left its own; None if it has none.

        Raises:
            OverloadedError: There is no room for it.
        """
        with self._lock:
            kept = self._find(key, place)
            if kept is not None:
                kept.shared |= place is None
                return self._lend(kept)
        return self._share(key, self._making(load))

    def take(
        self, key: Hashable | None, place: Place | None, load: Callable[[], WorkingCopy]
    ) -> tuple[WorkingCopy, Place | None]:
        """Get a working copy to change, until `put` or `discard`, and the place of the one that it is a clone of.

        Arguments and errors are those of `share`. One that nobody else needs is given out itself, if it is where the
        session's last call has left it. Else it is cloned: of a version that has forks, the next one will need it, too.
        """
        with self._lock:
            kept = None if place is None else self._kept.get(place.kept.name)
            if place is not None and kept is not None and not kept.shared and not kept.readers:
                del self._kept[kept.name]
                self._bytes -= kept.size
                kept.place = None  # it is left to nobody
                return kept.copy, place.origin
        shared = self.share(key, place, load)
        try:
            cloned = self._making(shared.kept.copy.clone)
            cloned.shape = shared.kept.copy.shape
        finally:
            self.release(shared)
        return cloned, shared.origin or shared

    def _share(self, key: Hashable | None, loaded: WorkingCopy) -> Place:
        """Keep a working copy that was loaded for all who read it, and begin to."""
        name = self._new_name() if key is None else key
        with self._lock:
            kept = self._kept.get(name)
            if kept is None:
                kept = self._kept[name] = _Kept(name, loaded, shared=True)
                self._bytes += kept.size
            place = self._lend(kept)
        if place.kept.copy is not loaded:  # somebody was faster
            loaded.discard()
        self._make_room()
        return place

    def release(self, place: Place, *, keep: bool = True) -> None:
        """End reading a working copy; it is kept for others, unless it isn't what it was."""
        kept = place.kept
        unused: list[WorkingCopy] = []
        with self._lock:
            kept.readers -= 1
            if not keep and self._kept.get(kept.name) is kept:
                self._drop(kept, unused)
            elif kept.unwanted and not kept.readers:
                unused.append(kept.copy)
        for copy in unused:
            copy.discard()

    def put(self, key: Hashable | None, copy: WorkingCopy, origin: Place | None) -> Place:
        """Keep a working copy that was taken, as long as somebody has its place: the session, for its next call.

        Args:
            key: What all that equal it have in common; None if that isn't known yet.
            origin: What `take` has returned.
        """
        try:
            with self._lock:
                # One that has the name is shared: this one is kept beside it, or each call of the session would clone
                # anew.
                name: Hashable = self._new_name() if key is None or key in self._kept else key
                kept = _Kept(name, copy, shared=False)
                place = Place(kept, origin, self._left)
                self._kept[name] = kept
                self._bytes += kept.size
        except BaseException:
            copy.discard()
            raise
        self._make_room()
        return place

    @property
    def has_left(self) -> bool:
        """Whether there are working copies whose place nobody has any more."""
        return bool(self._left)

    def tidy(self) -> None:
        """Discard the working copies whose place nobody has any more."""
        unused: list[WorkingCopy] = []
        with self._lock:
            while self._left:
                kept = self._left.popleft().kept
                # Somebody may have found it again, or have taken it to change it.
                if self._kept.get(kept.name) is kept and (kept.place is None or kept.place() is None):
                    self._drop(kept, unused)
        for copy in unused:
            copy.discard()

    def close(self) -> None:
        """Remove the folder, if this process has made it."""
        if self._finalize is not None:
            self._finalize()

    def _new_name(self) -> str:
        """Get a name that nothing else here has; not by chance, which may be pinned."""
        return f"copy-{next(self._numbers)}"

    def _find(self, key: Hashable | None, place: Place | None) -> _Kept | None:
        for name in (place and place.kept.name, key):
            if name is not None and name in self._kept:
                self._kept.move_to_end(name)
                return self._kept[name]
        return None

    def _lend(self, kept: _Kept) -> Place:
        """Begin to read; without the lock, `release` ends that. Those lent last stay for who looks again."""
        place = (kept.place and kept.place()) or Place(kept, None, self._left)
        kept.readers += 1
        if kept.shared:
            self._lent.append(place)
        return place

    def _drop(self, kept: _Kept, unused: list[WorkingCopy]) -> None:
        """Keep it no longer; it is discarded once nobody reads it."""
        del self._kept[kept.name]
        self._bytes -= kept.size
        kept.unwanted = True
        if not kept.readers:
            unused.append(kept.copy)

    def _make_room(self) -> None:
        """Drop what nobody has, and those used longest ago beyond the limit; the last stays, however large it is."""
        if self._left:
            self.tidy()
        unused: list[WorkingCopy] = []
        with self._lock:
            while self._bytes > self._max_bytes and len(self._kept) > 1:
                self._drop(next(iter(self._kept.values())), unused)
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
        run_after_fork(self._let_go)
        return made

    def _let_go(self) -> None:
        """In a process that was forked from this one, don't keep the folder from those who remove leftovers."""
        if self._finalize is not None and self._finalize.alive:
            detach([self._lock_file])


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
        "%s has %d bytes free, less than %d: databases and files in use lie in %s, which may be slower.",
        *(_MEMORY, free, wanted_bytes, temporary),
    )
    return temporary
