"""Pool of a worker's executors: assigns them to requests, and starts and stops them.

An executor serves one request at a time. One idle executor is always kept spare, so that a request needn't wait for a
fork. Because a function can tamper with its executor, operations whose results are trusted, such as evaluations, run
only in *clean* executors, which have run no function.
"""

import contextlib
import threading
import time
from collections.abc import Iterator

from toolpack_server.base.errors import Interrupted, OverloadedError, StartError
from toolpack_server.base.logger import log
from toolpack_server.base.settings import Settings
from toolpack_server.engine.lanes import SPARE_PROCESSES
from toolpack_server.features.executors.channel import ExecutorGoneError
from toolpack_server.features.executors.child import ExecutorProcess, Zygote
from toolpack_server.features.executors.metrics import ENDED, EXECUTORS, STARTED
from toolpack_server.features.executors.settings import ExecutorsSettings
from toolpack_server.observability.metrics import Metrics

# After a peak, the sessions' environments are spread over many executors. So one in this many calls moves its session
# to the most recently used executor. In the end, few executors do all the work, and their data stays in the CPU's
# cache.
MIGRATE_EVERY = 16
IDLE_SECONDS = 60.0  # time after which an unused executor is stopped
STOPPING = "The server is stopping; nothing was changed. Send the call again with its call_id."
UNSTARTED = "No process for toolpacks' code can be started; nothing was changed. Send the call again."


class Pool:
    """The executors of one worker. The constructor starts the first executor and waits for it.

    Raises:
        StartError: The first executor can't be set up.
    """

    def __init__(self, zygote: Zygote, settings: Settings, metrics: Metrics) -> None:
        self._zygote = zygote
        self._settings = settings
        self._metrics = metrics
        self._own = settings.of(ExecutorsSettings)
        self._max = self._own.max + SPARE_PROCESSES
        self._changed = threading.Condition()
        self._children: dict[int, ExecutorProcess] = {}
        self._idle: list[int] = []  # the numbers of idle executors, in the order of their last use
        self._starting = 0
        self._calls_elsewhere = 0
        self._closed = False
        self._start_spare()
        self._check_first()

    @contextlib.contextmanager
    def executor(self, prefer: int | None, *, clean: bool) -> Iterator[ExecutorProcess]:
        """Reserve an executor for one request. An executor that hasn't answered at the end of the block is killed.

        Args:
            prefer: The number of an executor to use if this executor is idle.
            clean: Use an executor that has run no function. This request must also run no function.

        Raises:
            OverloadedError: No executor became free in time, or none can be started.
        """
        child = self._take(prefer, clean=clean)
        child.clean = clean  # any other request runs a function, so the executor isn't clean after it
        why = "crashed"
        try:
            yield child
        except Interrupted:
            why = "deadline"
            raise
        finally:
            limit = self._own.calls
            if child.awaits_answer:  # it exited, or an exception interrupted the wait for its answer
                self._end(child, why)
            elif child.retired or (limit and child.calls >= limit):
                self._end(child, "retired")
            else:
                self._give_back(child)

    def _check_first(self) -> None:
        """Wait for the first executor. Raise a `StartError` if it can't be set up."""
        first = self._children[self._idle[0]] if self._idle else None
        try:
            if first is None:
                raise ExecutorGoneError
            first.wait_until_ready()
        except ExecutorGoneError:
            self.close()
            raise StartError("no process for toolpacks' code can be started; see the log for the cause.") from None

    def _take(self, prefer: int | None, *, clean: bool) -> ExecutorProcess:
        """Return an executor that is ready and alive: an idle executor, or a new one. Raise the same as `executor`."""
        deadline = time.monotonic() + self._settings.queue_timeout_seconds
        while True:
            child = self._take_idle(prefer, deadline, clean=clean) or self._start()
            try:
                child.wait_until_ready()
            except ExecutorGoneError:
                self._end(child, "crashed")
                if time.monotonic() > deadline:
                    raise OverloadedError(UNSTARTED) from None
                time.sleep(0.01)  # the limit of processes might be reached, so wait before the next attempt
                continue
            if child.is_alive():
                return child
            self._end(child, "crashed")

    def _take_idle(self, prefer: int | None, deadline: float, *, clean: bool) -> ExecutorProcess | None:
        """Take an idle executor, waiting for one if the maximum number is running.

        Return None if none is idle and the caller must start an executor. `_starting` already counts this executor, so
        that other threads don't exceed the maximum. Raise an `OverloadedError` after the deadline.
        """
        while True:
            with self._changed:
                while True:
                    if self._closed:
                        raise OverloadedError(STOPPING)
                    number = self._choose(prefer, clean=clean)
                    if number is not None:
                        break
                    if len(self._children) + self._starting < self._max:
                        self._starting += 1
                        return None
                    if self._idle:  # the request needs a clean executor, but no idle one is clean, so replace one
                        number = self._idle[0]
                        break
                    if not self._changed.wait(deadline - time.monotonic()) and time.monotonic() >= deadline:
                        raise OverloadedError(
                            f"The call waited {self._settings.queue_timeout_seconds:g} s for a process; nothing was "
                            "changed. Send the call again."
                        )
                self._idle.remove(number)
                child = self._children[number]
            if child.clean or not clean:
                break
            self._end(child, "retired")  # this makes room for a clean executor
        if not self._idle:
            self._start_spare()
        return child

    def _choose(self, prefer: int | None, *, clean: bool) -> int | None:
        """Choose an idle executor: the preferred executor, or every `MIGRATE_EVERY`th time the one that was used last.

        Return None if no idle executor is suitable. A request that needs a clean executor gets only a clean executor.
        Any other request gets a clean executor only if no other executor is idle.
        """
        fitting = [number for number in self._idle if self._children[number].clean == clean]
        if not fitting and not clean:
            fitting = self._idle
        if not fitting:
            return None
        last = fitting[-1]
        if prefer == last or prefer not in fitting:
            return last
        self._calls_elsewhere += 1
        return last if self._calls_elsewhere % MIGRATE_EVERY == 0 else prefer

    def _start(self, *, again: bool = True) -> ExecutorProcess:
        """Start an executor and return it. The caller must have incremented `_starting`.

        Raise an `OverloadedError` if no process can be started, or if the pool was closed meanwhile.

        Args:
            again: If the zygote has exited, start a new zygote first.
        """
        child = None
        try:
            child = self._zygote.fork(again=again)
        except StartError as error:
            log.error("Executors can't be started: %s", error)  # noqa: TRY400 - a traceback adds nothing
        with self._changed:
            self._starting -= 1
            if child is not None and not self._closed:
                self._children[child.number] = child
                self._metrics.count(STARTED)
                return child
        if child is None:
            raise OverloadedError(UNSTARTED)
        child.close()
        raise OverloadedError(STOPPING)

    def _start_spare(self) -> None:
        """Start a spare executor, unless an executor is idle or the maximum number is running.

        Log and ignore failures.
        """
        with self._changed:
            if self._closed or self._idle or len(self._children) + self._starting >= self._max:
                return
            self._starting += 1
        with contextlib.suppress(OverloadedError):
            spare = self._start(again=False)
            with self._changed:
                if not self._closed:
                    self._idle.insert(0, spare.number)
                    self._changed.notify_all()
                    return
            self._end(spare, "idle")

    def _give_back(self, child: ExecutorProcess) -> None:
        """Make an executor idle again, and wake a thread that waits for one. In a closed pool, kill it instead."""
        with self._changed:
            if not self._closed:
                child.idle_since = time.monotonic()
                self._idle.append(child.number)
                self._changed.notify_all()
                return
        self._end(child, "idle")

    def _end(self, child: ExecutorProcess, why: str) -> None:
        """Kill an executor, and count the reason in the metrics. Start a spare executor if necessary."""
        with self._changed:
            del self._children[child.number]
            self._metrics.count(ENDED, why)
            self._changed.notify_all()
        child.close()
        self._start_spare()

    def end_unused(self) -> None:
        """Stop executors that were idle for `IDLE_SECONDS`, except the spare one, and update the metrics."""
        with self._changed:
            self._metrics.measure(EXECUTORS, len(self._children) - len(self._idle), "busy")
            self._metrics.measure(EXECUTORS, len(self._idle), "idle")
            before = time.monotonic() - IDLE_SECONDS
            # The last entry is the most recently used executor. It stays as the spare executor.
            unused = [number for number in self._idle[:-1] if self._children[number].idle_since < before]
            self._idle = [number for number in self._idle if number not in unused]
        for number in unused:  # not under the lock, because ending an executor can block
            self._end(self._children[number], "idle")

    def close(self) -> None:
        """Kill all executors, which wakes the threads that wait for them, and stop the zygote."""
        with self._changed:
            self._closed = True
            for child in self._children.values():
                child.kill()
            idle = [self._children[number] for number in self._idle]
            self._idle = []
            self._changed.notify_all()
        for child in idle:
            self._end(child, "idle")
        self._zygote.close()
