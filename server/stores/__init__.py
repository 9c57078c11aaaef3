"""Stores of sessions: one protocol (`base`), three stores, and `open_store`, which opens the one that a URL names.

The rule: only this package knows databases, and no store knows another. All pass one contract test.
"""

from collections.abc import Mapping
from pkgutil import resolve_name
from types import MappingProxyType

from server.base.errors import SettingsError
from server.base.store_url import StoreUrl
from server.stores.base import SessionStore

__all__ = ["SessionStore", "open_store", "opener"]


STORES = {
    "memory": "server.stores.memory.store:MemoryStore.from_url",
    "sqlite": "server.stores.sqlite.store:SqliteStore.from_url",
    "redis": "server.stores.redis.store:RedisStore.from_url",
    "rediss": "server.stores.redis.store:RedisStore.from_url",
}
"""What opens a store, as an import path, by the scheme of its URL: only the store in use is loaded."""


def opener(url: str, others: Mapping[str, str]) -> str:
    """Get the import path of what opens the store that a URL names; raises as `open_store`."""
    found = {**STORES, **others}.get(StoreUrl(url).scheme)
    if found is None:
        also = "".join(f", {scheme}://…" for scheme in others)
        raise SettingsError(f"{url!r} names no store: use memory:, sqlite:///path or redis://host:port/0{also}.")
    return found


def open_store(url: str, *, exclusive: bool = True, others: Mapping[str, str] = MappingProxyType({})) -> SessionStore:
    """Open the store that a URL names.

    Args:
        url: `memory:`, `sqlite:///path`, `redis://…`, or that of another store.
        exclusive: No other process uses it; an embedded store then locks its data and needs no leases.
        others: Further stores: import paths of functions that open one, by the scheme of its URL.

    Raises:
        SettingsError: The URL is wrong, or the store can't be opened.
    """
    store: SessionStore = resolve_name(opener(url, others))(url, exclusive=exclusive)
    return store
