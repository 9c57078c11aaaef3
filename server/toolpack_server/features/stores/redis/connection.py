"""Connection of the Redis store. This module checks the Redis server and retries requests.

All commands and scripts that this module sends are atomic and idempotent. So if the response was lost, a request is
sent again for some seconds. After that, `OverloadedError` is raised.
"""

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from toolpack_server.base.errors import OverloadedError, SettingsError

try:
    import redis
    from redis.backoff import NoBackoff
    from redis.retry import Retry

    from toolpack_server.features.stores.redis.scripts import Scripts
except ImportError:
    raise SettingsError("A redis:// store needs redis-py: pip install 'toolpack-server[redis]'.") from None

SCHEMA = b"1"
MIN_VERSION = (6, 2)
ANSWER_SECONDS = 2.0  # timeout for one response, in seconds
GIVE_UP_SECONDS = 5.0  # seconds after which no further attempt is made

UNREACHABLE = "The store can't be reached: send the request again, with the same call_id."
FULL_BYTES = 2**20  # a Redis with less free memory counts as full
FULL = "The Redis store is full: close sessions or raise its maxmemory; nothing was changed."

# Temporary errors: a lost connection, a primary that has become a replica, a server that is loading its data.
TEMPORARY = (redis.ConnectionError, redis.TimeoutError, redis.exceptions.ReadOnlyError)


class RedisConnection:
    """Connections to one Redis server: one for each thread that uses it at the same time.

    Args:
        url: The URL of the Redis server, in redis-py's format.
        prefix: Prefix of all keys.

    Raises:
        SettingsError: The URL is wrong.
    """

    def __init__(self, url: str, prefix: str) -> None:
        self._prefix = prefix
        try:
            self._client: Any = redis.Redis.from_url(
                url, socket_timeout=ANSWER_SECONDS, socket_connect_timeout=ANSWER_SECONDS, retry=Retry(NoBackoff(), 0)
            )
            pool = self._client.connection_pool
            pool.connection_class(**pool.connection_kwargs)  # detects wrong options now
        except (TypeError, ValueError) as error:
            reason = re.sub("'.*'", "…", str(error))  # omit the quoted text, which might contain a password
            if isinstance(error, TypeError):
                reason = "it has an option that redis-py doesn't know"
            raise SettingsError(f"The store's URL is wrong: {reason.rstrip('.')}.") from None
        self._scripts = Scripts(self._client.connection_pool, Path(__file__).with_name("script.lua").read_bytes())

    def open(self) -> None:
        """Check that the Redis server can be used.

        Raises:
            SettingsError: The server is too old, is a cluster, or contains data with another schema.
            OverloadedError: The server can't be used now.
        """
        server = self._send(self._client.info)
        version = tuple(map(int, server["redis_version"].split(".")[:2]))
        if version < MIN_VERSION:
            raise SettingsError(f"Redis {server['redis_version']} is too old: 6.2 or newer is needed.")
        if server.get("cluster_enabled"):
            raise SettingsError("Redis Cluster isn't supported: use a Redis with one primary, or postgresql://…")
        schema = self.command("GET", self.key("schema"))
        if schema is None:
            self.check()
        elif schema != SCHEMA:
            raise SettingsError(
                f"The Redis store has schema {schema.decode(errors='replace')}, but this toolpack-server needs schema "
                f"{SCHEMA.decode()}: run the version that wrote it, or choose another database number in the URL."
            )

    def check(self) -> None:
        """Check that Redis accepts writes. Raise `OverloadedError` if it is full or read-only."""
        # A Redis that can't write refuses this command, even though the command changes nothing.
        self.command("SET", self.key("schema"), SCHEMA, "NX")
        memory = self._send(lambda: self._client.info("memory"))
        if 0 < memory.get("maxmemory", 0) < memory["used_memory"] + FULL_BYTES:
            raise OverloadedError(FULL)

    def key(self, name: str) -> str:
        """Return a key with the prefix."""
        return self._prefix + name

    def run(self, step: str, *arguments: str | bytes | float) -> Any:
        """Run a step of `script.lua`. Raise `OverloadedError` if Redis can't be used now."""
        return self._send(lambda: self._scripts.run((step, self._prefix, *arguments)))

    def command(self, *words: str | bytes | float) -> Any:
        """Send a command. Raise `OverloadedError` if Redis can't be used now."""
        return self._send(lambda: self._client.execute_command(*words))

    def close(self) -> None:
        """Close all connections."""
        self._scripts.close()
        self._client.close()

    def _send(self, request: Callable[[], Any]) -> Any:
        """Call `request`, which sends one command or script to Redis, and return the response.

        After a temporary error, call it again, for at most `GIVE_UP_SECONDS`.

        Raises:
            OverloadedError: Redis can't be reached, is full, or refuses the command.
        """
        deadline = time.monotonic() + GIVE_UP_SECONDS
        delay = 0.0  # the first retry is immediate, because usually only an idle connection was closed
        while True:
            try:
                return request()
            except TEMPORARY as error:
                if isinstance(error, redis.AuthenticationError) or time.monotonic() + delay > deadline:
                    raise OverloadedError(UNREACHABLE) from error
            except redis.RedisError as error:  # for example, Redis can't write to its disk
                if isinstance(error, redis.exceptions.OutOfMemoryError) or "OOM" in str(error):
                    raise OverloadedError(FULL) from error
                raise OverloadedError("The store refuses to change anything now; nothing was changed.") from error
            time.sleep(delay)
            delay = min(max(2 * delay, 0.02), 1.0)


def unusable(error: OverloadedError) -> SettingsError:
    """Return the error for a Redis that can't be used when the server starts."""
    reason = str(error.__cause__ or error).rstrip(".")
    return SettingsError(f"The Redis store can't be used: {reason}. Correct --store, or start it.")
