"""One Redis of several that are one store, a shard: it is there, or lost since it gave no answer.

The rule: what needs a lost one is refused at once; meanwhile a thread looks whether it answers again.
"""

import logging
import threading
from collections.abc import Callable, Sequence
from typing import TypeVar
from urllib.parse import urlsplit

from toolpack_server.base.errors import OverloadedError, SettingsError
from toolpack_server.features.stores.redis.connection import UNREACHABLE, RedisConnection, is_lost
from toolpack_server.features.stores.redis.store import PREFIX, RedisStore

T = TypeVar("T")

log = logging.getLogger("toolpack_server")

PATIENCE = 1.0  # seconds for an answer, with all attempts: calls on other shards may wait beside it
LOOK_SECONDS = 0.25  # between looks at a lost shard
NOT_THIS = "it is another shard, or one of another store: correct --store."
EMPTY = (
    "it isn't one of the store's, or has lost all its data. If it was the one that is missing, have it begin anew: "
    "redis-cli SET toolpack:shard {}"
)


class Shard:
    """One Redis of several.

    Attributes:
        label: Its address, without the password.
        name: Its name; "" until it is known.
        lost: It can't be used now.
    """

    def __init__(self, url: str) -> None:
        self.store = RedisStore(RedisConnection(url, PREFIX, PATIENCE))
        parts = urlsplit(url)
        self.label = f"{parts.hostname or 'localhost'}:{parts.port or 6379}{parts.path}"
        self.name = ""
        self.lost = False
        self._lock = threading.Lock()
        self._closed = threading.Event()

    def do(self, step: Callable[[RedisStore], T]) -> T:
        """Do a step of its store, or raise `OverloadedError`."""
        if self.lost:
            raise OverloadedError(UNREACHABLE)
        try:
            return step(self.store)
        except OverloadedError as error:
            if is_lost(error):
                with self._lock:
                    begins, self.lost = not self.lost, True
                if begins:
                    self.look_after(self._come_back, error)
            raise

    def blobs(self, ids: Sequence[str]) -> dict[str, bytes]:
        """Get blobs, for whoever keeps them outside and asks each shard which it has."""
        return self.do(lambda store: store.blobs(ids))

    def look_after(self, come_back: Callable[[], None], error: OverloadedError) -> None:
        """Look whether it can be used again, until it can."""
        self.lost = True
        log.warning(
            "The store's shard %s can't be reached: its sessions are refused until it answers (%s)",
            self.label,
            error.__cause__ or error,
        )
        threading.Thread(target=self._look, args=(come_back,), name="shard", daemon=True).start()

    def _look(self, come_back: Callable[[], None]) -> None:
        said = ""
        while not self._closed.wait(LOOK_SECONDS):
            try:
                come_back()
            except OverloadedError:
                continue
            except SettingsError as error:
                if said != str(error):
                    said = str(error)
                    log.error("The store's shard %s can't be used: %s", self.label, said)  # noqa: TRY400 - it says all
                continue
            self.lost = False
            log.warning("The store's shard %s answers again", self.label)
            return

    def _come_back(self) -> None:
        self.store.open()
        name, _ = self.store.place()
        if name != self.name:
            raise SettingsError(NOT_THIS if name else EMPTY.format(self.name))

    def close(self) -> None:
        self._closed.set()
        self.store.close()
