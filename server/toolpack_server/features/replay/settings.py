"""Settings of replays and bundles."""

from pydantic import Field, SecretStr

from toolpack_server.base.settings import FeatureSettings


class ReplaySettings(FeatureSettings, feature="replay"):
    """Settings of bundles. Servers with the same `bundle_key` can import each other's bundles as exact copies."""

    bundle_key: SecretStr | None = Field(
        None, min_length=16, description="Key for the HMAC of bundles; default: derived from the key for snapshots."
    )
