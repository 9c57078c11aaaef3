"""The parent of the worker processes: it starts them, replaces those that die or hang, and stops them together.

The rule: it runs no toolpack's code beyond loading it, has no threads, and knows nothing of sessions. Workers are
forked from it, so that all of them, and those that come later, have the same toolpacks.
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

from server.catalog import Catalog
from server.errors import StartError
from server.settings import Settings
from server.worker import SERVING, START_FAILED, supervised_worker

log = logging.getLogger("toolpack_server")

HANG_SECONDS = 5.0
TICK_SECONDS = 0.25
SOON_SECONDS = 2.0


class _Child:
    """A worker process, when it was last seen to live, and whether it has served."""

    def __init__(self, settings: Settings, catalog: Catalog, listener: socket.socket) -> None:
        forking = multiprocessing.get_context("fork")
        self.pipe, theirs = forking.Pipe(duplex=False)
        self.process: BaseProcess = forking.Process(
            target=supervised_worker, args=(settings, catalog, listener, theirs, os.getpid()), name="worker"
        )
        # Until the worker has said what SIGTERM means to it, it would take it as its parent does, and go on.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        self.process.start()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        theirs.close()
        self.started = self.seen = time.monotonic()
        self.served = False

    def look(self) -> None:
        """Take in the beats that have come."""
        try:
            while self.pipe.poll():
                self.served |= self.pipe.recv_bytes() == SERVING
                self.seen = time.monotonic()
        except (EOFError, OSError):
            pass

    def end(self) -> None:
        """Kill it, if it still lives, and let go of it."""
        self.process.kill()
        self.process.join()
        self.pipe.close()
        # Not at the top: prometheus-client decides at its import whether there are several workers.
        from prometheus_client.multiprocess import mark_process_dead  # noqa: PLC0415

        mark_process_dead(self.process.pid)  # type: ignore[no-untyped-call]


class Supervisor:
    """Keeps as many workers as the settings ask for.

    Args:
        settings: The settings.
        catalog: The loaded toolpacks.
        listener: The socket that all workers share; it stays open here, so that nobody is refused while one is
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
        """Keep workers alive until SIGTERM or SIGINT, then stop them.

        Raises:
            StartError: No worker could start yet, and one has said why.
        """
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        self._children = [self._child() for _ in range(self._settings.workers)]
        try:
            while not self._stopping:
                self._pause()
                self._children = [self._tended(child) for child in self._children]
            self._stop_children()
        finally:
            for child in self._children:
                child.end()

    def _child(self) -> _Child:
        return _Child(self._settings, self._catalog, self._listener)

    def _stop(self, _number: int, _frame: FrameType | None) -> None:
        self._stopping = True

    def _pause(self) -> None:
        # Wakes up at once when a worker dies.
        wait([child.process.sentinel for child in self._children], TICK_SECONDS)

    def _tended(self, child: _Child) -> _Child:
        """Get a child as it is, or its replacement if it died or hangs."""
        child.look()
        self._served |= child.served
        if child.process.is_alive() and time.monotonic() - child.seen < HANG_SECONDS:
            return child
        if self._stopping:
            return child
        if child.process.is_alive():
            log.error("Worker %d hung for %g s and was killed: it is replaced.", child.process.pid, HANG_SECONDS)
        child.end()
        code = child.process.exitcode
        # Later it is rather the store that can't be reached for a while: that passes.
        if code == START_FAILED and not self._served:
            raise StartError("a worker could not start; it has said why above.")
        if code != 0:
            log.error("A worker ended with status %s: it is replaced.", code)
        if time.monotonic() - child.started < SOON_SECONDS:
            time.sleep(TICK_SECONDS)  # whatever kills it at once must not make this spin
        return self._child()

    def _stop_children(self) -> None:
        for child in self._children:
            child.process.terminate()
        deadline = time.monotonic() + self._settings.drain_seconds + HANG_SECONDS
        for child in self._children:
            child.process.join(max(0.0, deadline - time.monotonic()))
