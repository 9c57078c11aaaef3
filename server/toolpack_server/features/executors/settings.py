"""Settings of the feature `executors`."""

from typing import Literal

from pydantic import Field

from toolpack_server.base.settings import FeatureSettings


class ExecutorsSettings(FeatureSettings, feature="executors"):
    max: int = Field(
        16,
        ge=1,
        le=1024,
        description="Maximum number of executors (processes for toolpacks' code) per worker, besides twelve for quick "
        "functions.",
    )
    memory_bytes: int = Field(
        0, ge=0, le=2**60, description="Maximum memory of an executor beyond its memory at the start; 0: no limit."
    )
    calls: int = Field(0, ge=0, description="Number of calls after which an executor is replaced; 0: never.")
    sandbox: tuple[Literal["files", "network"], ...] = Field(
        (), description="Resources that an executor can't reach: files, network, or both."
    )
