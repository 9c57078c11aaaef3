"""Event loop shared by the coroutines of many calls, so that a call needs no thread while it awaits.

Calls are isolated from each other, because each call has its own context, tasks, timers and thread pool. When a call's
coroutine finishes, its remaining tasks are cancelled and awaited before the call is reported as done.

The loop runs only while it has calls. It uses only documented parts of asyncio, except in a process forked by a
function.
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
from toolpack_server.functions.coroutines import CallLoop, current_call
from toolpack_server.functions.leftovers import LoopExecutor
from toolpack_server.functions.steps import CoroutineResult

IDLE_SECONDS = 10.0  # time without calls after which a loop's thread exits


class SharedCall:
    """A call's coroutine on a shared loop, with the tasks, timers and threads that it has started.

    Args:
        done: Callback that the loop's thread calls when the call has ended.
        context: The `contextvars` context of the coroutine. No other code may run in this context meanwhile.

    Attributes:
        result: The result or exception of the coroutine; None while it runs.
        cancelled: The call's caller already has an answer, such as a timeout, so the coroutine must end.
        left_work: Work that the coroutine passed to threads is still running.
        used_threads: The coroutine passed work to threads.
        ended: The coroutine, its tasks and its timers have ended. The loop runs no further callbacks of the call.
        blocked_seconds: Seconds during which the call's steps blocked the loop for other calls.
        interrupted: Number of interrupts that failed to stop a step of the call.
    """

    def __init__(
        self,
        coroutine: Coroutine[Any, Any, Any],
        done: Callable[["SharedCall"], None],
        context: Context | None = None,
    ) -> None:
        self.coroutine = coroutine
        self.done = done
        # A caller that passes a context sees the variables that the coroutine sets, as with any `await`.
        self.context = Context() if context is None else context
        self.result: CoroutineResult | None = None
        self.left_work = self.used_threads = self.cancelled = self.ended = False
        self.blocked_seconds, self.interrupted = 0.0, 0
        self.tasks: set[asyncio.Task[Any]] = set()
        self.timers: list[asyncio.TimerHandle] = []
        self.executor: LoopExecutor | None = None

    def cancel(self) -> None:
        """Cancel the coroutine and all tasks that it has started. Must be called on the loop."""
        self.cancelled = True
        for task in [*self.tasks]:
            task.cancel()


class CallTask(asyncio.Task[Any]):
    """A task on a shared loop that knows its call. None: the task belongs to no call."""

    call: SharedCall | None = None


class SharedLoop(CallLoop):
    """Runs coroutines of calls on its own thread.

    Args:
        block: Protects code in a step that must not be interrupted. None: steps are never interrupted.
    """

    def __init__(self, block: InterruptTarget | None = None) -> None:
        super().__init__()
        self.block = block
        self.set_task_factory(_make_task)
        self._calls: set[SharedCall] = set()
        self._arrived: deque[SharedCall] = deque()
        self._begin_scheduled = False  # `_begin_arrived` is scheduled
        self._ending = False
        # The thread's CPU clock. Unlike the thread's ident, it can safely be used after the thread has exited.
        self._clock: int | None = None
        self._lock = threading.Lock()
        self._work_arrived = threading.Event()
        self.thread: threading.Thread | None = None
        self._scheduled_steps = 0
        self._seen: tuple[int, int, int, Any] | None = None  # the step that `look` saw last; None: no step was running
        self._looks = 0  # number of calls of `look` in a row that saw this step
        self._used_before = 0.0  # the thread's CPU seconds when `look` saw this step for the first time
        self._blocked_since = 0.0  # start of the step's time that isn't included in `blocked_seconds` yet
        self.blocked_seconds = 0.0  # seconds during which single steps blocked the loop for other calls
        run_after_fork(self._end_forked)

    def _end_forked(self) -> None:
        """Drop the code of other calls in a process forked by a function, and exit when the loop would wait."""
        self.turns.select = _end_process  # type: ignore[assignment, method-assign]
        self._ready.clear()  # type: ignore[attr-defined] # steps of other calls in the same iteration

    # From any thread

    def begin(self, call: SharedCall) -> None:
        """Start a call on this loop. Raise a `RuntimeError` if the system allows no more threads."""
        self._arrived.append(call)
        # Waking the loop needs a system call, so wake it only once for many calls.
        if self._begin_scheduled and self.thread is not None:
            return
        self._begin_scheduled = True
        self.call_soon_threadsafe(self._begin_arrived)
        self._work_arrived.set()
        with self._lock:
            if self.thread is None:
                # The name excludes it from the leftovers: see `SERVER_THREADS`.
                thread = threading.Thread(target=self._run, name="calls", daemon=True)
                thread.start()
                self.thread = thread

    def end(self) -> None:
        """Cancel all calls. When they have ended, the loop closes itself."""
        with self._lock:
            self._ending = True
            if self.thread is None:
                super().close()
                return
            self.call_soon_threadsafe(self._cancel_all)
            self._work_arrived.set()

    def give_back(self) -> list[SharedCall]:
        """Remove and return the calls that haven't begun, so that the caller can run them elsewhere.

        The caller uses this when a step of another call blocks the loop. Cancelled calls aren't returned, because they
        end on this loop.
        """
        returned = []
        while self._arrived:
            try:
                returned.append(self._arrived.popleft())
            except IndexError:  # the loop has just begun the last of these calls
                break
        for call in [call for call in returned if call.cancelled]:
            returned.remove(call)
            self.begin(call)
        return returned

    def add_blocked_time(self, call: SharedCall | None) -> None:
        """Add the current step's time since the step's start, or since the last call of this method, to blocked times.

        The thread that calls `look` calls this when it finds that a step blocks the loop.

        Args:
            call: The call whose step runs, which gets the same time added. None: the step belongs to no call.
        """
        now = time.monotonic()
        self.blocked_seconds += now - self._blocked_since
        if call is not None:
            call.blocked_seconds += now - self._blocked_since
        self._blocked_since = now

    def look(self) -> tuple[int, float, SharedCall | None]:
        """Return how often in a row this method saw the loop in the same step, the step's CPU seconds, and its call.

        One thread calls this method at regular intervals to find steps that block the loop. The values are 0, 0.0 and
        None while no step is running.
        """
        thread, turns = self.thread, self.turns
        if thread is None or turns.waits or not self.is_running():
            self._seen = None
            return 0, 0.0, None
        task = asyncio.current_task(self)
        # Identify the step. One iteration of the loop can run steps of many calls. But nearly every step schedules
        # another step, so the number of scheduled steps distinguishes them. With many sessions, a garbage collection
        # takes long, and it isn't the fault of the step during which it runs. So it restarts the measurement.
        seen = turns.turn, self._scheduled_steps, gc.get_stats()[-1]["collections"], task
        used = self._cpu_seconds()
        if self._seen is None or seen[:-1] != self._seen[:-1] or seen[-1] is not self._seen[-1]:
            self._seen, self._looks, self._used_before, self._blocked_since = seen, 0, used, time.monotonic()
        self._looks += 1
        return self._looks, used - self._used_before, task.call if isinstance(task, CallTask) else None

    def _cpu_seconds(self) -> float:
        """Return the CPU time that the loop's thread has used, or 0 if it isn't known."""
        if self._clock is None:
            return 0.0
        try:
            return time.clock_gettime(self._clock)
        except OSError:  # the thread has just exited
            return 0.0

    # On its thread

    def _run(self) -> None:
        """Run the loop while it has calls, then wait for the next call. This is the function of the loop's thread."""
        uninterruptible.block = self.block
        if hasattr(time, "pthread_getcpuclockid"):  # not on macOS
            self._clock = time.pthread_getcpuclockid(threading.get_ident())
        while True:
            try:
                self.run_forever()
            except BaseException:  # noqa: BLE001, S110 - for example a task's `SystemExit`, which is the task's result
                pass
            else:
                if self._is_over() or not self._wait():
                    return
            self.call_soon(self._stop_if_idle)

    def _is_over(self) -> bool:
        """Close the loop and return True, if it must end and has no calls left. Otherwise return False."""
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
        """Wait for a new call or the end of the loop. Return False after `IDLE_SECONDS`, when the thread must exit."""
        if not self._work_arrived.wait(IDLE_SECONDS):
            with self._lock:  # `begin` sets the event first, and then checks under the lock whether there is a thread
                if not self._work_arrived.is_set():
                    self.thread = None
                    return False
        self._work_arrived.clear()
        return True

    def _stop_if_idle(self) -> None:
        if not self._calls and not self._begin_scheduled:
            super().stop()

    def _begin_arrived(self) -> None:
        """Begin one call per iteration. If its first step blocks, `give_back` can still move the calls after it."""
        try:
            call = self._arrived.popleft()
        except IndexError:
            # Clear the flag first, then check again: a call that arrives after the check must see the cleared flag, so
            # that it wakes the loop.
            self._begin_scheduled = False
            if not self._arrived:
                self._stop_if_idle()
                return
            self._begin_scheduled = True
        else:
            self._begin(call)
        self.call_soon(self._begin_arrived)

    def _begin(self, call: SharedCall) -> None:
        """Start a call's coroutine as a task. If the call was cancelled before, end it instead."""
        self._calls.add(call)
        if call.cancelled:
            call.coroutine.close()
            call.result = CoroutineResult(None, asyncio.CancelledError())
            self._ended(call)
            return
        call.context.run(current_call.set, call)
        main = self.create_task(call.coroutine, context=call.context)
        main.add_done_callback(self._main_ended, context=Context())

    def _main_ended(self, main: "asyncio.Task[Any]") -> None:
        """Store the result of a call's own coroutine, and end the tasks and timers that it left."""
        call = main.call  # type: ignore[attr-defined]
        try:
            call.result = CoroutineResult(main.result(), None)
        except BaseException as error:  # noqa: BLE001 - raised by the function
            call.result = CoroutineResult(None, error)
        self._end_rest(call)

    def _end_rest(self, call: SharedCall) -> None:
        """Cancel and await the tasks that a call has left, one after the other, and then end the call.

        Callbacks that the call has already scheduled still run.
        """
        for timer in call.timers:
            timer.cancel()
        call.timers.clear()
        left = [task for task in call.tasks if not task.done()]
        for task in left:
            task.cancel()
        if left:  # when this task has ended, check all tasks again, because a cancelled task can start others
            left[0].add_done_callback(lambda _: self._end_rest(call), context=Context())
        else:
            self.call_soon(self._end_unless_more, call, context=Context())

    def _end_unless_more(self, call: SharedCall) -> None:
        """End a call. If its last callbacks have started timers or tasks, cancel those first."""
        if call.timers or any(not task.done() for task in call.tasks):
            self._end_rest(call)
        else:
            self._ended(call)

    def _ended(self, call: SharedCall) -> None:
        """Release the thread pool of a call, remove the call from this loop, and report its end to `call.done`."""
        if call.executor is not None:
            call.left_work = bool(call.executor.unfinished)
            if call.left_work:
                call.executor.abandon()
            else:
                call.executor.shutdown(wait=False)
        call.ended = True
        call.context.run(current_call.set, None)
        self._calls.discard(call)
        self._stop_if_idle()
        call.done(call)

    # Methods of asyncio's loop that a function can use, limited to the function's own call

    def call_soon(self, callback: Any, *args: Any, context: Context | None = None) -> asyncio.Handle:  # type: ignore[override]
        """Schedule a callback, unless its call has ended."""
        self._scheduled_steps += 1
        handle = super().call_soon(callback, *args, context=context)
        call: SharedCall | None = current_call.get() if context is None else context.get(current_call)
        if call is not None and call.ended:  # without this, a callback that reschedules itself would run forever
            handle.cancel()
        return handle

    def call_at(self, when: float, callback: Any, *args: Any, context: Context | None = None) -> asyncio.TimerHandle:  # type: ignore[override]
        """Schedule a timer, and store it with the current call, which cancels it at the end."""
        timer = super().call_at(when, callback, *args, context=context)
        call: SharedCall | None = current_call.get()
        if call is not None:
            timers = call.timers
            if len(timers) >= 32 and not len(timers) & (len(timers) - 1):  # noqa: PLR2004 - clean up at powers of two
                now = self.time()
                timers[:] = [timer for timer in timers if not timer.cancelled() and timer.when() >= now]
            timers.append(timer)
        return timer

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> Any:  # type: ignore[override]
        """Run work in a thread: of the current call's own pool, if the function names no other pool."""
        call: SharedCall | None = current_call.get()
        if executor is None and call is not None:
            call.used_threads = True
            if call.executor is None:
                call.executor = LoopExecutor()
            executor = call.executor
        return super().run_in_executor(executor, func, *args)


def _end_process(_timeout: float | None = None) -> NoReturn:
    """Exit. This replaces the selector's `select` in a process forked by a function, where no event may be awaited."""
    os._exit(0)


def _make_task(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> CallTask:
    """Create a task that belongs to the current call. This is the loop's task factory."""
    context = options.get("context")
    call: SharedCall | None = current_call.get() if context is None else context.get(current_call)
    task = CallTask(coroutine, loop=loop, **options)
    asyncio._unregister_task(task)  # noqa: SLF001 - documented for third-party tasks: hides the task from `all_tasks`
    if call is not None:
        task.call = call
        call.tasks.add(task)
        task.add_done_callback(call.tasks.discard, context=Context())
    return task
