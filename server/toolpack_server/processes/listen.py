"""Listening socket that all workers share.

The socket is opened once, before the first worker starts. It stays open while workers are replaced, so that no
connection is refused meanwhile.
"""

import errno
import os
import socket

from toolpack_server.base.errors import SettingsError

BACKLOG = 4096  # maximum number of connections that wait to be accepted; net.core.somaxconn can lower it


def listen(host: str, port: int) -> socket.socket:
    """Open the listening socket.

    Raises:
        SettingsError: The host or port can't be used.
    """
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listener = socket.create_server((host, port), family=family, backlog=BACKLOG)
        # Set this option on the listening socket, because connections inherit it and asyncio sets it only on sockets
        # that it creates. Without the option, Nagle's algorithm delays the second part of a response by 40 ms, until
        # the client acknowledges the first part.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return listener  # noqa: TRY300 - every line above can raise OSError
    except OSError as error:
        remedy = "Choose another --port or --host."
        if error.errno == errno.EADDRINUSE:
            remedy = "Stop what listens there, such as another toolpack-server, or choose another --port."
        raise SettingsError(f"Can't listen on {host}:{port}: {_reason(error)}. {remedy}") from None


def _reason(error: OSError) -> str:
    """Return the reason without the address, which asyncio and the socket module add to the error's own text."""
    unknown = isinstance(error, socket.gaierror) or not error.errno
    return str(error.strerror if unknown else os.strerror(error.errno or 0))
