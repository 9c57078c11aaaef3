"""The settings of replays and bundles."""

from typing import Annotated

from pydantic import BeforeValidator, Field, SecretStr

from server.base.settings import stripped
from server.features.api import FeatureSettings


class ReplaySettings(FeatureSettings, feature="replay"):
    bundle_key: Annotated[SecretStr | None, BeforeValidator(stripped)] = Field(
        None, min_length=16, description="Key of the hash on bundles; default: derived from the key of the snapshots."
    )
