"""The NeMo Gym feature: the endpoints of a resources server."""

from toolpack_server.features.api.core import Feature
from toolpack_trainers.nemo_gym.episodes import GymEpisodes
from toolpack_trainers.routes import SHARED

COOKIE = "toolpack_session"

_ENDPOINTS = "toolpack_trainers.nemo_gym.endpoints"


class NemoGymFeature(Feature):
    name = "nemo_gym"
    needs = ("tasks",)
    after = ("mcp", "openenv", "ors")  # after these features, so that their paths aren't interpreted as functions
    services = (GymEpisodes,)
    about = "POST /seed_session, /verify and /{function}, or /reset and /step, play tasks for the agents of NeMo Gym."
    cookies = {
        COOKIE: ("/mcp/{key}",)
    }  # agents get the path from /seed_session; their models choose the paths of other requests
    routes = {
        **SHARED,
        "/ng-rollout/{rollout}/reset": f"{_ENDPOINTS}:GymResetEndpoint",
        "/ng-rollout/{rollout}/step": f"{_ENDPOINTS}:GymStepEndpoint",
        "/nemo_gym/{toolpack}.jsonl": f"{_ENDPOINTS}:RowsEndpoint",
        "/reverify_mode": f"{_ENDPOINTS}:ReverifyEndpoint",
        **{
            f"{rollout}/{path}": f"{_ENDPOINTS}:{endpoint}"
            for rollout in ("", "/ng-rollout/{rollout}")
            for path, endpoint in {
                "seed_session": "SeedEndpoint",
                "verify": "VerifyEndpoint",
                "close_session": "CloseEndpoint",
                "aggregate_metrics": "MetricsEndpoint",
                "{function}": "FunctionEndpoint",
            }.items()
        },
    }
