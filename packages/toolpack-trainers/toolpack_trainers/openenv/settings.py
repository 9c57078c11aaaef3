"""The settings of OpenEnv's paths."""

from typing import Literal

from pydantic import Field

from toolpack_server.features.api.core import FeatureSettings


class OpenEnvSettings(FeatureSettings, feature="openenv"):
    rewards: Literal["end", "each"] = Field(
        "end", description="When episodes of OpenEnv get rewards: once, at their end, or with each call, so far."
    )
    ttl_seconds: float = Field(
        3600, gt=0, le=315_360_000, description="How long an episode of OpenEnv lives after it was last used."
    )
