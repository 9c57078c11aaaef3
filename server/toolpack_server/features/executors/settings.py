"""The settings of executors."""

from typing import Literal

from pydantic import Field

from toolpack_server.base.settings import FeatureSettings


class ExecutorsSettings(FeatureSettings, feature="executors"):
    most: int = Field(
        16,
        ge=1,
        le=1024,
        description="Processes for toolpacks' code that a worker has, at most; twelve more are for quick functions.",
    )
    memory_bytes: int = Field(
        0, ge=0, le=2**60, description="Memory that such a process may take beyond what it starts with; 0 for any."
    )
    calls: int = Field(0, ge=0, description="Calls after which such a process is replaced; 0 for any number.")
    sandbox: tuple[Literal["files", "network"], ...] = Field(
        (), description="What such a process can't reach: files, network, or both."
    )
