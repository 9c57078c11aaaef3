"""Deadline for toolpacks' code on the main thread, enforced by a signal."""

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType

from toolpack_server.base.errors import Interrupted


class Watched:
    late = False


@contextlib.contextmanager
def deadline(seconds: float) -> Iterator[Watched]:
    """Raise `Interrupted` in the block when the deadline passes. The block may catch it. Only for the main thread."""
    watched = Watched()
    if threading.current_thread() is not threading.main_thread():
        yield watched
        return

    def end(_number: int, _frame: FrameType | None) -> None:
        watched.late = True
        raise Interrupted

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield watched
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
