"""Hosts of a Postgres, and the way to connect to the host with the primary.

This module itself waits for the connection. Psycopg would hold the interpreter's lock while libpq waits, so a host that
doesn't respond would block all threads of this process.
"""

import select
import socket
import time
from collections.abc import Iterator
from typing import Any

from psycopg import Error, pq
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from toolpack_server.base.errors import SettingsError

CONNECT_SECONDS = 2.0  # default timeout for connecting to one address
DEFAULTS = {
    "target_session_attrs": "read-write",  # if the URL contains several hosts, connect only to the primary
    "tcp_user_timeout": "5000",
    "application_name": "toolpack-server",
}
LISTS = ("host", "hostaddr", "port")  # parameters that can contain several values
_WAITS = {pq.PollingStatus.READING: select.POLLIN, pq.PollingStatus.WRITING: select.POLLOUT}


class LostError(Exception):
    """The response was lost, or Postgres asks for a retry. It is unknown whether the request has changed data."""


class Hosts:
    """The hosts in a libpq URL, or in libpq's environment variables if the URL contains no host.

    Raises:
        SettingsError: The URL is wrong.
    """

    def __init__(self, url: str) -> None:
        try:
            options = {name: str(value) for name, value in conninfo_to_dict(url).items()}
            seconds = int(options.get("connect_timeout", 0))
        except (Error, ValueError) as error:
            # Omit the quoted text, which comes from the URL and might contain a password.
            reason = (
                str(error).partition(': "')[0].strip()
                if isinstance(error, Error)
                else "connect_timeout isn't a whole number"
            )
            raise SettingsError(f"The store's URL is wrong: {reason}.") from None
        self._seconds = seconds if seconds > 0 else CONNECT_SECONDS
        defaults = {option.keyword.decode(): option.val.decode() for option in pq.Conninfo.get_defaults() if option.val}
        values = {name: (options.get(name) or defaults.get(name) or "").split(",") for name in LISTS}
        if any("@" in host[1:] for host in values["host"]) or not all(
            not port or port.isdecimal() for port in values["port"]
        ):
            raise SettingsError(
                "The store's URL is wrong: write the characters @ : / ? # % of a user or a password as %40 and so on."
            )
        count = max(map(len, values.values()))
        if any(len(items) not in {1, count} for items in values.values()):
            raise SettingsError("The store's URL is wrong: give one port, or as many ports as hosts.")
        self._hosts: list[dict[str, Any]] = [
            DEFAULTS
            | options
            | {name: items[number % len(items)] for name, items in values.items() if items[number % len(items)]}
            for number in range(count)
        ]

    def connect(self) -> Any:
        """Return a connection to the first address that has a primary, or raise `LostError`."""
        errors: list[str] = []
        for options in self._addresses(errors):
            libpq = pq.PGconn.connect_start(make_conninfo("", **options).encode())
            if self._wait_connected(libpq):
                return libpq
            text = " ".join(libpq.get_error_message().split())
            errors.append(text or f"connection to {options.get('host')!r} failed: no answer for {self._seconds:g} s")
            libpq.finish()
        raise LostError("; ".join(errors))

    def _addresses(self, errors: list[str]) -> Iterator[dict[str, Any]]:
        """Yield the connection options of each address, and append errors of name lookups to `errors`.

        libpq could also look up the names of hosts, but this would hold the interpreter's lock.
        """
        for options in self._hosts:
            host = options.get("host", "")
            if not host or host.startswith(("/", "@")) or "hostaddr" in options:
                yield options
                continue
            try:
                addresses = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
            except (OSError, UnicodeError) as error:
                errors.append(f"could not translate host name {host!r} to address: {error}")
                continue
            yield from ({**options, "hostaddr": address[0]} for *_, address in addresses)

    def _wait_connected(self, libpq: Any) -> bool:
        """Wait until the connection is open. Return False if connecting failed or timed out."""
        deadline = time.monotonic() + self._seconds
        event = select.POLLOUT  # libpq's documentation requires that the wait begins with this event
        while libpq.status != pq.ConnStatus.BAD:
            poll = select.poll()  # libpq can change the socket in each round
            poll.register(libpq.socket, event)
            if not poll.poll(max(0, deadline - time.monotonic()) * 1000):
                return False
            status = libpq.connect_poll()
            if status == pq.PollingStatus.OK:
                return True
            if status not in _WAITS:
                return False
            event = _WAITS[status]
        return False
