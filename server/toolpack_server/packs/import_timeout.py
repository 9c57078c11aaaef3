"""A limit on what a toolpack's code does before the server has started: its import and its environment.

What takes too long is interrupted and named with the line that is running. A clock says little on a busy
machine, or under a limit of processor time: of the time in which code computes, what it has had of a processor counts,
and all of the time in which it waits. An import of a large library gets more. Code that holds the interpreter, or
swallows every exception, can't be interrupted.
"""

import contextlib
import signal
import threading
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

from toolpack_server.base.logger import log

MORE_PATIENCE = 6  # times as long for an import of a library
COMPUTES = 0.01  # the share of the time on a processor from which on code doesn't just wait
NEARLY = 0.9  # of the time that it may take: what hasn't had quite all of a processor is over, too
REPEAT_SECONDS = 0.5  # until code is interrupted again that has swallowed the exception
_SERVER = str(Path(__file__).parents[1]) + "/"


class TimeLimitExceeded(BaseException):
    """Code took too long; the text says where it was."""


@contextlib.contextmanager
def time_limit(seconds: float, what: str, advice: str = "do this in a function, or not at all") -> Iterator[None]:
    """Raise `TimeLimitExceeded` in code that takes too long. Only the main thread can be interrupted."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    counted, began, used = 0.0, time.monotonic(), time.process_time()

    def interrupt(_number: int, frame: FrameType | None) -> None:
        nonlocal counted, used
        before, used = used, time.process_time()
        counted += counts(used - before, seconds)
        stack = traceback.extract_stack(frame)
        own = [place for place in stack if not place.filename.startswith((_SERVER, "<frozen"))]
        where = f" at {own[-1].filename}:{own[-1].lineno}" if own else ""
        if counted < NEARLY * seconds * (MORE_PATIENCE if _imports_library(stack) else 1):
            took = time.monotonic() - began
            log.warning("Slow: %s has gone on for %d s%s; %g of them count.", what, took, where, round(counted, 1))
            signal.setitimer(signal.ITIMER_REAL, seconds, REPEAT_SECONDS)
            return
        raise TimeLimitExceeded(f"{what} takes longer than {seconds:g} s{where}: {advice}.")

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, seconds, REPEAT_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def counts(used: float, seconds: float) -> float:
    """Get how many of some seconds count, of which code has been on a processor for `used`."""
    return used if COMPUTES * seconds <= used < seconds else seconds


def _imports_library(stack: traceback.StackSummary) -> bool:
    """Whether the code is in an import of a library that it has begun itself, and not at a line of its own."""
    machinery = [number for number, place in enumerate(stack) if place.filename.startswith("<frozen importlib")]
    if not machinery:
        return False
    first, last = machinery[0], machinery[-1]
    importing = [place for place in stack[first:last] if not place.filename.startswith(("<frozen", _SERVER))]
    imported = [place for place in stack[last + 1 :] if not place.filename.startswith("<frozen")]
    if not importing:
        return False
    return not imported or Path(imported[0].filename).parent != Path(importing[0].filename).parent
