"""Endpoints of `/reset` and `/step`, which NeMo Gym and OpenEnv both have at the server's root.

A request belongs to NeMo Gym if it carries an episode's cookie, or if its body contains the field
`responses_create_params`, which OpenEnv refuses. Any other request belongs to OpenEnv.
"""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from starlette.responses import Response

from toolpack_server.features.api.http import FeatureRequest, Gateway
from toolpack_trainers.endpoints import BodyEndpoint, EpisodeEndpoint
from toolpack_trainers.nemo_gym.endpoints import GymEndpoint, GymResetEndpoint, GymStepEndpoint
from toolpack_trainers.openenv.endpoints import OpenEnvResetEndpoint, OpenEnvStepEndpoint


class SharedEndpoint(EpisodeEndpoint):
    """Passes a request to the endpoint of its protocol.

    If only one of the two features is loaded, its endpoint receives all requests.
    """

    gym: type[BodyEndpoint]
    openenv: type[BodyEndpoint]

    def __init__(self, gateway: Gateway) -> None:
        super().__init__(gateway)
        self._endpoints: dict[type[BodyEndpoint], BodyEndpoint] = {}
        for kind in (self.gym, self.openenv):
            with suppress(KeyError):  # the feature is left out
                self._endpoints[kind] = kind(gateway)
        self._first = next(iter(self._endpoints.values()))

    def credentials(self, headers: Mapping[bytes, bytes]) -> Mapping[bytes, bytes]:
        return self._first.credentials(headers)

    def refusal(self, status: int, message: str) -> Response:
        return self._first.refusal(status, message)

    async def answer(self, request: FeatureRequest) -> Response:
        """Parse the body once, choose the endpoint by its content and the cookie, and return its response."""
        has_cookie = GymEndpoint.cookie(request) is not None

        def read(content: Any) -> tuple[BodyEndpoint, Any]:
            is_gym = has_cookie or (isinstance(content, dict) and "responses_create_params" in content)
            endpoint = self._endpoints.get(self.gym if is_gym else self.openenv, self._first)
            return endpoint, endpoint.read(content)

        endpoint: BodyEndpoint
        endpoint, body = await self.parsed(request, read)
        return await endpoint.answer_to(body, request)


class ResetEndpoint(SharedEndpoint):
    gym = GymResetEndpoint
    openenv = OpenEnvResetEndpoint


class StepEndpoint(SharedEndpoint):
    gym = GymStepEndpoint
    openenv = OpenEnvStepEndpoint
