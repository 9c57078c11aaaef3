"""Feature of the Postgres store."""

from toolpack_server.wiring.feature import Feature


class PostgresFeature(Feature):
    name = "postgres"
    stores = dict.fromkeys(
        ("postgres", "postgresql"), "toolpack_server.features.stores.postgres.store:PostgresStore.from_url"
    )
