"""Supervisor: parent of the worker processes, which starts, replaces and stops them.

The supervisor replaces workers that end, hang or are *unfit*, which means that they have too many stuck threads. It has
no threads, runs no toolpack code, and doesn't depend on sessions. Workers are forked from it and load the toolpacks
themselves. All workers, including replacements, must have the toolpacks of one inventory, and share one key. A failing
worker doesn't affect the other workers. If its replacement fails, too, the next attempts wait for a growing delay.
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

HANG_SECONDS = 5.0  # limit of `WorkerProcess.silence`, after which a worker hangs
LOADING_SECONDS = 30.0  # the limit until a worker serves, because an import may hold the GIL
MAX_QUIET_FACTOR = 12  # a worker is killed after this many times the limit, even if it got little CPU
QUIET_SECONDS = 1.0  # without a heartbeat, until the CPU time of the process is checked
STOP_SECONDS = 3.0  # for a worker to end after its running calls, or after `drain_seconds`
TICK_SECONDS = 0.25
# Max time counted per check, because the supervisor receives no heartbeats while it is suspended itself.
LOOK_SECONDS = 2 * TICK_SECONDS
FIRST_PAUSE_SECONDS, MAX_PAUSE_SECONDS = 0.125, 30.0


class WorkerProcess(Child):
    """A worker, in its supervisor.

    Attributes:
        row: The worker's row in the tables of metrics. A new worker takes a free row.
        silence: Seconds without a heartbeat in which the worker could have sent one; see `CpuTime`.
        quiet: Seconds without a heartbeat.
        ending: Seconds since the worker was retired, or None.
        served: The worker has begun to serve. So its end isn't a failure to start, even if it follows soon.
        unfit: The worker reported that it should be replaced.
        holder: The worker's id in the store, or "" before it has sent the id.
        announced: The ids of ended workers that were sent to this worker.
        failure: The reason why the worker can't start, or "".
    """

    def __init__(self, run: Callable[[Connection], int], row: int, others: list[Connection]) -> None:
        self.row = row
        self.silence = self.quiet = 0.0
        self.ending: float | None = None
        self.served = self.unfit = False
        self.holder = self.failure = ""
        self.announced: set[str] = set()
        super().__init__(run, others)
        self._activity = CpuTime(self.pid)

    def watch(self, seconds: float) -> None:
        """Read the worker's messages, and add the seconds since the last check, without pauses of the supervisor."""
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
        """Tell the worker to end, because another one has replaced it."""
        self.ending = 0.0
        self.send(RETIRE)


class Supervisor:
    """Keeps the configured number of workers running.

    Args:
        listener: The socket that all workers share. It stays open in the supervisor, so that connections wait while a
            worker is replaced.
        serving: Called when the workers serve.

    Raises:
        SettingsError: The secret key is missing and can't be created.
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
        # Unless the store allows one process only, an unfit worker and its replacement run together for a while.
        self._max_children = 1 if settings.exclusive else 2 * settings.workers
        self._metrics = create_metrics(inventory, load_features(settings.features), self._max_children)
        self._children: list[WorkerProcess] = []
        # Store ids of workers that ended lately. Each is sent to every worker, because one worker may end before it has
        # told the store.
        self._ended: deque[str] = deque(maxlen=2 * self._max_children)
        self._served = False
        self._serving = serving
        self._waited = 0.0  # seconds from the start of service of the first worker until `serving` was called
        self._signals: list[int] = []
        self._looked = time.monotonic()
        self._pause_seconds = FIRST_PAUSE_SECONDS
        self._next_start = self._looked

    def run(self) -> None:
        """Keep workers running until a signal arrives, then stop them.

        Raises:
            StartError: No worker can start, or the supervisor failed.
        """
        handle_stop(self._note_signal)
        gc.collect()
        gc.freeze()  # otherwise a collection in a worker would write to, and so copy, every shared page of memory
        try:
            while not self._signals:
                self._replace_workers()
                self._announce_ended_workers()
                self._wait()
            log.info("The server stops: it was sent %s.", signal.Signals(self._signals[0]).name)
            self._stop()
        except StartError:
            raise
        except Exception:
            log.exception("The server ends, because its supervisor failed")
            raise StartError("The supervisor failed: see the log.") from None
        finally:
            for child in self._children:
                child.end()

    def _note_signal(self, number: int, _frame: FrameType | None) -> None:
        self._signals.append(number)

    def _wait(self) -> float:
        """Wait until a worker ends or sends a message, at most one tick. Return the seconds to count."""
        pipes = [child.pipe for child in self._children if child.is_alive()]
        if wait(pipes, TICK_SECONDS):
            time.sleep(TICK_SECONDS / 10)  # a closed pipe stays ready until its process has ended
        before, self._looked = self._looked, time.monotonic()
        return self._watch(min(self._looked - before, LOOK_SECONDS))

    def _watch(self, seconds: float) -> float:
        """Read the workers' messages. Call `serving` if all workers serve, or the first has served for a while."""
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
        """Remove workers that ended or hang, start missing workers, and retire unfit ones."""
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
        """Retire unfit workers that have a replacement, or that must end before one can start."""
        unfit = [child for child in self._children if child.unfit and child.ending is None]
        if not self._settings.exclusive:
            # Retire an unfit worker only if the configured number of workers still serves without it.
            unfit = unfit[: max(0, serving + len(unfit) - self._settings.workers)]
        for child in unfit:
            log.warning("Worker %d has too many stuck threads; it is being replaced.", child.pid)
            child.retire()

    def _announce_ended_workers(self) -> None:
        """Tell serving workers which workers have ended, so that no call waits for the leases of ended workers."""
        for child in self._children:
            for holder in self._ended:
                if child.served and holder not in child.announced:
                    child.announced.add(holder)
                    child.send(ENDED + holder.encode())

    def _may_start(self) -> bool:
        return len(self._children) < self._max_children and time.monotonic() >= self._next_start

    def _start(self) -> WorkerProcess:
        """Fork a worker. Raise an `OSError` if the system allows no more processes or open files."""
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
        """Remove a worker. Kill it if it hasn't ended.

        Raises:
            StartError: The worker failed to start, and a replacement would fail, too: no worker has served yet, or the
                toolpacks have changed and no other worker serves.
        """
        ended = not child.is_alive()
        child.watch(0)  # reads its last messages
        running = self._running(child)
        unexpected = child.ending is None
        child.end()
        self._children.remove(child)
        if child.holder:
            self._ended.append(child.holder)
        if unexpected:
            self._metrics.running.worker_ended(child.row)
        self._metrics.of_row(child.row).worker_ended()
        # If a worker has served before, a failed start mostly means an unreachable store, which is temporary. Changed
        # toolpacks aren't temporary, but workers that still serve go on.
        self._served |= child.served
        serving = any(other.served for other in self._children)
        outdated = child.exit_code == OUTDATED and not serving
        if not child.served and (outdated or (child.exit_code == START_FAILED and not self._served)):
            raise StartError(child.failure or "A worker could not start: see the log.")
        if ended and (unexpected or child.exit_code != 0):
            cause = f" ({child.failure})" if child.failure else running
            code = child.exit_code
            log.error("Worker %d exited with status %s%s; starting a replacement.", child.pid, code, cause)
        if child.served:
            self._pause_seconds = FIRST_PAUSE_SECONDS
        else:
            self._pause()

    def _running(self, child: WorkerProcess) -> str:
        names = self._metrics.running.names(child.row)
        return f" while running {', '.join(names)}" if names else ""

    def _pause(self) -> None:
        """Delay the next start. The delay doubles with every failed attempt."""
        self._pause_seconds = min(2 * self._pause_seconds, MAX_PAUSE_SECONDS)
        self._next_start = time.monotonic() + self._pause_seconds

    def _stop(self) -> None:
        """Stop all workers. A further SIGINT stops them without waiting for running calls."""
        self._listener.close()  # the port stays open until the last worker has ended
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
    """Return whether a worker has sent no heartbeat for too long, although it could have."""
    time_limit = HANG_SECONDS if child.served else LOADING_SECONDS
    return child.silence > time_limit or child.quiet > MAX_QUIET_FACTOR * time_limit
