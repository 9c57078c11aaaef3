"""Who sends a request.

Whoever calls a method has been authenticated before; what the method may touch follows from this alone.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, NamedTuple, TypeVar

from toolpack_server.base.errors import OverloadedError
from toolpack_server.protocol.senders import AGENT, CLIENT

T = TypeVar("T")

LEFT = "The client has closed its side of the connection, so what it has asked for has ended early."


class Caller(NamedTuple):
    """The authenticated sender of a request.

    Attributes:
        owner: The owner that the request's token stands for, or that of the agent's session; "" if the server has no
            tokens.
        session_id: The session of the agent's address to which the request was sent; None for other callers.
        sees_all: It may read the sessions of all owners.
        address: Whose address it was, where there is a `session_id`.
        left: Waits until its client has closed the connection; None if there is no connection.
    """

    owner: str = ""
    session_id: str | None = None
    sees_all: bool = False
    left: Callable[[], Awaitable[None]] | None = None
    address: str = AGENT

    @property
    def by(self) -> str:
        """Whose address the request was sent to, or `client`."""
        return CLIENT if self.session_id is None else self.address

    @classmethod
    def everybody(cls) -> "Caller":
        """Get the caller for a command that opens a store itself: it may read the sessions of all owners."""
        return cls(sees_all=True)

    @property
    def sees(self) -> str | None:
        """The owner whose sessions it may read; None: all."""
        return None if self.sees_all else self.owner

    async def while_there(self, work: Coroutine[Any, Any, T]) -> T:
        """Do work, which is cancelled if the client leaves: for what takes long, and is of no use to anybody else.

        Raises:
            OverloadedError: The client has left.
        """
        if self.left is None:
            return await work
        doing, leaving = asyncio.ensure_future(work), asyncio.ensure_future(self.left())
        try:
            await asyncio.wait([doing, leaving], return_when=asyncio.FIRST_COMPLETED)
        finally:
            leaving.cancel()
            cancelled = doing.cancel()
            await asyncio.wait([doing, leaving])
        if cancelled and doing.cancelled():
            raise OverloadedError(LEFT)
        return doing.result()
