"""Interrupting a function that has passed its deadline.

The interpreter can raise an exception in another thread (`PyThreadState_SetAsyncExc`), between any two steps of that
thread. In the wrong place it would leave a lock held or a transaction open; from Python 3.14 on even a `with` statement
can be left with its lock held (cpython issue 148874).

The exception is raised only while the function itself runs, and this module takes no lock. Function and
interrupter race for one token: `list.pop` gives it to exactly one of them. Server code that a function calls, to load
its files for example, takes the token, too, for as long as it runs (`base/uninterruptible`).

    function's thread            interrupter's thread        outcome
    enter: puts the token
    runs the function
    exit: takes the token        finds no token              the function has ended; nothing is raised
    or: still in the function    takes it, raises            the exception ends the function
    or: exit finds no token      has taken it, is raising    exit waits until that is done, takes the exception back if
                                                             it is still on its way, and raises another itself

So when a block has been left, no exception is on its way to its thread any more. A thread that holds a lock of the
server's, a connection to a store or a working copy has the token, and can't be interrupted.
"""

import ctypes
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Self

from toolpack_server.base.errors import Interrupted
from toolpack_server.base.uninterruptible import InterruptTarget, uninterruptible
from toolpack_server.functions.coroutines import wake_loop

_WAIT_SECONDS = 0.0005


# A function object of our own: to `ctypes.pythonapi`'s, libraries may give other types.
_set_exception = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_ulong, ctypes.py_object)(
    ("PyThreadState_SetAsyncExc", ctypes.pythonapi)
)


class _TakenBack(BaseException):
    """Raised in place of an exception that is taken back, and caught at once."""


def raise_in(thread: int, exception: type[BaseException]) -> None:
    """Raise an exception in a thread as soon as it runs Python code."""
    _set_exception(thread, exception)


def _take_back() -> None:
    """Take back an exception that may still be on its way to this thread.

    Another one is raised in its place. Were there none at all, the interpreter would go on looking for it, in all
    threads and for ever, and in Python 3.11 a thread that is profiled or traced would do nothing else.
    """
    with suppress(_TakenBack):
        _set_exception(threading.get_ident(), _TakenBack)
        while True:  # the interpreter looks at the end of each round
            pass


class Interruptible(InterruptTarget):
    """A context manager, used by one thread, whose block another thread can interrupt, permanently.

    The block is a function, or a wait: `with interruptible.waiting(end): ...`.
    """

    def __init__(self) -> None:
        super().__init__()
        self._thread = 0
        self._raised = False
        self._end: Callable[[], None] | None = None

    def waiting(self, end: Callable[[], None]) -> Self:
        """Make the next block one that waits for something; `end` ends the wait, from another thread. Brief."""
        self._end = end
        return self

    def __enter__(self) -> None:
        self._thread = threading.get_ident()
        uninterruptible.block = self
        self.token.append(None)
        if self.wanted:
            self.__exit__()

    def __exit__(self, *_exception: object) -> None:
        """End the block, in `Interrupted` if somebody wants that."""
        try:
            self.token.pop()
        except IndexError:
            self.await_exception()
        uninterruptible.block = None
        self._end = None
        if self.wanted:
            raise Interrupted

    def await_exception(self) -> None:
        # The interrupter was faster. Its exception comes now, or was swallowed by the function: wait until it has been
        # raised, and take it back if it is still on its way, so that it can't hit anything after this.
        while not self._raised:
            time.sleep(_WAIT_SECONDS)
        _take_back()

    def interrupt(self) -> None:
        """End the block if it is running, and every later one at its beginning."""
        self.wanted = True
        try:
            self.token.pop()
        except IndexError:  # no block is running, or the server's own code within it
            return
        if self._end is not None:
            self._end()
            self._raised = True
            return
        raise_in(self._thread, Interrupted)
        self._raised = True
        wake_loop(self._thread)


class InterruptibleThread(InterruptTarget):
    """All that one thread runs, of which another thread can interrupt a part, such as one step of an event loop."""

    def __init__(self) -> None:
        super().__init__()
        self.token.append(None)

    def await_exception(self) -> None:
        # The exception, if the interrupter raises one at all, comes while this waits.
        while True:
            time.sleep(_WAIT_SECONDS)
            with suppress(IndexError):
                return self.token.pop()

    def interrupt(self, thread: int, is_running: Callable[[], bool]) -> None:
        """Raise `Interrupted` in the thread if the part is running, and not the server's own code within it."""
        try:
            self.token.pop()
        except IndexError:
            return
        try:
            if is_running():
                raise_in(thread, Interrupted)
        finally:
            self.token.append(None)
