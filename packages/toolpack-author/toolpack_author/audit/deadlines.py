"""Deadline for toolpacks' code on the main thread, enforced by a signal."""

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType

from toolpack_server.base.errors import Interrupted


class DeadlineState:
    """State of a block with a deadline.

    Attributes:
        late: Whether the deadline has passed. Check it, because code in the block can catch the exception.
    """

    late = False


@contextlib.contextmanager
def deadline(seconds: float) -> Iterator[DeadlineState]:
    """Raise `Interrupted` in the block when the deadline passes. Outside the main thread, do nothing."""
    state = DeadlineState()
    if threading.current_thread() is not threading.main_thread():
        yield state
        return

    def end(_number: int, _frame: FrameType | None) -> None:
        state.late = True
        raise Interrupted

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield state
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
