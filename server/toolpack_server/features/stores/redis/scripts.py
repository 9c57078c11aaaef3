"""Runner of the store's script in Redis, which uses its own connections.

No other thread uses a connection until the whole response was read, so a thread never reads the response to another
request. This module itself sends requests. The client of redis-py would check the connection and the type of each of a
commit's many arguments, which takes three times the CPU time.
"""

import hashlib
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import hiredis
import redis


class Scripts:
    """The store's script, and the idle connections that run it.

    The number of connections grows to the number of threads that run the script at once.
    """

    def __init__(self, pool: Any, text: bytes) -> None:
        self._pool = pool
        self._text = text
        self._digest = hashlib.sha1(text, usedforsecurity=False).hexdigest()
        self._idle: deque[Any] = deque()
        self._closed = False

    def run(self, arguments: Sequence[str | bytes | float]) -> Any:
        """Run the script, or raise `redis.RedisError`."""
        try:
            connection = self._idle.pop()
        except IndexError:
            connection = self._pool.make_connection()
        try:
            return self._run(connection, arguments)
        except redis.ResponseError:  # the response is an error, but it is complete, so the connection stays usable
            raise
        except BaseException:
            connection.disconnect()
            self._disconnect()  # the other connections are probably also broken
            raise
        finally:
            self._idle.append(connection)
            if self._closed:
                self._disconnect()

    def _run(self, connection: Any, arguments: Sequence[str | bytes | float]) -> Any:
        """Run the script by its digest. If Redis doesn't know the script yet, send its text."""
        try:
            return _send(connection, ("EVALSHA", self._digest, 0, *arguments))
        except redis.exceptions.NoScriptError:
            return _send(connection, ("EVAL", self._text, 0, *arguments))

    def close(self) -> None:
        """Close the connections. A thread that is running the script closes its connection afterwards."""
        self._closed = True
        self._disconnect()

    def _disconnect(self) -> None:
        """Close idle connections. A connection reconnects when it is used again."""
        with suppress(IndexError):
            for _ in range(len(self._idle)):
                connection = self._idle.popleft()
                connection.disconnect()
                self._idle.append(connection)


def _send(connection: Any, words: tuple[Any, ...]) -> Any:
    """Send a command, and return the response."""
    connection.send_packed_command([hiredis.pack_command(words)])
    return connection.read_response()
