"""Which store a URL names, and opening it: the one in memory, or one that a feature adds.

Only the store in use is imported.
"""

from collections.abc import Iterable
from pkgutil import resolve_name

from toolpack_server.base.errors import SettingsError
from toolpack_server.base.settings import Settings
from toolpack_server.base.store_url import SQLITE, StoreUrl
from toolpack_server.stores.base import SessionStore
from toolpack_server.wiring.feature import Feature
from toolpack_server.wiring.installed import load_features

MEMORY = "toolpack_server.stores.memory:MemoryStore.from_url"


def opener(url: str, features: Iterable[type[Feature]] | None = None) -> str:
    """Get the import path of what opens the store that a URL names; raises as `open_store`."""
    scheme = StoreUrl(url).scheme
    if scheme == "memory":
        return MEMORY
    loaded = load_features() if features is None else features
    others = {each: path for feature in loaded for each, path in feature.stores.items()}
    if scheme not in others:
        also = "".join(f", {SQLITE}path" if each == "sqlite" else f", {each}://…" for each in sorted(others))
        if scheme == "sqlite":
            raise SettingsError(
                "The feature 'sqlite', which has the default store, isn't there: install it or don't leave it out, or "
                f"choose another --store: memory:{also}."
            )
        (named,) = scheme.split(maxsplit=1)[:1] or [""]
        # What follows may have a password.
        raise SettingsError(f"'{named}…' names no store: use memory:{also}.")
    return others[scheme]


def open_store(url: str, *, exclusive: bool = True, features: Iterable[type[Feature]] | None = None) -> SessionStore:
    """Open the store that a URL names.

    Args:
        url: `memory:`, `sqlite:///path`, or that of a feature's store, such as `redis://host`.
        exclusive: No other process uses it; an embedded store then locks its data and needs no leases.
        features: Whose stores there are besides that in memory; default: of the features that are installed.

    Raises:
        SettingsError: The URL is wrong, or the store can't be opened.
    """
    store: SessionStore = resolve_name(opener(url, features))(url, exclusive=exclusive)
    return store


def open_store_of(settings: Settings, features: Iterable[type[Feature]]) -> SessionStore:
    """Open the store of a server, with what its features put around it; raises as `open_store`."""
    loaded = [*features]
    store = open_store(settings.store_url, exclusive=settings.exclusive, features=loaded)
    for feature in loaded:
        for put_around in feature.around_stores:
            store = put_around(store, settings)
    return store
