"""Threads and work in executors that a function leaves behind when it returns.

Such work still has the objects of the environment that the call was given, and may change them at any time.
Objects that leftover work can reach are dropped after the call, so the next call thaws them from the snapshot.
"""

import sys
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import thread as pools
from typing import Any
from weakref import WeakSet

SERVER_THREADS = {"calls", "checkpoints", "deadlines", "leases", "testing"}
"""The names of the server's own threads, which no function has left behind; features add theirs."""


class LoopExecutor(ThreadPoolExecutor):
    """The default executor of an event loop on which functions run; `asyncio.to_thread` uses it."""

    def __init__(self) -> None:
        super().__init__(thread_name_prefix="functions", initializer=own_thread)
        self.unfinished: set[Future[Any]] = set()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future = super().submit(fn, *args, **kwargs)
        self.unfinished.add(future)
        # Before any callback of asyncio's: work that was awaited is never counted as unfinished.
        future.add_done_callback(self.unfinished.discard)
        return future

    def abandon(self) -> None:
        """Let the running work end, cancel the rest, and note that the present call has left it behind."""
        self.shutdown(wait=False, cancel_futures=True)
        _abandoned.add(self)
        _call.left_work = True


class _CallLeftovers(threading.local):
    left_work = False


_call = _CallLeftovers()
_executor_threads: WeakSet[threading.Thread] = WeakSet()  # those of a LoopExecutor, which counts its work itself
_abandoned: WeakSet[LoopExecutor] = WeakSet()
_left: dict[str, WeakSet[threading.Thread]] = {}  # by the toolpack whose function has probably started them
_left_lock = threading.Lock()  # held to change `_left`


def own_thread() -> None:
    """Note that no function has left the present thread behind: whoever has started it counts its work."""
    _executor_threads.add(threading.current_thread())


def suspended() -> bool:
    """Get whether the present call has left work behind so far: it is to go on in another thread."""
    return _call.left_work


def resumed(*, left_work: bool) -> None:
    _call.left_work = left_work


class Watch:
    """Finds out whether a call leaves work behind. Made before the call and asked after it, on the call's thread."""

    __slots__ = ("_before",)

    def __init__(self) -> None:
        _call.left_work = False
        self._before = threading.enumerate()

    def leaves_work(self, toolpacks: Iterable[str]) -> bool:
        """Whether other threads may still use objects of these toolpacks' environments.

        A thread that appeared during the call counts, even if another call has started it. As long as it lives it
        counts for later calls of the toolpacks too, because they may give it more work.
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
    """Whether threads live that functions of these toolpacks have left; toolpacks without one are forgotten."""
    with _left_lock:
        for name in toolpacks:
            if not any(thread.is_alive() for thread in _left.get(name, ())):
                _left.pop(name, None)
        return not _left.keys().isdisjoint(toolpacks)


def leftover_threads() -> int:
    """Count the threads that functions have left behind and that are at work; an executor's idle threads aren't."""
    threads = {thread for left in [*_left.values()] for thread in [*left] if thread.is_alive()}
    busy = sum(len(executor.unfinished) for executor in [*_abandoned])
    if threads:
        frames = sys._current_frames()  # noqa: SLF001 - the documented way to see what a thread does
        for thread in threads:
            frame = frames.get(thread.ident or 0)
            busy += frame is not None and frame.f_code is not pools._worker.__code__  # noqa: SLF001 - waits for work
    return busy
