"""Time limit for a toolpack's code that runs before the server starts: its import and its initial environment.

Code that exceeds the limit is interrupted, and the error names the line that was running. While code computes, only its
CPU time counts, because other programs might use most of a busy machine. While code waits, all time counts. The import
of a library has a longer limit. Code that holds the GIL, or catches every exception, can't be interrupted.
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

LIBRARY_FACTOR = 6  # the import of a library can take this many times as long
MIN_CPU_SHARE = 0.01  # code that uses less than this share of a CPU counts as waiting
TOLERANCE = 0.9  # code is interrupted at this share of the limit, because no code gets quite all of a CPU
REPEAT_SECONDS = 0.5  # delay before code that caught the exception is interrupted again
_SERVER = str(Path(__file__).parents[1]) + "/"


class TimeLimitExceeded(BaseException):
    """Raised in code that exceeded a time limit. The message names the line."""


@contextlib.contextmanager
def time_limit(seconds: float, what: str, advice: str = "do this in a function, or not at all") -> Iterator[None]:
    """Raise `TimeLimitExceeded` in a block that takes longer than the limit.

    A block in another thread than the main thread has no limit, because only the main thread receives signals.

    Args:
        seconds: The limit.
        what: Name of the block's work for the message, such as "its import".
        advice: Advice to the author for the message.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    counted, began, used = 0.0, time.monotonic(), time.process_time()

    def interrupt(_number: int, frame: FrameType | None) -> None:
        """Count the time since the last signal. Raise if the limit is exceeded; otherwise set the timer again."""
        nonlocal counted, used
        before, used = used, time.process_time()
        counted += counted_seconds(used - before, seconds)
        stack = traceback.extract_stack(frame)
        own = [frame for frame in stack if not frame.filename.startswith((_SERVER, "<frozen"))]
        where = f" at {own[-1].filename}:{own[-1].lineno}" if own else ""
        if counted < TOLERANCE * seconds * (LIBRARY_FACTOR if _imports_library(stack) else 1):
            elapsed = time.monotonic() - began
            log.warning("Slow: %s has taken %d s%s; %g s of them count.", what, elapsed, where, round(counted, 1))
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


def counted_seconds(used: float, seconds: float) -> float:
    """Return the seconds that count of a period of `seconds`, in which the process used the CPU time `used`.

    If the code computed, its CPU time counts. If it only waited, the whole period counts.
    """
    return used if MIN_CPU_SHARE * seconds <= used < seconds else seconds


def _imports_library(stack: traceback.StackSummary) -> bool:
    """Return whether the toolpack is importing a library: a module from another folder than its own.

    On the stack, frames of Python's import machinery lie between the importing module and the imported module.
    """
    machinery = [number for number, frame in enumerate(stack) if frame.filename.startswith("<frozen importlib")]
    if not machinery:
        return False
    first, last = machinery[0], machinery[-1]
    importing = [frame for frame in stack[first:last] if not frame.filename.startswith(("<frozen", _SERVER))]
    imported = [frame for frame in stack[last + 1 :] if not frame.filename.startswith("<frozen")]
    if not importing:
        return False
    return not imported or Path(imported[0].filename).parent != Path(importing[0].filename).parent
