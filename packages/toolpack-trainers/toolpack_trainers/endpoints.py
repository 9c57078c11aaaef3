"""Base class of the HTTP endpoints of all trainers' protocols."""

from typing import Any

from starlette.responses import Response

from toolpack_server.features.api.http import FeatureEndpoint, FeatureRequest

UNAVAILABLE = 503


class EpisodeEndpoint(FeatureEndpoint):
    """An endpoint of a trainer's protocol."""

    def status_of(self, error: Exception) -> int:
        """Return the HTTP status of an error: 503 at most, so that clients don't take it for a bug of the server."""
        return min(super().status_of(error), UNAVAILABLE)


class BodyEndpoint(EpisodeEndpoint):
    """An endpoint with a body of its own form. A subclass implements `read` and `answer_to`."""

    async def answer(self, request: FeatureRequest) -> Response:
        return await self.answer_to(await self.parsed(request, self.read), request)

    def read(self, content: Any) -> Any:
        """Return a request's JSON in the form that `answer_to` takes. This method may run in a thread.

        Raises:
            HttpRefusedError: The JSON has another form.
        """
        raise NotImplementedError

    async def answer_to(self, body: Any, request: FeatureRequest) -> Response:
        """Return the response to a request with this body. Raise the same errors as `answer`."""
        raise NotImplementedError
