"""The HTTP paths of all trainers' protocols: the statuses that their clients understand."""

from toolpack_server.features.api.http import FeatureEndpoint

UNAVAILABLE = 503


class EpisodeEndpoint(FeatureEndpoint):
    """A path of a trainer's protocol."""

    def status_of(self, error: Exception) -> int:
        """Return a status that no client takes for an error of this server's code."""
        return min(super().status_of(error), UNAVAILABLE)
