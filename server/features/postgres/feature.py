"""What Postgres adds to the server."""

from server.features.api import Feature


class PostgresFeature(Feature):
    name = "postgres"
    stores = dict.fromkeys(("postgres", "postgresql"), "server.features.postgres.store:PostgresStore.from_url")
