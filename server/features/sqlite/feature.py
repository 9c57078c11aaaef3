"""What SQLite adds to the server."""

from collections.abc import Mapping
from typing import ClassVar

from server.features.api import Feature


class SqliteFeature(Feature):
    name = "sqlite"
    stores: ClassVar[Mapping[str, str]] = {"sqlite": "server.features.sqlite.store:SqliteStore.from_url"}
