"""The hosts of a Postgres, and connecting to the one of them that is the primary.

The wait for a connection is here and not in libpq, as psycopg holds the interpreter's lock while libpq waits:
so a machine that was lost, and answers nothing, would stop all threads of this process for as long.
"""

import select
import socket
import time
from collections.abc import Iterator
from typing import Any

from psycopg import Error, pq
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from toolpack_server.base.errors import SettingsError

CONNECT_SECONDS = 2.0  # to one address
DEFAULTS = {
    "target_session_attrs": "read-write",  # of several hosts, the primary
    "tcp_user_timeout": "5000",
    "application_name": "toolpack-server",
}
EACH = ("host", "hostaddr", "port")  # parameters that may have several values
_WAITS = {pq.PollingStatus.READING: select.POLLIN, pq.PollingStatus.WRITING: select.POLLOUT}


class LostError(Exception):
    """An answer was lost, or asks for another attempt; nobody knows whether anything was changed."""


class Hosts:
    """The hosts that a URL of libpq's names, or where it names none, the environment.

    Raises:
        SettingsError: The URL is wrong.
    """

    def __init__(self, url: str) -> None:
        try:
            given = {name: str(value) for name, value in conninfo_to_dict(url).items()}
            seconds = int(given.get("connect_timeout", 0))
        except (Error, ValueError) as error:
            # What it quotes is from the URL, and may be of a password.
            reason = str(error).partition(': "')[0].strip() if isinstance(error, Error) else "connect_timeout is none"
            raise SettingsError(f"The store's URL is wrong: {reason}.") from None
        self._seconds = seconds if seconds > 0 else CONNECT_SECONDS
        defaults = {each.keyword.decode(): each.val.decode() for each in pq.Conninfo.get_defaults() if each.val}
        values = {name: (given.get(name) or defaults.get(name) or "").split(",") for name in EACH}
        if any("@" in host[1:] for host in values["host"]) or not all(
            not port or port.isdecimal() for port in values["port"]
        ):
            raise SettingsError(
                "The store's URL is wrong: write the characters @ : / ? # % of a user or a password as %40 and so on."
            )
        number = max(map(len, values.values()))
        if any(len(each) not in {1, number} for each in values.values()):
            raise SettingsError("The store's URL is wrong: it must name as many ports as hosts, or one.")
        self._each: list[dict[str, Any]] = [
            DEFAULTS
            | given
            | {name: each[place % len(each)] for name, each in values.items() if each[place % len(each)]}
            for place in range(number)
        ]

    def connect(self) -> Any:
        """Connect to the first address that has a primary, or raise `LostError`."""
        said: list[str] = []
        for given in self._addresses(said):
            libpq = pq.PGconn.connect_start(make_conninfo("", **given).encode())
            if self._is_connected(libpq):
                return libpq
            text = " ".join(libpq.get_error_message().split())
            said.append(text or f"connection to {given.get('host')!r} failed: no answer for {self._seconds:g} s")
            libpq.finish()
        raise LostError("; ".join(said))

    def _addresses(self, said: list[str]) -> Iterator[dict[str, Any]]:
        """Look for the addresses of the hosts, as libpq would, with the lock as well."""
        for given in self._each:
            host = given.get("host", "")
            if not host or host.startswith(("/", "@")) or "hostaddr" in given:
                yield given
                continue
            try:
                found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
            except (OSError, UnicodeError) as error:
                said.append(f"could not translate host name {host!r} to address: {error}")
                continue
            yield from ({**given, "hostaddr": address[0]} for *_, address in found)

    def _is_connected(self, libpq: Any) -> bool:
        until = time.monotonic() + self._seconds
        event = select.POLLOUT  # as libpq's documentation says
        while libpq.status != pq.ConnStatus.BAD:
            poll = select.poll()  # its socket may be another one each time
            poll.register(libpq.socket, event)
            if not poll.poll(max(0, until - time.monotonic()) * 1000):
                return False
            status = libpq.connect_poll()
            if status == pq.PollingStatus.OK:
                return True
            if status not in _WAITS:
                return False
            event = _WAITS[status]
        return False
