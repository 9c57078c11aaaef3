"""Pipe between a worker and its supervisor.

A worker sends heartbeats, which allow the supervisor to distinguish a worker that computes for long from a worker that
hangs. The supervisor tells a worker to exit when its replacement serves. The messages are the constants below. If the
supervisor exits, the pipe breaks, and the worker exits at once.
"""

import os
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection

# From a worker:
STARTING, SERVING, UNFIT = b"starting", b"serving", b"unfit"  # heartbeats
FAILED = b"failed: "  # followed by the reason; the last message of a worker that can't start
HOLDER = b"holder: "  # followed by the worker's id in the store; sent before the worker serves
# From the supervisor:
RETIRE, HURRY = b"retire", b"hurry"  # each is sent at most once
ENDED = b"ended: "  # followed by the store id of another worker that has exited
HEARTBEAT_SECONDS = 0.5
STARTING_SECONDS = 0.05  # interval of heartbeats until the worker serves, so that the supervisor notices this soon
TURN_SECONDS = 2.0  # time without an iteration after which the event loop counts as blocked


class SupervisorPipe:
    """A worker's end of the pipe. A thread sends heartbeats to show that the worker is healthy.

    Heartbeats prove that Python code runs, and after the start also that the event loop runs. They stop, for example,
    if a C call never releases the GIL, or if the event loop waits for a lock that an interrupted function still holds.

    Args:
        pipe: The pipe, which breaks when the supervisor exits. None: there is no supervisor.
        serving: Called when this process begins to serve.

    Attributes:
        has_supervisor: Whether a supervisor replaces this worker when it is unfit or exits.
        unfit: This worker should be replaced.
        retired: Another worker has replaced this worker, so it must exit.
        hurried: This worker must exit without waiting for running calls.
    """

    def __init__(self, pipe: Connection | None = None, serving: Callable[[], None] | None = None) -> None:
        self._turned: float | None = None
        self._serving = serving
        self._pipe = pipe
        self.has_supervisor = pipe is not None
        self.unfit = False
        self.retired = False
        self.hurried = False
        self._holder_ended: Callable[[str], None] | None = None
        if pipe is not None:
            threading.Thread(target=self._keep_up, args=(pipe,), name="supervisor", daemon=True).start()

    def turn(self, *, last: bool = False) -> None:
        """Record an iteration of the event loop. After the last iteration, stop monitoring the loop."""
        self._turned = None if last else time.monotonic()
        if self._serving is not None:
            self._serving()
            self._serving = None

    def introduce(self, holder: str, holder_ended: Callable[[str], None]) -> None:
        """Send this worker's id in the store to the supervisor.

        Args:
            holder: This worker's id.
            holder_ended: Called with the id of each worker that exits.
        """
        self._holder_ended = holder_ended
        if self._pipe is not None:
            self._pipe.send_bytes(HOLDER + holder.encode())

    def fail(self, reason: str) -> None:
        """Tell the supervisor why this worker can't start."""
        if self._pipe is not None:
            self._pipe.send_bytes(FAILED + reason.encode("utf-8", "replace"))

    def descriptors(self) -> list[int]:
        """Return the pipe's file descriptor, if it is open."""
        return [] if self._pipe is None or self._pipe.closed else [self._pipe.fileno()]

    def _keep_up(self, pipe: Connection) -> None:
        """Send heartbeats and read messages until the supervisor exits. This runs on its own thread."""
        while True:
            turned = self._turned
            try:
                if turned is None:
                    pipe.send_bytes(STARTING)
                elif time.monotonic() - turned < TURN_SECONDS:
                    pipe.send_bytes(UNFIT if self.unfit else SERVING)
                if pipe.poll(STARTING_SECONDS if turned is None else HEARTBEAT_SECONDS):
                    message = pipe.recv_bytes()
                    self.retired |= message == RETIRE
                    self.hurried |= message == HURRY
                    if message.startswith(ENDED) and self._holder_ended is not None:
                        self._holder_ended(message.removeprefix(ENDED).decode())
            except (EOFError, OSError):
                os._exit(1)
