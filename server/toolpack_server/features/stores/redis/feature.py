"""Feature of the Redis store."""

from toolpack_server.wiring.feature import Feature


class RedisFeature(Feature):
    name = "redis"
    stores = dict.fromkeys(("redis", "rediss"), "toolpack_server.features.stores.redis.store:RedisStore.from_url")
