"""The parent of the worker processes: it starts them, replaces those that die, hang or are unfit, and stops them.

It has no threads, runs no toolpack code, and knows nothing about sessions. Workers are forked from it, and
load the toolpacks themselves: all of them, replacements included, have those of one inventory, and the same key.
Whatever goes wrong with one worker, the others go on, and the next attempt to replace it comes after a pause.
"""

import gc
import os
import signal
import socket
import time
from collections import deque
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from types import FrameType

from toolpack_server.base.errors import StartError
from toolpack_server.base.logger import log
from toolpack_server.base.secret_key import secret_key
from toolpack_server.base.settings import Settings
from toolpack_server.packs.inventory import Inventory
from toolpack_server.processes.child import Child, handle_stop
from toolpack_server.processes.cpu_time import CpuTime
from toolpack_server.processes.pipe import ENDED, FAILED, HOLDER, HURRY, RETIRE, SERVING, UNFIT
from toolpack_server.processes.worker import OUTDATED, START_FAILED, supervised_worker
from toolpack_server.wiring.installed import load_features
from toolpack_server.wiring.service import create_metrics

HANG_SECONDS = 5.0
LOADING_SECONDS = 30.0  # until a worker serves: what is imported may hold the interpreter
MORE_PATIENCE = 12  # times as long, whatever the system tells
QUIET_SECONDS = 1.0  # of silence that need no look at the process
STOP_SECONDS = 3.0  # to end after the running calls have ended, or `drain_seconds` are over
TICK_SECONDS = 0.25
# The most that one look counts: while the supervisor itself stood still, no heartbeat could be seen.
LOOK_SECONDS = 2 * TICK_SECONDS
FIRST_PAUSE_SECONDS, MAX_PAUSE_SECONDS = 0.125, 30.0


class WorkerProcess(Child):
    """A worker as its supervisor sees it.

    Attributes:
        silence: For how many seconds, up to now, no heartbeat came that could have come.
        quiet: For how many seconds none came.
        ending: For how many seconds it has been retired; None if it isn't.
        served: It has run as a server. Its end is then no failure to start, however soon it comes.
        unfit: It has said that it should be replaced.
        holder: The id by which the store knows it; "" if it hasn't said that.
        told: The ids of those of which it knows that they have ended.
        failure: Why it can't start; "" if it hasn't said so.
    """

    def __init__(self, run: Callable[[Connection], int], row: int, others: list[Connection]) -> None:
        self.row = row
        self.silence = self.quiet = 0.0
        self.ending: float | None = None
        self.served = self.unfit = False
        self.holder = self.failure = ""
        self.told: set[str] = set()
        super().__init__(run, others)
        self._activity = CpuTime(self.pid)

    def watch(self, seconds: float) -> None:
        """Read what has come through the pipe in these seconds, not counting pauses of the supervisor itself."""
        self.quiet += seconds
        self.silence += seconds if self.quiet < QUIET_SECONDS else self._activity.counted(seconds)
        if self.ending is not None:
            self.ending += seconds
        for message in self.received():
            self.silence = self.quiet = 0.0
            self.served |= message in {SERVING, UNFIT}
            self.unfit |= message == UNFIT
            if message.startswith(FAILED):
                self.failure = message.removeprefix(FAILED).decode()
            elif message.startswith(HOLDER):
                self.holder = message.removeprefix(HOLDER).decode()

    def retire(self) -> None:
        """Tell it that another worker serves in its place."""
        self.ending = 0.0
        self.send(RETIRE)


class Supervisor:
    """Keeps the configured number of workers running.

    Args:
        listener: The socket that all workers share; it stays open here, so that connections wait while a worker is
            replaced.
        serving: Called once the workers serve.

    Raises:
        SettingsError: There is no key, and none can be created.
    """

    def __init__(
        self,
        settings: Settings,
        inventory: Inventory,
        listener: socket.socket,
        serving: Callable[[], None] | None = None,
    ) -> None:
        self._settings = settings
        self._inventory = inventory
        self._listener = listener
        self._key = secret_key(settings)
        # Where the store allows it, an unfit worker lives beside its replacement for a while.
        self._max_children = 1 if settings.exclusive else 2 * settings.workers
        self._metrics = create_metrics(inventory, load_features(settings.features), self._max_children)
        self._children: list[WorkerProcess] = []
        # The workers that have ended lately, by the ids that the store knows. All others are told of them, as whoever
        # was told first may have ended, too.
        self._ended: deque[str] = deque(maxlen=2 * self._max_children)
        self._served = False
        self._serving = serving
        self._waited = 0.0  # for the last workers to serve, since the first one does
        self._signals: list[int] = []
        self._looked = time.monotonic()
        self._pause_seconds = FIRST_PAUSE_SECONDS
        self._next_start = self._looked

    def run(self) -> None:
        """Keep workers running until a signal comes, then stop them; `StartError` if none can start."""
        handle_stop(self._note_signal)
        gc.collect()
        gc.freeze()  # a collection in a worker would copy every page of what they share
        try:
            while not self._signals:
                self._replace_workers()
                self._tell_who_has_ended()
                self._wait()
            log.info("The server stops: it was sent %s.", signal.Signals(self._signals[0]).name)
            self._stop()
        except StartError:
            raise
        except Exception:
            log.exception("The server ends: its supervisor has failed")
            raise StartError("The supervisor has failed: the log says why.") from None
        finally:
            for child in self._children:
                child.end()

    def _note_signal(self, number: int, _frame: FrameType | None) -> None:
        self._signals.append(number)

    def _wait(self) -> float:
        """Wait until a worker ends or says something, or a tick is over; get the seconds that may be counted."""
        pipes = [child.pipe for child in self._children if child.is_alive()]
        if wait(pipes, TICK_SECONDS):
            time.sleep(TICK_SECONDS / 10)  # a pipe stays ready from the end of a worker's pipe to that of the process
        before, self._looked = self._looked, time.monotonic()
        return self._watch(min(self._looked - before, LOOK_SECONDS))

    def _watch(self, seconds: float) -> float:
        for child in self._children:
            child.watch(seconds)
            self._served |= child.served
        if self._serving is not None and self._served:
            self._waited += seconds
            serving = sum(child.served for child in self._children)
            if serving >= self._settings.workers or self._waited > HANG_SECONDS:
                self._serving()
                self._serving = None
        return seconds

    def _replace_workers(self) -> None:
        for child in [*self._children]:
            if not child.is_alive():
                self._remove(child)
            elif _hangs(child):
                log.error(
                    "Worker %d hung for %g s%s and was killed; starting a replacement.",
                    child.pid,
                    round(child.quiet),
                    self._running(child),
                )
                self._remove(child)
            elif child.ending is not None and child.ending > self._settings.drain_seconds + STOP_SECONDS:
                log.error("Worker %d was replaced but didn't exit, and was killed.", child.pid)
                self._remove(child)
        fit = [child for child in self._children if not child.unfit]
        while len(fit) < self._settings.workers and self._may_start():
            try:
                fit.append(self._start())
            except OSError as error:
                log.error("A worker can't be started: %s. Trying again.", error.strerror)  # noqa: TRY400
                self._pause()
        self._retire(sum(child.served for child in fit))

    def _retire(self, serving: int) -> None:
        """Let unfit workers end in whose place others serve, or in whose place none can serve before they end."""
        unfit = [child for child in self._children if child.unfit and child.ending is None]
        if not self._settings.exclusive:
            unfit = unfit[: max(0, serving + len(unfit) - self._settings.workers)]
        for child in unfit:
            log.warning("Worker %d has too many stuck threads; it is being replaced.", child.pid)
            child.retire()

    def _tell_who_has_ended(self) -> None:
        """Tell workers that serve which others have ended, so that no call waits for the leases of these."""
        for child in self._children:
            for holder in self._ended:
                if child.served and holder not in child.told:
                    child.told.add(holder)
                    child.send(ENDED + holder.encode())

    def _may_start(self) -> bool:
        return len(self._children) < self._max_children and time.monotonic() >= self._next_start

    def _start(self) -> WorkerProcess:
        taken = {child.row for child in self._children}
        row = next(number for number in range(self._max_children) if number not in taken)
        supervisor = os.getpid()

        def run(pipe: Connection) -> int:
            metrics = self._metrics.of_row(row)
            return supervised_worker(
                self._settings, self._inventory, self._listener, self._key, metrics, pipe, supervisor
            )

        child = WorkerProcess(run, row, [child.pipe for child in self._children])
        self._children.append(child)
        return child

    def _remove(self, child: WorkerProcess) -> None:
        """Forget a worker that has ended, or end it; `StartError` if it failed to start, and none has ever served."""
        ended = not child.is_alive()
        child.watch(0)  # its last words
        running = self._running(child)
        unasked = child.ending is None
        child.end()
        self._children.remove(child)
        if child.holder:
            self._ended.append(child.holder)
        if unasked:
            self._metrics.running.worker_ended(child.row)
        self._metrics.of_row(child.row).worker_ended()
        # After any worker has served, the likely cause is an unreachable store, which is temporary. Changed toolpacks
        # are not, but workers that still serve go on.
        self._served |= child.served
        serving = any(other.served for other in self._children)
        outdated = child.exit_code == OUTDATED and not serving
        if not child.served and (outdated or (child.exit_code == START_FAILED and not self._served)):
            raise StartError(child.failure or "A worker could not start: see the log.")
        if ended and (unasked or child.exit_code != 0):
            why = f" ({child.failure})" if child.failure else running
            code = child.exit_code
            log.error("Worker %d exited with status %s%s; starting a replacement.", child.pid, code, why)
        if child.served:
            self._pause_seconds = FIRST_PAUSE_SECONDS
        else:
            self._pause()

    def _running(self, child: WorkerProcess) -> str:
        names = self._metrics.running.names(child.row)
        return f" while running {', '.join(names)}" if names else ""

    def _pause(self) -> None:
        """Start no worker for some time, which grows with every attempt that fails."""
        self._pause_seconds = min(2 * self._pause_seconds, MAX_PAUSE_SECONDS)
        self._next_start = time.monotonic() + self._pause_seconds

    def _stop(self) -> None:
        """Stop all workers; after another SIGINT, without waiting for running calls."""
        self._listener.close()  # the last worker to end closes the port
        for child in self._children:
            child.signal(signal.SIGTERM)
        seconds, hurried = self._settings.shutdown_delay_seconds + self._settings.drain_seconds + STOP_SECONDS, False
        while seconds > 0 and any(child.is_alive() for child in self._children):
            seconds -= self._wait()
            if signal.SIGINT in self._signals[1:] and not hurried:
                hurried = True
                for child in self._children:
                    child.send(HURRY)


def _hangs(child: WorkerProcess) -> bool:
    time_limit = HANG_SECONDS if child.served else LOADING_SECONDS
    return child.silence > time_limit or child.quiet > MORE_PATIENCE * time_limit
