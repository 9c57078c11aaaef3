"""A block of the server's own code inside a tool function, which a missed deadline doesn't interrupt.

A function that has passed its deadline is ended by an exception between any two of its steps (`engine/interruption`).
While it reads its files or its database, these steps are the server's: the exception would leave a store's connection
with an unread answer, or a working copy with no owner.

Server code that a function can reach, and that uses what outlives the call, runs within `with
uninterruptible`. The interruption then waits, and is raised where the block ends.
"""

import threading

from toolpack_server.base.errors import Interrupted


class InterruptTarget:
    """A block of code that another thread may interrupt.

    Attributes:
        token: Holds one item while the block may be interrupted. The thread that pops it decides: the interrupter
            raises its exception, the block's own thread excludes one.
        wanted: The block is to end with `Interrupted`.
    """

    def __init__(self) -> None:
        self.token: list[None] = []
        self.wanted = False

    def await_exception(self) -> None:
        """Return once the interrupter, which has the token, has raised its exception, and none is on its way."""
        raise NotImplementedError


class _Uninterruptible(threading.local):
    """The context manager; it may be used within itself, and around another interruptible block.

    Attributes:
        block: The block that the thread runs and that may be interrupted now, or None.
    """

    block: InterruptTarget | None = None

    def __init__(self) -> None:  # called by each thread that uses it
        self._outer: list[InterruptTarget | None] = []

    def __enter__(self) -> None:
        block = self.block
        if block is not None:
            try:
                block.token.pop()
            except IndexError:
                block.await_exception()
            self.block = None
        self._outer.append(block)

    def __exit__(self, *_exception: object) -> None:
        self.block = block = self._outer.pop()
        if block is not None:
            block.token.append(None)
            if block.wanted:
                raise Interrupted


uninterruptible = _Uninterruptible()
