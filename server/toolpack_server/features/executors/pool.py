"""The executors of a worker: which request gets which, and when they are started and stopped.

An executor belongs to one request at a time, and is given to none that has ended or is to be replaced. One is
kept spare, so that a request needn't wait for a fork. An executor that has run a function may be what that has made of
it, so it only runs functions from then on.
"""

import contextlib
import threading
import time
from collections.abc import Iterator

from toolpack_server.base.errors import Interrupted, OverloadedError, StartError
from toolpack_server.base.logger import log
from toolpack_server.base.settings import Settings
from toolpack_server.engine.lanes import SPARE_PLACES
from toolpack_server.features.executors.channel import ExecutorGoneError
from toolpack_server.features.executors.child import ExecutorProcess, Zygote
from toolpack_server.features.executors.metrics import ENDED, EXECUTORS, STARTED
from toolpack_server.features.executors.settings import ExecutorsSettings
from toolpack_server.observability.metrics import Metrics

# After a crowd, the environments of sessions are in many executors. One in so many calls moves its session to the
# executor that was used last, until a few executors do all the work: those have all in the processor's cache.
DETOURS = 16
IDLE_SECONDS = 60.0  # until an executor that nobody has needed ends
STOPPING = "The server is stopping; nothing was changed. Send it again, with its call_id."
UNSTARTED = "No process for toolpacks' code can be started; nothing was changed. Send it again."


class Pool:
    def __init__(self, zygote: Zygote, settings: Settings, metrics: Metrics) -> None:
        self._zygote = zygote
        self._settings = settings
        self._metrics = metrics
        self._own = settings.of(ExecutorsSettings)
        self._most = self._own.max + SPARE_PLACES
        self._changed = threading.Condition()
        self._children: dict[int, ExecutorProcess] = {}
        self._idle: list[int] = []  # the one that was used last comes last
        self._starting = 0
        self._detours = 0
        self._closed = False
        self._start_spare()
        self._prove()

    @contextlib.contextmanager
    def executor(self, prefer: int | None, *, clean: bool) -> Iterator[ExecutorProcess]:
        """Have an executor for one request, the preferred one if it is idle; if it owes the answer afterwards, kill it.

        Args:
            clean: It must be one that has run no function, and runs none now.

        Raises:
            OverloadedError: None has become free in time, or none can be started.
        """
        child = self._take(prefer, clean=clean)
        child.clean = clean
        why = "crashed"
        try:
            yield child
        except Interrupted:
            why = "deadline"
            raise
        finally:
            limit = self._own.calls
            if child.owes:
                self._end(child, why)
            elif child.retired or (limit and child.calls >= limit):
                self._end(child, "retired")
            else:
                self._give_back(child)

    def _prove(self) -> None:
        first = self._children[self._idle[0]] if self._idle else None
        try:
            if first is None:
                raise ExecutorGoneError
            first.greet()
        except ExecutorGoneError:
            self.close()
            raise StartError("no process for toolpacks' code can be set up; the log says why.") from None

    def _take(self, prefer: int | None, *, clean: bool) -> ExecutorProcess:
        deadline = time.monotonic() + self._settings.queue_timeout_seconds
        while True:
            child = self._take_idle(prefer, deadline, clean=clean) or self._start()
            try:
                child.greet()
            except ExecutorGoneError:
                self._end(child, "crashed")
                if time.monotonic() > deadline:
                    raise OverloadedError(UNSTARTED) from None
                time.sleep(0.01)  # the system may allow no more processes
                continue
            if child.is_alive():
                return child
            self._end(child, "crashed")

    def _take_idle(self, prefer: int | None, deadline: float, *, clean: bool) -> ExecutorProcess | None:
        """Take an idle executor, or get None if one may be started."""
        while True:
            with self._changed:
                while True:
                    if self._closed:
                        raise OverloadedError(STOPPING)
                    number = self._choose(prefer, clean=clean)
                    if number is not None:
                        break
                    if len(self._children) + self._starting < self._most:
                        self._starting += 1
                        return None
                    if self._idle:  # none of them is clean: one must make room
                        number = self._idle[0]
                        break
                    if not self._changed.wait(deadline - time.monotonic()) and time.monotonic() >= deadline:
                        raise OverloadedError(
                            f"The call waited {self._settings.queue_timeout_seconds:g} s for a process; nothing was "
                            "changed. Send it again."
                        )
                self._idle.remove(number)
                child = self._children[number]
            if child.clean or not clean:
                break
            self._end(child, "retired")
        if not self._idle:
            self._start_spare()
        return child

    def _choose(self, prefer: int | None, *, clean: bool) -> int | None:
        """Choose an idle executor: the preferred one, or every `DETOURS`th time the one that was used last.

        Get None if there is none, or `clean` ones are needed and there is none of them. Others aren't taken if they
        can be spared.
        """
        fitting = [number for number in self._idle if self._children[number].clean == clean]
        if not fitting and not clean:
            fitting = self._idle
        if not fitting:
            return None
        last = fitting[-1]
        if prefer == last or prefer not in fitting:
            return last
        self._detours += 1
        return last if self._detours % DETOURS == 0 else prefer

    def _start(self, *, again: bool = True) -> ExecutorProcess:
        """Start an executor; the caller has counted it in `_starting`."""
        child = None
        try:
            child = self._zygote.fork(again=again)
        except StartError as error:
            log.error("Executors can't be started: %s", error)  # noqa: TRY400 - it says all there is to say
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
        with self._changed:
            if self._closed or self._idle or len(self._children) + self._starting >= self._most:
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
        with self._changed:
            if not self._closed:
                child.rested = time.monotonic()
                self._idle.append(child.number)
                self._changed.notify_all()
                return
        self._end(child, "idle")

    def _end(self, child: ExecutorProcess, why: str) -> None:
        with self._changed:
            del self._children[child.number]
            self._metrics.count(ENDED, why)
            self._changed.notify_all()
        child.close()
        self._start_spare()

    def end_unused(self) -> None:
        """Stop executors that have been idle for a while, but the spare one. Measure how many there are."""
        with self._changed:
            self._metrics.measure(EXECUTORS, len(self._children) - len(self._idle), "busy")
            self._metrics.measure(EXECUTORS, len(self._idle), "idle")
            before = time.monotonic() - IDLE_SECONDS
            unused = [number for number in self._idle[:-1] if self._children[number].rested < before]
            self._idle = [number for number in self._idle if number not in unused]
        for number in unused:
            self._end(self._children[number], "idle")

    def close(self) -> None:
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
