"""Interruption of a function that has missed its deadline.

The interpreter can raise an exception in another thread (`PyThreadState_SetAsyncExc`), between any two instructions of
this thread. In the wrong place, the exception would leave a lock held or a transaction open. From Python 3.14 on, even
the end of a `with` statement can leave its lock held (cpython issue 148874).

So the exception is raised only while the function itself runs, and this module uses no lock. The function's thread and
the interrupter's thread compete for one token: `list.pop` returns the token to exactly one of them. Server code that a
function calls, for example to load files, also holds the token while it runs (`base/uninterruptible`).

    function's thread              interrupter's thread               outcome
    enter: puts the token
    runs the function
    exit: takes the token          finds no token                     the function has ended; nothing is raised
    or: still in the function      takes the token, raises            the exception ends the function
    or: exit finds no token        has the token, is about to raise   exit waits for the interrupter, cancels an
                                                                      exception that is still pending, and raises
                                                                      `Interrupted` itself

After a block, no exception is pending for its thread. A thread that holds one of the server's locks, a store's
connection or a working copy also holds the token, so it can't be interrupted.
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

_WAIT_SECONDS = 0.0005  # time between two checks whether the interrupter has raised, which takes it microseconds


# A separate function object, because other libraries might set argument types on the object in `ctypes.pythonapi`.
_set_exception = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_ulong, ctypes.py_object)(
    ("PyThreadState_SetAsyncExc", ctypes.pythonapi)
)


class _PendingReplaced(BaseException):
    """Exception that replaces a pending `Interrupted`, and is caught at once."""


def raise_in(thread: int, exception: type[BaseException]) -> None:
    """Raise an exception in a thread as soon as it runs Python code."""
    _set_exception(thread, exception)


def _cancel_pending() -> None:
    """Cancel an exception that might still be pending for this thread.

    Another exception replaces the pending exception, and is raised and caught here. Clearing the pending exception
    isn't enough, because the interpreter would forever check all threads for it. In Python 3.11, a profiled or traced
    thread would then do nothing else.
    """
    with suppress(_PendingReplaced):
        _set_exception(threading.get_ident(), _PendingReplaced)
        while True:  # the interpreter raises a pending exception at the end of an iteration
            pass


class Interruptible(InterruptTarget):
    """Context manager for code on one thread that another thread can interrupt.

    After an interruption, all later blocks raise at their start, because the thread must exit. A block runs a function,
    or waits for an event: `with interruptible.waiting(end): ...`.
    """

    def __init__(self) -> None:
        super().__init__()
        self._thread = 0
        self._raised = False
        self._end: Callable[[], None] | None = None

    def waiting(self, end: Callable[[], None]) -> Self:
        """Make the next block a wait, which the interrupter ends by calling `end` instead of raising an exception.

        Args:
            end: Function that ends the wait. The interrupter calls it on its own thread, so it must be fast.
        """
        self._end = end
        return self

    def __enter__(self) -> None:
        self._thread = threading.get_ident()
        uninterruptible.block = self
        self.token.append(None)  # last, because from here on the interrupter can raise its exception
        if self.interrupted:  # interrupted before this block, so raise `Interrupted` at once
            self.__exit__()

    def __exit__(self, *_exception: object) -> None:
        """End the block, and raise `Interrupted` if it was interrupted."""
        try:
            self.token.pop()
        except IndexError:
            self.await_exception()
        uninterruptible.block = None
        self._end = None
        if self.interrupted:
            raise Interrupted

    def await_exception(self) -> None:
        """Wait until the interrupter has raised its exception, then cancel it, so that it can't reach later code."""
        # The interrupter has the token. Its exception might be pending, or the function might have swallowed it.
        while not self._raised:
            time.sleep(_WAIT_SECONDS)
        _cancel_pending()

    def interrupt(self) -> None:
        """Interrupt the block if it is running. Every later block raises `Interrupted` at its start."""
        self.interrupted = True
        try:
            self.token.pop()
        except IndexError:  # no block is running, or server code is running within it
            return
        if self._end is not None:
            self._end()
            self._raised = True
            return
        raise_in(self._thread, Interrupted)
        self._raised = True
        wake_loop(self._thread)


class InterruptibleThread(InterruptTarget):
    """Interrupt target for the thread of an event loop. Another thread can interrupt a single step of the loop.

    The token is always in its list, except while an interrupter or server code holds it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.token.append(None)

    def await_exception(self) -> None:
        """Wait until the interrupter has put the token back, and take the token."""
        while True:  # if the interrupter raises its exception, this thread gets it during this wait
            time.sleep(_WAIT_SECONDS)
            with suppress(IndexError):
                return self.token.pop()

    def interrupt(self, thread: int, is_running: Callable[[], bool]) -> None:
        """Raise `Interrupted` in a thread if the step is running, unless the step is in server code.

        Args:
            is_running: Returns whether the step is running.
        """
        try:
            self.token.pop()
        except IndexError:
            return
        try:
            if is_running():
                raise_in(thread, Interrupted)
        finally:
            self.token.append(None)
