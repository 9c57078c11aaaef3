"""Runs the store's script in Redis.

On connections of its own, each for one thread while it runs, so a connection is where the last answer ended.
The client of redis-py would check the connection, its health, and the type of each of a commit's many arguments: that
takes three times as much of the processor as this.
"""

import hashlib
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import hiredis
import redis


class Scripts:
    """A script, and idle connections for it, as many as threads have run it at the same time."""

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
        except redis.ResponseError:  # an answer like others
            raise
        except BaseException:
            connection.disconnect()
            self._disconnect()  # the others have mostly ended, too
            raise
        finally:
            self._idle.append(connection)
            if self._closed:
                self._disconnect()

    def _run(self, connection: Any, arguments: Sequence[str | bytes | float]) -> Any:
        try:
            return _send(connection, ("EVALSHA", self._digest, 0, *arguments))
        except redis.exceptions.NoScriptError:
            return _send(connection, ("EVAL", self._text, 0, *arguments))

    def close(self) -> None:
        """Close the connections; a thread that runs the script closes its own."""
        self._closed = True
        self._disconnect()

    def _disconnect(self) -> None:
        """Close idle connections; the next use of one opens it again."""
        with suppress(IndexError):
            for _ in range(len(self._idle)):
                connection = self._idle.popleft()
                connection.disconnect()
                self._idle.append(connection)


def _send(connection: Any, words: tuple[Any, ...]) -> Any:
    connection.send_packed_command([hiredis.pack_command(words)])
    return connection.read_response()
