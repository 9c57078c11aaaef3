"""What a feature with HTTP paths may import besides `api`, which imports no web framework.

The rule: nothing is defined here.
"""

from server.web.endpoints import Gateway
from server.web.feature_endpoint import FeatureEndpoint, FeatureRequest, FeatureSocket

__all__ = ["FeatureEndpoint", "FeatureRequest", "FeatureSocket", "Gateway"]
