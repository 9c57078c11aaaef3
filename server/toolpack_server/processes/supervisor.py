"""Supervisor: parent of the worker processes, which starts, replaces and stops them.

The supervisor replaces workers that exit, hang or are *unfit*, which means that they have too many stuck threads. It
starts no threads, runs no toolpack code, and doesn't depend on sessions. Workers are forked from it and load the
toolpacks themselves. All workers, including replacements, must load the toolpacks of one inventory, and share one key.
A failing worker doesn't affect the other workers. If its replacement also fails, the next attempts wait for a growing
delay.
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

HANG_SECONDS = 5.0  # limit of `WorkerProcess.silence`, after which a serving worker counts as hanging
LOADING_SECONDS = 30.0  # this limit for a worker that doesn't serve yet, because an import can hold the GIL
MAX_QUIET_FACTOR = 12  # a worker without a heartbeat for this multiple of the limit is killed, even if it lacked CPU
QUIET_SECONDS = 1.0  # time without a heartbeat after which the worker's CPU time is read
STOP_SECONDS = 3.0  # time for a worker to exit after its running calls, or after `drain_seconds`
TICK_SECONDS = 0.25
# Maximum time that is counted per check, because the supervisor receives no heartbeats while it is itself suspended.
LOOK_SECONDS = 2 * TICK_SECONDS
FIRST_PAUSE_SECONDS, MAX_PAUSE_SECONDS = 0.125, 30.0


class WorkerProcess(Child):
    """The supervisor's handle of a worker.

    Attributes:
        row: The worker's row in the tables of metrics. A new worker uses a free row. silence: Seconds without a
        heartbeat during which the worker had the CPU time to send a heartbeat; see `CpuTime`. quiet: Seconds without a
        heartbeat. ending: Seconds since the worker was retired. None: it isn't retired. served: The worker has begun to
        serve. If it exits soon after that, this doesn't count as a failed start. unfit: The worker reported that it
        should be replaced. holder: The worker's id in the store, or "" before the worker has sent its id. announced:
        The store ids of exited workers that were sent to this worker. failure: The reason why the worker can't start,
        or "".
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
        """Read the worker's messages, and update its counters of seconds.

        Args:
            seconds: The seconds since the last check, excluding pauses of the supervisor.
        """
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
        """Tell the worker to exit, because another worker has replaced it."""
        self.ending = 0.0
        self.send(RETIRE)


class Supervisor:
    """Keeps the configured number of workers running.

    Args:
        listener: The socket that all workers share. It stays open in the supervisor, so that connections wait while a
            worker is replaced.
        serving: Called once all workers serve, or some time after the first worker has begun to serve.

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
        # If the store allows several processes, an unfit worker and its replacement run together for a while.
        self._max_children = 1 if settings.exclusive else 2 * settings.workers
        self._metrics = create_metrics(inventory, load_features(settings.features), self._max_children)
        self._children: list[WorkerProcess] = []
        # Store ids of workers that exited recently. Each id is sent to every worker, because a single worker might
        # itself exit before it has reported the id to the store.
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
        gc.freeze()  # otherwise a collection in a worker would write to every shared page of memory, and so copy it
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
        """Wait until a worker exits or sends a message, but at most for one tick. Return the seconds to count."""
        pipes = [child.pipe for child in self._children if child.is_alive()]
        if wait(pipes, TICK_SECONDS):
            time.sleep(TICK_SECONDS / 10)  # avoid a busy loop: a closed pipe stays ready until its process has exited
        before, self._looked = self._looked, time.monotonic()
        return self._watch(min(self._looked - before, LOOK_SECONDS))

    def _watch(self, seconds: float) -> float:
        """Read the workers' messages, and return the argument.

        Call `serving` once all workers serve, or when the first worker has served for a while.
        """
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
        """Remove workers that exited or hang, start missing workers, and retire unfit workers."""
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
        """Retire unfit workers that have a replacement, or that must exit before their replacement can start."""
        unfit = [child for child in self._children if child.unfit and child.ending is None]
        if not self._settings.exclusive:
            # Retire an unfit worker only if the configured number of workers still serves without it.
            unfit = unfit[: max(0, serving + len(unfit) - self._settings.workers)]
        for child in unfit:
            log.warning("Worker %d has too many stuck threads; it is being replaced.", child.pid)
            child.retire()

    def _announce_ended_workers(self) -> None:
        """Tell serving workers which workers have exited, so that no call waits for the leases of exited workers.

        A lease is the right of one worker to run a session's calls.
        """
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
        """Remove a worker. Kill it if it is still running.

        Raises:
            StartError: The worker failed to start, and a replacement would also fail, because no worker has served yet,
                or because the toolpacks have changed and no other worker serves.
        """
        ended = not child.is_alive()
        child.watch(0)  # read the worker's last messages
        running = self._running(child)
        unexpected = child.ending is None
        child.end()
        self._children.remove(child)
        if child.holder:
            self._ended.append(child.holder)
        if unexpected:
            self._metrics.running.worker_ended(child.row)
        self._metrics.of_row(child.row).worker_ended()
        # If a worker has served before, the usual cause of a failed start is an unreachable store, which is temporary.
        # Changed toolpacks aren't temporary, but the server continues with the workers that still serve.
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
        self._listener.close()  # the port stays open until the last worker has exited
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
    """Return whether a worker has sent no heartbeat for too long, although it had the CPU time to send one."""
    time_limit = HANG_SECONDS if child.served else LOADING_SECONDS
    return child.silence > time_limit or child.quiet > MAX_QUIET_FACTOR * time_limit
