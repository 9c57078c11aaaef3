"""Context manager that delays the interruption of a tool function while the server's own code runs inside it.

If a function misses its deadline, `engine/interruption` raises an exception between any two of the function's
bytecodes. But while the function reads files or a database in its environment, it runs the server's code. An exception
there could leave a connection with an unread response, or a working copy without an owner.

So server code that functions can call, and that uses resources which outlive the call, runs in a block
`with uninterruptible:`. An exception for the function is delayed to the end of the block.
"""

import threading

from toolpack_server.base.errors import Interrupted


class InterruptTarget:
    """A block of code that another thread, the interrupter, can interrupt.

    Attributes:
        token: A list that contains one item while interrupting the block is allowed. The interrupter pops the item
            before it raises its exception. The block's own thread pops the item to prevent the exception. `list.pop` is
            atomic, so only one of the two threads gets the item.
        interrupted: Whether the block must end with `Interrupted`.
    """

    def __init__(self) -> None:
        self.token: list[None] = []
        self.interrupted = False

    def await_exception(self) -> None:
        """Wait until the interrupter, which took the token, has raised its exception."""
        raise NotImplementedError


class _Uninterruptible(threading.local):
    """Context manager that prevents interruptions. It can be nested, and can contain another interruptible block.

    Attributes:
        block: The interruptible block that the current thread runs, or None.
    """

    block: InterruptTarget | None = None

    def __init__(self) -> None:  # `threading.local` calls it once per thread
        self._outer: list[InterruptTarget | None] = []

    def __enter__(self) -> None:
        """Take the current block's token. If the interrupter has taken it, wait for its exception."""
        block = self.block
        if block is not None:
            try:
                block.token.pop()
            except IndexError:
                block.await_exception()
            self.block = None
        self._outer.append(block)

    def __exit__(self, *_exception: object) -> None:
        """Put the token back, and raise `Interrupted` if an interruption was delayed."""
        self.block = block = self._outer.pop()
        if block is not None:
            block.token.append(None)
            if block.interrupted:
                raise Interrupted


uninterruptible = _Uninterruptible()
