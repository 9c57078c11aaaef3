"""Detection of threads and thread-pool work that still run after their function has returned.

This work still holds references to objects in the call's environment, and can change them at any time. So these objects
are dropped after the call, and the next call restores them from the snapshot.
"""

import sys
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import thread as pools
from typing import Any
from weakref import WeakSet

SERVER_THREADS = {"calls", "checkpoints", "deadlines", "leases", "testing"}
"""Names of the server's own threads, which are never counted as leftovers. Features add the names of their threads."""


class LoopExecutor(ThreadPoolExecutor):
    """Thread pool that an event loop uses by default, such as for `asyncio.to_thread` in a function.

    Attributes:
        unfinished: The work that is queued or running.
    """

    def __init__(self) -> None:
        super().__init__(thread_name_prefix="functions", initializer=own_thread)
        self.unfinished: set[Future[Any]] = set()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Queue work, and count it in `unfinished` until it ends."""
        future = super().submit(fn, *args, **kwargs)
        self.unfinished.add(future)
        # Callbacks run in the order that they were added, and asyncio adds its own later. So when an `await` of the
        # future returns, this callback has already run.
        future.add_done_callback(self.unfinished.discard)
        return future

    def abandon(self) -> None:
        """Cancel queued work, let running work finish by itself, and record that the current call has left work."""
        self.shutdown(wait=False, cancel_futures=True)
        _abandoned.add(self)
        _call.left_work = True


class _CallLeftovers(threading.local):
    """Whether the call that runs on this thread has left work in a thread pool."""

    left_work = False


_call = _CallLeftovers()
_executor_threads: WeakSet[threading.Thread] = WeakSet()  # threads of thread pools, which count their work themselves
_abandoned: WeakSet[LoopExecutor] = WeakSet()
_left: dict[str, WeakSet[threading.Thread]] = {}  # leftover threads, by the toolpack that has probably started them
_left_lock = threading.Lock()  # held to change `_left`


def own_thread() -> None:
    """Exclude the current thread from the leftovers, because the thread pool that started it counts its own work.

    Thread pools call this as the initializer of each of their threads.
    """
    _executor_threads.add(threading.current_thread())


def suspended() -> bool:
    """Return whether the current call, which is being suspended, has left work so far.

    Because the call might continue on another thread, the caller keeps this value and passes it to `resumed` there.
    """
    return _call.left_work


def resumed(*, left_work: bool) -> None:
    """Restore the result of `suspended` on the thread where the call continues."""
    _call.left_work = left_work


class Watch:
    """Detects whether a call leaves work behind.

    Create it before the call, and call `leaves_work` after it on the same thread.
    """

    __slots__ = ("_before",)

    def __init__(self) -> None:
        _call.left_work = False
        self._before = threading.enumerate()

    def leaves_work(self, toolpacks: Iterable[str]) -> bool:
        """Return whether other threads might still use objects in these toolpacks' environments.

        If so, the caller must not keep these objects for the next call, because the threads could change them.
        Every thread that appeared during the call counts, because Python doesn't tell which call started it. While the
        thread is alive, it also counts for later calls to these toolpacks, because these calls can pass it more work.
        """
        after = threading.enumerate()
        if after != self._before:
            new = set(after).difference(self._before, _executor_threads)
            for thread in new:
                if thread.name not in SERVER_THREADS:
                    with _left_lock:
                        for toolpack in toolpacks:
                            _left.setdefault(toolpack, WeakSet()).add(thread)
        if _call.left_work:
            return True
        return not _left.keys().isdisjoint(toolpacks) and _have_left_threads(toolpacks)


def _have_left_threads(toolpacks: Iterable[str]) -> bool:
    """Return whether leftover threads of these toolpacks are alive. Drop the entries of toolpacks without them."""
    with _left_lock:
        for name in toolpacks:
            if not any(thread.is_alive() for thread in _left.get(name, ())):
                _left.pop(name, None)
        return not _left.keys().isdisjoint(toolpacks)


def leftover_threads() -> int:
    """Return the number of busy leftover threads. The idle threads of a thread pool aren't counted."""
    threads = {thread for left in [*_left.values()] for thread in [*left] if thread.is_alive()}
    busy = sum(len(executor.unfinished) for executor in [*_abandoned])
    if threads:
        frames = sys._current_frames()  # noqa: SLF001 - the documented way to inspect other threads
        for thread in threads:
            frame = frames.get(thread.ident or 0)
            busy += frame is not None and frame.f_code is not pools._worker.__code__  # noqa: SLF001 - idle threads
    return busy
