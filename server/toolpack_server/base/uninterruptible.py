"""Context manager that delays the interruption of a tool function while the server's own code runs inside it.

If a function misses its deadline, `engine/interruption` raises an exception between any two of its bytecodes. But while
the function reads files or a database, it runs code of the server. An exception there could leave a connection with an
unread answer, or a working copy without an owner.

So server code that functions can reach, and that uses resources which outlive the call, runs in a block `with
uninterruptible:`. The interruption waits, and is raised at the end of the block.
"""

import threading

from toolpack_server.base.errors import Interrupted


class InterruptTarget:
    """A block of code that another thread may interrupt.

    Attributes:
        token: A list with one item while the block may be interrupted. If the interrupter pops it, it raises its
            exception. If the block's own thread pops it, it can't be interrupted.
        wanted: Whether the block must end with `Interrupted`.
    """

    def __init__(self) -> None:
        self.token: list[None] = []
        self.wanted = False

    def await_exception(self) -> None:
        """Wait until the interrupter, which took the token, has raised its exception."""
        raise NotImplementedError


class _Uninterruptible(threading.local):
    """The context manager. It can be nested, and can contain another interruptible block.

    Attributes:
        block: The interruptible block that the current thread runs, or None.
    """

    block: InterruptTarget | None = None

    def __init__(self) -> None:  # `threading.local` calls it once per thread
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
