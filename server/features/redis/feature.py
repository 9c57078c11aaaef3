"""What Redis adds to the server."""

from server.features.api import Feature


class RedisFeature(Feature):
    name = "redis"
    stores = dict.fromkeys(("redis", "rediss"), "server.features.redis.shards:opened")
