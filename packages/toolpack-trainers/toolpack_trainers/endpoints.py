"""Base class of the HTTP endpoints of all trainers' protocols."""

from typing import Any

from starlette.responses import Response

from toolpack_server.features.api.http import FeatureEndpoint, FeatureRequest

UNAVAILABLE = 503


class EpisodeEndpoint(FeatureEndpoint):
    """An endpoint of a trainer's protocol."""

    def status_of(self, error: Exception) -> int:
        """Return the HTTP status of an error. It is at most 503, so that clients don't suspect a bug in the server."""
        return min(super().status_of(error), UNAVAILABLE)


class BodyEndpoint(EpisodeEndpoint):
    """An endpoint whose requests have a JSON body. A subclass implements `read` and `answer_to`."""

    async def answer(self, request: FeatureRequest) -> Response:
        return await self.answer_to(await self.parsed(request, self.read), request)

    def read(self, content: Any) -> Any:
        """Validate a request's JSON, and return it in the form that `answer_to` accepts. It can run in a thread.

        Raises:
            HttpRefusedError: The JSON is invalid.
        """
        raise NotImplementedError

    async def answer_to(self, body: Any, request: FeatureRequest) -> Response:
        """Return the response to a request with this body. Raise the same errors as `answer`."""
        raise NotImplementedError
