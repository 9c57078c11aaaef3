"""Further public names for features that serve HTTP paths.

This module only re-exports names. They aren't in `api.core`, because that module must not import a web framework.
"""

from toolpack_server.web.endpoints import Gateway
from toolpack_server.web.event_stream import event, signs_of_life, stream_response
from toolpack_server.web.feature_endpoints import FeatureEndpoint, FeatureRequest, FeatureSocket

__all__ = ["FeatureEndpoint", "FeatureRequest", "FeatureSocket", "Gateway", "event", "signs_of_life", "stream_response"]
