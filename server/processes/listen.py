"""The socket that all workers listen on.

The rule: opened once, before any worker starts, and kept open while workers are replaced.
"""

import socket

from server.errors import SettingsError


def listen(host: str, port: int) -> socket.socket:
    """Open the socket to listen on.

    Raises:
        SettingsError: The address can't be used.
    """
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listener = socket.create_server((host, port), family=family, backlog=2048)
        # Connections inherit it. asyncio sets it on sockets of its own making only; without it an answer, written in
        # two pieces, waits 40 ms for the client's acknowledgement of the first.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return listener  # noqa: TRY300 - one place for all that can fail
    except OSError as error:
        raise SettingsError(
            f"{host}:{port} can't be listened on: {error.strerror}. Choose another --port or --host."
        ) from None
