"""Base class of the HTTP endpoints of all trainers' protocols."""

from toolpack_server.features.api.http import FeatureEndpoint

UNAVAILABLE = 503


class EpisodeEndpoint(FeatureEndpoint):
    """An endpoint of a trainer's protocol."""

    def status_of(self, error: Exception) -> int:
        """Return the HTTP status of an error: 503 at most, so that clients don't take it for a bug of the server."""
        return min(super().status_of(error), UNAVAILABLE)
