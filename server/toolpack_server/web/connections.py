"""Connection limits of a worker: they decide which connection is evicted when the limit is reached.

A request holds its connection from the check of its token or key until it is answered. Each owner and each agent's
address can hold a limited number of connections. When a new connection needs the space, the oldest connection that no
request holds (silent, idle or without a valid token) is evicted. So unknown clients can't keep out clients with a token
or a key, or requests to `/healthz`.
"""

from collections import Counter
from typing import NoReturn, Protocol

from starlette.types import Scope

from toolpack_server.base.errors import HttpRefusedError
from toolpack_server.base.settings import PREFIX, Settings
from toolpack_server.rpc.caller import Caller

RESERVE_SHARE = 10  # one in ten connections is reserved for owners that hold none, and for unknown clients
STATE = "connection"  # key of a request's connection in `scope["state"]`


class Connection(Protocol):
    """A connection that can be evicted."""

    def evict(self, reason: str) -> None:
        """Close the connection at once, because a new one needs its space."""


class Connections:
    """The open connections of a worker. If a server has `several` owners, each can hold at most half of the maximum.

    Attributes:
        closing: Whether each connection closes after its next response, because the server drains.
    """

    closing = False

    def __init__(self, settings: Settings, *, several: bool) -> None:
        self._max = settings.max_connections
        self._reserve = max(1, self._max // RESERVE_SHARE)
        self._max_of_owner = self._max // 2 if several else self._max
        self._max_of_address = settings.max_agent_requests
        self._of_owner: dict[str, int] = {}  # number of held connections by owner
        self._of_address: Counter[str] = Counter()
        self._held: set[Connection] = set()
        # Connections that no request holds, the oldest first. The new ones haven't sent a valid request yet.
        self._new: dict[Connection, None] = {}
        self._idle: dict[Connection, None] = {}

    def opened(self, connection: Connection) -> None:
        """Add a connection. At the limit, evict another connection, or this connection if all others are held."""
        self._new[connection] = None
        if len(self._held) + len(self._new) + len(self._idle) <= self._max:
            return
        # A new connection needs a moment to send its request, so evict idle connections first, unless many are new.
        candidates = self._new if len(self._new) > self._reserve or not self._idle else self._idle
        oldest = next(iter(candidates))
        del candidates[oldest]
        oldest.evict(
            f"The server has {self._max} connections already: try again later, or raise {PREFIX}MAX_CONNECTIONS and "
            "`ulimit -Hn`."
        )

    def closed(self, connection: Connection) -> None:
        self._held.discard(connection)
        self._new.pop(connection, None)
        self._idle.pop(connection, None)

    def hold(self, scope: Scope, caller: Caller) -> None:
        """Mark a request's connection as held, until `release`.

        Raises:
            HttpRefusedError: The owner or the agent's address holds too many connections, or only the reserve is left.
        """
        owner, address = caller.owner, None if caller.session_id is None else _address(caller)
        of_owner = self._of_owner.get(owner, 0)
        if of_owner >= self._max_of_owner:
            _refuse(
                f"You have {of_owner} requests that are being answered",
                "MAX_CONNECTIONS (an owner can use half of them)",
            )
        if of_owner and len(self._held) >= self._max - self._reserve:
            _refuse(f"{len(self._held)} requests are being answered", "MAX_CONNECTIONS")
        if address is not None:
            if self._of_address[address] >= self._max_of_address:
                _refuse(f"{self._max_of_address} requests to this address are being answered")
            self._of_address[address] += 1
        self._of_owner[owner] = of_owner + 1
        connection = scope.get("state", {}).get(STATE)
        for unheld in (self._idle, self._new):
            if connection in unheld:
                del unheld[connection]
                self._held.add(connection)

    def release(self, scope: Scope, caller: Caller) -> None:
        """Mark a request's connection as idle. The connection might be closed already."""
        _decrement(self._of_owner, caller.owner)
        if caller.session_id is not None:
            _decrement(self._of_address, _address(caller))
        connection = scope.get("state", {}).get(STATE)
        if connection in self._held:
            self._held.discard(connection)
            self._idle[connection] = None


def _address(caller: Caller) -> str:
    return f"{caller.session_id} {caller.address}"


def _refuse(reason: str, setting: str = "") -> NoReturn:
    advice = f", or raise {PREFIX}{setting}" if setting else ""
    raise HttpRefusedError(503, f"{reason}; nothing was changed. Send the request again later{advice}.")


def _decrement(counter: dict[str, int], key: str) -> None:
    if counter[key] > 1:
        counter[key] -= 1
    else:
        del counter[key]
