"""Authenticated sender of a request.

The transport authenticates the caller before it calls a method. Only the caller determines which sessions the method
can read and change.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, NamedTuple, TypeVar

from toolpack_server.base.errors import OverloadedError
from toolpack_server.protocol.senders import AGENT, CLIENT

T = TypeVar("T")

CLIENT_LEFT = "The client closed the connection, so its request was cancelled. Send it again to get an answer."


class Caller(NamedTuple):
    """The authenticated sender of a request.

    Attributes:
        owner: The owner of the request's token, or of the agent's session. It is "" if the server has no tokens.
        session_id: The agent's session if the request was sent to an agent's address, otherwise None.
        sees_all: Whether the caller is allowed to read the sessions of all owners.
        address: Name of the session's address that received the request. It is used only with a `session_id`.
        left: Function that waits until the client closes the connection. None if there is no connection.
    """

    owner: str = ""
    session_id: str | None = None
    sees_all: bool = False
    left: Callable[[], Awaitable[None]] | None = None
    address: str = AGENT

    @property
    def by(self) -> str:
        """Name of the session's address that received the request, or `client`."""
        return CLIENT if self.session_id is None else self.address

    @classmethod
    def all_owners(cls) -> "Caller":
        """Return a caller that can read the sessions of all owners, for a command that opens a store itself."""
        return cls(sees_all=True)

    @property
    def sees(self) -> str | None:
        """Owner whose sessions the caller can read, or None if it can read all sessions."""
        return None if self.sees_all else self.owner

    async def run_while_connected(self, work: Coroutine[Any, Any, T]) -> T:
        """Run long work and cancel it if the client closes the connection. Use it if only this client needs the result.

        Raises:
            OverloadedError: The client closed the connection.
        """
        if self.left is None:
            return await work
        work_future, disconnect_future = asyncio.ensure_future(work), asyncio.ensure_future(self.left())
        try:
            await asyncio.wait([work_future, disconnect_future], return_when=asyncio.FIRST_COMPLETED)
        finally:
            disconnect_future.cancel()
            cancelled = work_future.cancel()  # False if the work was done already
            await asyncio.wait([work_future, disconnect_future])
        if cancelled and work_future.cancelled():
            raise OverloadedError(CLIENT_LEFT)
        return work_future.result()
