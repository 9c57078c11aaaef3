"""Settings of the Open Reward Standard's endpoints."""

from typing import Literal

from pydantic import Field

from toolpack_server.features.api.core import FeatureSettings


class OrsSettings(FeatureSettings, feature="ors"):
    rewards: Literal["end", "each"] = Field(
        "end", description="When ORS episodes get rewards: once at the end, or the reward so far with each call."
    )
    ttl_seconds: float = Field(
        3600, gt=0, le=315_360_000, description="Time to live of an ORS episode after its last use or ping, in seconds."
    )
