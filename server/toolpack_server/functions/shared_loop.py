"""An event loop on which the coroutines of many calls wait.

A call meets nothing of another one. It has a context, tasks, timers and an executor of its own; when its
coroutine ends, what it has left is cancelled and awaited before anybody hears of it. Of asyncio only what is documented
is used, but in forked processes. The loop turns while calls wait on it, and at no other time.
"""

import asyncio
import gc
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import Any, NoReturn

from toolpack_server.base.after_fork import run_after_fork
from toolpack_server.base.uninterruptible import InterruptTarget, uninterruptible
from toolpack_server.functions.coroutines import CallLoop, of_call
from toolpack_server.functions.leftovers import LoopExecutor
from toolpack_server.functions.steps import CoroutineResult

IDLE_SECONDS = 10.0  # until the thread of a loop that nobody needs ends


class SharedCall:
    """A coroutine that waits on a shared loop, with all that it has started.

    Attributes:
        settled: What came of it, once that and all that it has started have ended.
        cancelled: It was answered already, and is to end.
        left_work: Work that it gave to threads still runs.
        used_threads: It gave work to threads.
        ended: It and all that it has started have ended; nothing more of it is called.
        kept: For how long its steps have kept the loop from others, in seconds.
        interrupted: How often a step of it was interrupted in vain.
    """

    def __init__(
        self,
        coroutine: Coroutine[Any, Any, Any],
        done: Callable[["SharedCall"], None],
        context: Context | None = None,
    ) -> None:
        self.coroutine = coroutine
        self.done = done
        # In which it runs, and nothing else meanwhile; its caller sees what it sets there, as with any `await`.
        self.context = Context() if context is None else context
        self.settled: CoroutineResult | None = None
        self.left_work = self.used_threads = self.cancelled = self.ended = False
        self.kept, self.interrupted = 0.0, 0
        self.tasks: set[asyncio.Task[Any]] = set()
        self.timers: list[asyncio.TimerHandle] = []
        self.executor: LoopExecutor | None = None

    def cancel(self) -> None:
        """Cancel it and all that it has started; called on the loop."""
        self.cancelled = True
        for task in [*self.tasks]:
            task.cancel()


class CallTask(asyncio.Task[Any]):
    call: SharedCall | None = None


class SharedLoop(CallLoop):
    """Runs coroutines of calls on a thread of its own.

    Args:
        block: Guards what a step may be interrupted in; None if no step is ever interrupted.
    """

    def __init__(self, block: InterruptTarget | None = None) -> None:
        super().__init__()
        self.block = block
        self.set_task_factory(_make_task)
        self._calls: set[SharedCall] = set()
        self._arrived: deque[SharedCall] = deque()
        self._coming = False  # a callback that lets the next of them begin
        self._ending = False
        # Of the thread; unlike the thread's number, it may be asked of one that has ended.
        self._clock: int | None = None
        self._lock = threading.Lock()
        self._wanted = threading.Event()
        self.thread: threading.Thread | None = None
        self._scheduled_steps = 0
        self._seen: tuple[int, int, int, Any] | None = None
        self._looks = 0
        self._used_before = 0.0
        self._kept_since = 0.0
        self.kept = 0.0  # for how long steps have kept it from other calls, in seconds
        run_after_fork(self._end_forked)

    def _end_forked(self) -> None:
        """In a process that a function has forked, run its code until it waits, and nothing of other calls."""
        self.turns.select = _end_process  # type: ignore[assignment, method-assign]
        self._ready.clear()  # type: ignore[attr-defined] # the steps of other calls in the turn in which it forked

    # From any thread

    def begin(self, call: SharedCall) -> None:
        """Let a coroutine wait here; a `RuntimeError` says that the system allows no more threads."""
        self._arrived.append(call)
        if self._coming and self.thread is not None:  # waking the loop is a system call: once for all of a crowd
            return
        self._coming = True
        self.call_soon_threadsafe(self._begin_arrived)
        self._wanted.set()
        with self._lock:
            if self.thread is None:
                # Named like the threads for calls: no function has left it behind.
                thread = threading.Thread(target=self._run, name="calls", daemon=True)
                thread.start()
                self.thread = thread

    def end(self) -> None:
        """Cancel all that waits here; when that has ended, the loop is closed."""
        with self._lock:
            self._ending = True
            if self.thread is None:
                super().close()
                return
            self.call_soon_threadsafe(self._cancel_all)
            self._wanted.set()

    def give_back(self) -> list[SharedCall]:
        """Return the calls that haven't begun; they won't begin here."""
        returned = []
        while self._arrived:
            try:
                returned.append(self._arrived.popleft())
            except IndexError:  # it has just begun
                break
        for call in [call for call in returned if call.cancelled]:
            returned.remove(call)
            self.begin(call)
        return returned

    def keep(self, call: SharedCall | None) -> None:
        """Count the time of the present step, since this was last called in it, as kept from others by its call."""
        now = time.monotonic()
        self.kept += now - self._kept_since
        if call is not None:
            call.kept += now - self._kept_since
        self._kept_since = now

    def look(self) -> tuple[int, float, SharedCall | None]:
        """Get how often in a row the loop was seen in the same step, how long that has computed, and whose it is.

        Called by one thread, again and again.
        """
        thread, turns = self.thread, self.turns
        if thread is None or turns.waits or not self.is_running():
            self._seen = None
            return 0, 0.0, None
        task = asyncio.current_task(self)
        # A crowd's turn may take long; but hardly a step of it ends without scheduling another one. A collection of
        # garbage may happen to fall into a step, and takes long beside many sessions: what was before it doesn't count.
        seen = turns.turn, self._scheduled_steps, gc.get_stats()[-1]["collections"], task
        used = self._used_processor()
        if self._seen is None or seen[:-1] != self._seen[:-1] or seen[-1] is not self._seen[-1]:
            self._seen, self._looks, self._used_before, self._kept_since = seen, 0, used, time.monotonic()
        self._looks += 1
        return self._looks, used - self._used_before, task.call if isinstance(task, CallTask) else None

    def _used_processor(self) -> float:
        if self._clock is None:
            return 0.0
        try:
            return time.clock_gettime(self._clock)
        except OSError:  # the thread has just ended
            return 0.0

    # On its thread

    def _run(self) -> None:
        uninterruptible.block = self.block
        if hasattr(time, "pthread_getcpuclockid"):  # macOS doesn't tell
            self._clock = time.pthread_getcpuclockid(threading.get_ident())
        while True:
            try:
                self.run_forever()
            except BaseException:  # noqa: BLE001, S110 - `SystemExit`, which is the task's result, too
                pass
            else:
                if self._is_over() or not self._wait():
                    return
            self.call_soon(self._stop_if_idle)

    def _is_over(self) -> bool:
        with self._lock:
            if self._ending and not self._calls:
                super().close()
                return True
        return False

    def _cancel_all(self) -> None:
        for call in [*self._calls]:
            call.cancel()
        self._stop_if_idle()

    def _wait(self) -> bool:
        """Wait until somebody needs the loop; get False if nobody does, and the thread is to end."""
        if not self._wanted.wait(IDLE_SECONDS):
            with self._lock:
                if not self._wanted.is_set():
                    self.thread = None
                    return False
        self._wanted.clear()
        return True

    def _stop_if_idle(self) -> None:
        if not self._calls and not self._coming:
            super().stop()

    def _begin_arrived(self) -> None:
        """Begin one call in a turn: those behind one whose first step blocks haven't begun then, and can be moved."""
        try:
            call = self._arrived.popleft()
        except IndexError:
            self._coming = False
            if not self._arrived:  # what arrives from here on wakes the loop
                self._stop_if_idle()
                return
            self._coming = True
        else:
            self._begin(call)
        self.call_soon(self._begin_arrived)

    def _begin(self, call: SharedCall) -> None:
        self._calls.add(call)
        if call.cancelled:
            call.coroutine.close()
            call.settled = CoroutineResult(None, asyncio.CancelledError())
            self._ended(call)
            return
        call.context.run(of_call.set, call)
        main = self.create_task(call.coroutine, context=call.context)
        main.add_done_callback(self._main_ended, context=Context())

    def _main_ended(self, main: "asyncio.Task[Any]") -> None:
        call = main.call  # type: ignore[attr-defined]
        try:
            call.settled = CoroutineResult(main.result(), None)
        except BaseException as error:  # noqa: BLE001 - the call's own
            call.settled = CoroutineResult(None, error)
        self._end_rest(call)

    def _end_rest(self, call: SharedCall) -> None:
        """Cancel what a call has left, and await it; what it was to be called soon is called before."""
        for timer in call.timers:
            timer.cancel()
        call.timers.clear()
        left = [task for task in call.tasks if not task.done()]
        for task in left:
            task.cancel()
        if left:
            left[0].add_done_callback(lambda _: self._end_rest(call), context=Context())
        else:
            self.call_soon(self._end_unless_more, call, context=Context())

    def _end_unless_more(self, call: SharedCall) -> None:
        if call.timers or any(not task.done() for task in call.tasks):
            self._end_rest(call)
        else:
            self._ended(call)

    def _ended(self, call: SharedCall) -> None:
        if call.executor is not None:
            call.left_work = bool(call.executor.unfinished)
            if call.left_work:
                call.executor.abandon()
            else:
                call.executor.shutdown(wait=False)
        call.ended = True
        call.context.run(of_call.set, None)
        self._calls.discard(call)
        self._stop_if_idle()
        call.done(call)

    # What a function can't do, or does for its own call alone

    def call_soon(self, callback: Any, *args: Any, context: Context | None = None) -> asyncio.Handle:  # type: ignore[override]
        self._scheduled_steps += 1
        handle = super().call_soon(callback, *args, context=context)
        call: SharedCall | None = of_call.get() if context is None else context.get(of_call)
        if call is not None and call.ended:  # a callback that schedules itself would keep the loop busy forever
            handle.cancel()
        return handle

    def call_at(self, when: float, callback: Any, *args: Any, context: Context | None = None) -> asyncio.TimerHandle:  # type: ignore[override]
        timer = super().call_at(when, callback, *args, context=context)
        call: SharedCall | None = of_call.get()
        if call is not None:
            timers = call.timers
            if len(timers) >= 32 and not len(timers) & (len(timers) - 1):  # noqa: PLR2004 - now and then
                now = self.time()
                timers[:] = [timer for timer in timers if not timer.cancelled() and timer.when() >= now]
            timers.append(timer)
        return timer

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> Any:  # type: ignore[override]
        call: SharedCall | None = of_call.get()
        if executor is None and call is not None:
            call.used_threads = True
            if call.executor is None:
                call.executor = LoopExecutor()
            executor = call.executor
        return super().run_in_executor(executor, func, *args)


def _end_process(_timeout: float | None = None) -> NoReturn:
    os._exit(0)


def _make_task(loop: asyncio.AbstractEventLoop, coroutine: Any, **given: Any) -> CallTask:
    context = given.get("context")
    call: SharedCall | None = of_call.get() if context is None else context.get(of_call)
    task = CallTask(coroutine, loop=loop, **given)
    asyncio._unregister_task(task)  # noqa: SLF001 - documented, for tasks of third parties: `all_tasks` shows none of it
    if call is not None:
        task.call = call
        call.tasks.add(task)
        task.add_done_callback(call.tasks.discard, context=Context())
    return task
