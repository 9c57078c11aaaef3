"""The parent of the worker processes: it starts them, replaces those that die or hang, and stops them together.

The rule: it has no threads, calls no toolpack's functions, and knows nothing about sessions. Workers are forked from
it, so that all of them, replacements included, have the same toolpacks.
"""

import logging
import multiprocessing
import os
import signal
import socket
import time
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from types import FrameType

from server.errors import StartError
from server.packs.catalog import Catalog
from server.processes.worker import SERVING, START_FAILED, supervised_worker
from server.settings import Settings

log = logging.getLogger("toolpack_server")

HANG_SECONDS = 5.0
TICK_SECONDS = 0.25
MIN_LIFETIME_SECONDS = 2.0


class _Child:
    """A worker process, the time of its last heartbeat, and whether it has ever served."""

    def __init__(self, settings: Settings, catalog: Catalog, listener: socket.socket) -> None:
        forking = multiprocessing.get_context("fork")
        self.pipe, child_end = forking.Pipe(duplex=False)
        self.process: BaseProcess = forking.Process(
            target=supervised_worker, args=(settings, catalog, listener, child_end, os.getpid()), name="worker"
        )
        # Until the worker has said what SIGTERM means to it, it would take it as its parent does, and go on.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        self.process.start()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        child_end.close()
        self.started = self.last_heartbeat = time.monotonic()
        self.served = False

    def read_heartbeats(self) -> None:
        """Read the heartbeats that have arrived."""
        try:
            while self.pipe.poll():
                self.served |= self.pipe.recv_bytes() == SERVING
                self.last_heartbeat = time.monotonic()
        except (EOFError, OSError):
            pass

    def end(self) -> None:
        """Kill it if it still runs, and release its resources."""
        self.process.kill()
        self.process.join()
        self.pipe.close()
        # Not at the top: prometheus-client reads PROMETHEUS_MULTIPROC_DIR when it is imported.
        from prometheus_client.multiprocess import mark_process_dead  # noqa: PLC0415

        mark_process_dead(self.process.pid)  # type: ignore[no-untyped-call]


class Supervisor:
    """Keeps the configured number of workers running.

    Args:
        settings: The settings.
        catalog: The loaded toolpacks.
        listener: The socket that all workers share; it stays open here, so that connections wait while a worker is
            replaced.
    """

    def __init__(self, settings: Settings, catalog: Catalog, listener: socket.socket) -> None:
        self._settings = settings
        self._catalog = catalog
        self._listener = listener
        self._children: list[_Child] = []
        self._stopping = False
        self._served = False

    def run(self) -> None:
        """Keep workers running until SIGTERM or SIGINT, then stop them.

        Raises:
            StartError: A worker failed to start before any had served.
        """
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        self._children = [self._child() for _ in range(self._settings.workers)]
        try:
            while not self._stopping:
                self._pause()
                self._children = [self._checked(child) for child in self._children]
            self._stop_children()
        finally:
            for child in self._children:
                child.end()

    def _child(self) -> _Child:
        return _Child(self._settings, self._catalog, self._listener)

    def _stop(self, _number: int, _frame: FrameType | None) -> None:
        self._stopping = True

    def _pause(self) -> None:
        # Returns at once when a worker dies.
        wait([child.process.sentinel for child in self._children], TICK_SECONDS)

    def _checked(self, child: _Child) -> _Child:
        """Get the child itself, or its replacement if it died or hangs."""
        child.read_heartbeats()
        self._served |= child.served
        if child.process.is_alive() and time.monotonic() - child.last_heartbeat < HANG_SECONDS:
            return child
        if self._stopping:
            return child
        if child.process.is_alive():
            log.error("Worker %d hung for %g s and was killed: it is replaced.", child.process.pid, HANG_SECONDS)
        child.end()
        code = child.process.exitcode
        # After any worker has served, the likely cause is an unreachable store, which is temporary.
        if code == START_FAILED and not self._served:
            raise StartError("a worker could not start; its message is above.")
        if code != 0:
            log.error("A worker ended with status %s: it is replaced.", code)
        if time.monotonic() - child.started < MIN_LIFETIME_SECONDS:
            time.sleep(TICK_SECONDS)  # no busy loop if every worker dies at once
        return self._child()

    def _stop_children(self) -> None:
        for child in self._children:
            child.process.terminate()
        deadline = time.monotonic() + self._settings.drain_seconds + HANG_SECONDS
        for child in self._children:
            child.process.join(max(0.0, deadline - time.monotonic()))
