"""Opening the store that a URL names: the store in memory, or the store of a feature.

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


def opener_path(url: str, features: Iterable[type[Feature]] | None = None) -> str:
    """Return the import path of the function that opens the store of a URL.

    Raises:
        SettingsError: No store has the URL's scheme.
    """
    scheme = StoreUrl(url).scheme
    if scheme == "memory":
        return MEMORY
    loaded = load_features() if features is None else features
    paths = {other: path for feature in loaded for other, path in feature.stores.items()}
    if scheme not in paths:
        forms = "".join(f", {SQLITE}path" if other == "sqlite" else f", {other}://…" for other in sorted(paths))
        if scheme == "sqlite":
            raise SettingsError(
                "The default store needs the feature 'sqlite', which is missing: install it and don't exclude it, or "
                f"choose another --store: memory:{forms}."
            )
        (shown,) = scheme.split(maxsplit=1)[:1] or [""]
        # Show only the beginning, because the rest of the URL might contain a password.
        raise SettingsError(f"No store has URLs that begin with '{shown}…': use memory:{forms}.")
    return paths[scheme]


def open_store(url: str, *, exclusive: bool = True, features: Iterable[type[Feature]] | None = None) -> SessionStore:
    """Open the store that a URL names.

    Args:
        url: `memory:`, `sqlite:///path`, or the URL of another feature's store, such as `redis://host`.
        exclusive: Whether no other process uses the store. An embedded store then locks its data and needs no leases.
        features: Features whose stores can be used. Default: the installed features.

    Raises:
        SettingsError: The URL is wrong, or the store can't be opened.
    """
    store: SessionStore = resolve_name(opener_path(url, features))(url, exclusive=exclusive)
    return store


def open_store_of(settings: Settings, features: Iterable[type[Feature]]) -> SessionStore:
    """Open the store of a server, wrapped by its features. Raises the errors of `open_store`."""
    loaded = [*features]
    store = open_store(settings.store_url, exclusive=settings.exclusive, features=loaded)
    for feature in loaded:
        for wrap in feature.around_stores:
            store = wrap(store, settings)
    return store
