"""Feature that keeps large blobs outside the store."""

from typing import Any

from toolpack_server.base.errors import SettingsError
from toolpack_server.base.settings import Settings
from toolpack_server.features.stores.blobs.early_upload import UploadBeforeCommit
from toolpack_server.features.stores.blobs.settings import BlobsSettings
from toolpack_server.stores.base import SessionStore
from toolpack_server.wiring.feature import Feature


def outside(store: SessionStore, settings: Settings) -> SessionStore:
    """Return a store that keeps large blobs at `TOOLPACK_BLOBS_URL`, or the same store if this setting isn't set.

    Raises:
        SettingsError: The URL can't be used, or it isn't set although the store already keeps blobs outside.
    """
    own = settings.of(BlobsSettings)
    if own.url:
        from toolpack_server.features.stores.blobs.store import opened  # noqa: PLC0415 - needs an optional library

        wrapped: Any = opened(store, own.url)
        return wrapped  # type: ignore[no-any-return]
    if hasattr(store, "outside_name") and store.outside_name(""):
        store.close()
        raise SettingsError("This store keeps blobs outside it: set TOOLPACK_BLOBS_URL to their location.")
    return store


class BlobsFeature(Feature):
    name = "blobs"
    settings = BlobsSettings
    around_stores = (outside,)
    operation_hooks = (UploadBeforeCommit,)
