"""Feature of the SQLite store."""

from collections.abc import Mapping
from typing import ClassVar

from toolpack_server.wiring.feature import Feature


class SqliteFeature(Feature):
    name = "sqlite"
    stores: ClassVar[Mapping[str, str]] = {
        "sqlite": "toolpack_server.features.stores.sqlite.store:SqliteStore.from_url"
    }
