"""The settings of the Open Reward Standard's paths."""

from typing import Literal

from pydantic import Field

from toolpack_server.features.api.core import FeatureSettings


class OrsSettings(FeatureSettings, feature="ors"):
    rewards: Literal["end", "each"] = Field(
        "end", description="When episodes of ORS get rewards: once, at their end, or with each call, so far."
    )
    ttl_seconds: float = Field(
        3600, gt=0, le=315_360_000, description="How long an episode of ORS lives after its last call or ping."
    )
