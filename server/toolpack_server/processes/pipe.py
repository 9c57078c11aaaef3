"""Pipe between a worker and its supervisor.

A worker sends heartbeats, by which the supervisor can tell a worker that computes for long from a worker that hangs.
The supervisor tells a worker to end when its replacement serves. The messages are the words below. If the supervisor
ends, the pipe breaks, and the worker exits at once.
"""

import os
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection

# From a worker:
STARTING, SERVING, UNFIT = b"starting", b"serving", b"unfit"  # its heartbeats
FAILED = b"failed: "  # followed by the reason; the last message of a worker that can't start
HOLDER = b"holder: "  # followed by the worker's id in the store; sent before it serves
# From the supervisor:
RETIRE, HURRY = b"retire", b"hurry"  # sent once
ENDED = b"ended: "  # followed by the id of another worker that has ended
HEARTBEAT_SECONDS = 0.5
STARTING_SECONDS = 0.05  # between heartbeats until the worker serves, so that the supervisor notices soon
TURN_SECONDS = 2.0  # without an iteration, until the event loop counts as blocked


class SupervisorPipe:
    """A worker's end of the pipe. Its heartbeats prove that Python code and, once it serves, the event loop run.

    Heartbeats stop if a C call never releases the GIL, or if the event loop waits for a lock that an interrupted
    function still holds.

    Args:
        pipe: The pipe, which breaks when the supervisor ends. None without a supervisor.
        serving: Called when this process begins to serve.

    Attributes:
        has_supervisor: Whether a supervisor replaces this worker when it is unfit or ends.
        unfit: This worker should be replaced.
        retired: Another worker has replaced this one, which must end.
        hurried: This worker must end without waiting for running calls.
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
        """Record an iteration of the event loop. After the last iteration, the loop isn't monitored any more."""
        self._turned = None if last else time.monotonic()
        if self._serving is not None:
            self._serving()
            self._serving = None

    def introduce(self, holder: str, holder_ended: Callable[[str], None]) -> None:
        """Send the supervisor this worker's id in the store.

        Args:
            holder: The id.
            holder_ended: Called with the id of each worker that ends.
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
        """Send heartbeats and read messages until the supervisor ends. Runs on its own thread."""
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
