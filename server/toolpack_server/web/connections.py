"""The connections of a worker: who may hold one, and which of the others ends where there is no room for another.

A request whose owner is known holds its connection until it is answered; owners and agents' addresses have
shares of these. All other connections, silent, idle or of strangers, end when their room is needed, the oldest first.
So nobody can keep out whoever comes with a token or a key, or asks for `/healthz`.
"""

from collections import Counter
from typing import NoReturn, Protocol

from starlette.types import Scope

from toolpack_server.base.errors import HttpRefusedError
from toolpack_server.base.settings import PREFIX, Settings
from toolpack_server.rpc.caller import Caller

RESERVED = 10  # one in so many connections: for owners that hold none, and for whoever isn't known yet
STATE = "connection"  # where `scope["state"]` has a request's connection


class Connection(Protocol):
    """A connection, as its requests find it."""

    def evict(self, reason: str) -> None:
        """End at once, to make room for another."""


class Connections:
    """The open connections; where owners are `several`, one may hold half of them.

    Attributes:
        closing: Whether each closes with its next answer.
    """

    closing = False

    def __init__(self, settings: Settings, *, several: bool) -> None:
        self._most = settings.max_connections
        self._reserve = max(1, self._most // RESERVED)
        self._most_of_owner = self._most // 2 if several else self._most
        self._most_of_address = settings.max_agent_requests
        self._of_owner: dict[str, int] = {}  # those that it holds
        self._of_address: Counter[str] = Counter()
        self._held: set[Connection] = set()
        # Those that nobody holds, the oldest first: such as have never been held, and such as were.
        self._new: dict[Connection, None] = {}
        self._idle: dict[Connection, None] = {}

    def opened(self, connection: Connection) -> None:
        """Count a connection; where there is no room for it another one ends, or this one if all are held."""
        self._new[connection] = None
        if len(self._held) + len(self._new) + len(self._idle) <= self._most:
            return
        # A new one needs a moment to send its request: they go before idle ones only if there are many.
        crowd = self._new if len(self._new) > self._reserve or not self._idle else self._idle
        displaced = next(iter(crowd))
        del crowd[displaced]
        displaced.evict(
            f"The server has {self._most} connections already: try again later, or raise {PREFIX}MAX_CONNECTIONS and "
            "`ulimit -Hn`."
        )

    def closed(self, connection: Connection) -> None:
        self._held.discard(connection)
        self._new.pop(connection, None)
        self._idle.pop(connection, None)

    def hold(self, scope: Scope, caller: Caller) -> None:
        """Let a request hold its connection, until `release`.

        Raises:
            HttpRefusedError: Its owner or its address holds too many.
        """
        owner, address = caller.owner, None if caller.session_id is None else _address(caller)
        of_owner = self._of_owner.get(owner, 0)
        if of_owner >= self._most_of_owner:
            _refuse(f"You have {of_owner} requests that are being answered", "MAX_CONNECTIONS, of which you have half")
        if of_owner and len(self._held) >= self._most - self._reserve:
            _refuse(f"{len(self._held)} requests are being answered", "MAX_CONNECTIONS")
        if address is not None:
            if self._of_address[address] >= self._most_of_address:
                _refuse(f"{self._most_of_address} requests to this address are being answered")
            self._of_address[address] += 1
        self._of_owner[owner] = of_owner + 1
        connection = scope.get("state", {}).get(STATE)
        for others in (self._idle, self._new):
            if connection in others:
                del others[connection]
                self._held.add(connection)

    def release(self, scope: Scope, caller: Caller) -> None:
        """End what `hold` has begun; the connection may be closed by now."""
        _decrement(self._of_owner, caller.owner)
        if caller.session_id is not None:
            _decrement(self._of_address, _address(caller))
        connection = scope.get("state", {}).get(STATE)
        if connection in self._held:
            self._held.discard(connection)
            self._idle[connection] = None


def _address(caller: Caller) -> str:
    return f"{caller.session_id} {caller.address}"


def _refuse(so_far: str, setting: str = "") -> NoReturn:
    more = f", or raise {PREFIX}{setting}" if setting else ""
    raise HttpRefusedError(503, f"{so_far}; nothing was changed. Send the request again later{more}.")


def _decrement(counter: dict[str, int], key: str) -> None:
    if counter[key] > 1:
        counter[key] -= 1
    else:
        del counter[key]
