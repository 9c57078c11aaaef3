"""The pipe between a worker and its supervisor.

The supervisor must tell a worker that computes for long from one that hangs, and a worker mustn't end before another
serves in its place. A message is one of the words below. A worker whose supervisor is gone ends at once.
"""

import os
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection

STARTING, SERVING, UNFIT = b"starting", b"serving", b"unfit"  # what a worker says, again and again
FAILED = b"failed: "  # what it says last if it can't start, followed by the reason
HOLDER = b"holder: "  # what it says before it serves, followed by the id by which the store knows it
RETIRE, HURRY = b"retire", b"hurry"  # what its supervisor says, once
ENDED = b"ended: "  # what its supervisor says when another worker has ended, followed by that one's id
HEARTBEAT_SECONDS = 0.5
STARTING_SECONDS = 0.05  # between heartbeats until the worker serves, which the supervisor should learn soon
TURN_SECONDS = 2.0  # an event loop without an iteration for so long is blocked


class SupervisorPipe:
    """A worker's end: it shows the supervisor that this process runs Python code and, once it serves, its event loop.

    Heartbeats stop if a C call never releases the GIL, or if the event loop waits for a lock that an interrupted
    function still holds.

    Args:
        pipe: The pipe; it breaks when the supervisor dies. None if there is no supervisor.
        serving: Called once this process serves.
    """

    def __init__(self, pipe: Connection | None = None, serving: Callable[[], None] | None = None) -> None:
        self._turned: float | None = None
        self._serving = serving
        self._pipe = pipe
        # There is a supervisor, which replaces this worker when it is unfit or ends.
        self.has_supervisor = pipe is not None
        self.unfit = False  # this worker should be replaced
        self.retired = False  # another worker takes the place of this one, which is to end
        self.hurried = False  # this worker is to end without waiting for running calls
        self._holder_ended: Callable[[str], None] | None = None
        if pipe is not None:
            threading.Thread(target=self._keep_up, args=(pipe,), name="supervisor", daemon=True).start()

    def turn(self, *, last: bool = False) -> None:
        """Record an iteration of the event loop; after the last one, it is no longer monitored."""
        self._turned = None if last else time.monotonic()
        if self._serving is not None:
            self._serving()
            self._serving = None

    def introduce(self, holder: str, holder_ended: Callable[[str], None]) -> None:
        """Say by which id the store knows this worker; `holder_ended` is called with those of workers that end."""
        self._holder_ended = holder_ended
        if self._pipe is not None:
            self._pipe.send_bytes(HOLDER + holder.encode())

    def fail(self, reason: str) -> None:
        """Tell the supervisor why this worker can't start."""
        if self._pipe is not None:
            self._pipe.send_bytes(FAILED + reason.encode("utf-8", "replace"))

    def descriptors(self) -> list[int]:
        return [] if self._pipe is None or self._pipe.closed else [self._pipe.fileno()]

    def _keep_up(self, pipe: Connection) -> None:
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
