"""What a feature with HTTP paths may import besides `api`, which imports no web framework.

The rule: nothing is defined here.
"""

from server.features.http_paths import FeatureEndpoint, FeatureRequest, FeatureSocket
from server.web.endpoints import Gateway

__all__ = ["FeatureEndpoint", "FeatureRequest", "FeatureSocket", "Gateway"]
