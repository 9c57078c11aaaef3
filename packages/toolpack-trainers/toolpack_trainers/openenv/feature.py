"""The OpenEnv feature: endpoints and settings."""

from toolpack_server.features.api.core import Feature
from toolpack_trainers.openenv.episodes import OpenEnvEpisodes
from toolpack_trainers.openenv.settings import OpenEnvSettings
from toolpack_trainers.routes import SHARED

_ENDPOINTS = "toolpack_trainers.openenv.endpoints"
TOOLPACK = "/openenv/{toolpack}"


class OpenEnvFeature(Feature):
    name = "openenv"
    needs = ("tasks",)
    services = (OpenEnvEpisodes,)
    about = "The paths below /openenv/{toolpack}, such as its WebSocket /ws, play tasks for clients of OpenEnv."
    settings = OpenEnvSettings
    routes = {
        # Also at the root, for servers where one toolpack has tasks. The other root paths belong to ORS and MCP.
        **SHARED,
        f"{TOOLPACK}/reset": f"{_ENDPOINTS}:OpenEnvResetEndpoint",
        f"{TOOLPACK}/step": f"{_ENDPOINTS}:OpenEnvStepEndpoint",
        **{
            f"{toolpack}/{path}": f"{_ENDPOINTS}:{endpoint}"
            for toolpack in ("", TOOLPACK)
            for path, endpoint in {
                "ws": "EpisodeSocket",
                "state": "OpenEnvStateEndpoint",
                "schema": "OpenEnvSchemaEndpoint",
                "metadata": "OpenEnvMetadataEndpoint",
            }.items()
        },
        **{
            f"{TOOLPACK}/{path}": f"{_ENDPOINTS}:{endpoint}"
            for path, endpoint in {
                "health": "OpenEnvHealthEndpoint",
                "openapi.json": "OpenEnvPathsEndpoint",
                "mcp": "OpenEnvMcpEndpoint",
                "list_environments": "OpenEnvEnvironmentsEndpoint",
                "{env}/splits": "OpenEnvSplitsEndpoint",
                "{env}/tasks": "OpenEnvTasksEndpoint",
                "{env}/num_tasks": "OpenEnvNumTasksEndpoint",
                "{env}/task": "OpenEnvTaskEndpoint",
                "{env}/task_range": "OpenEnvTaskRangeEndpoint",
            }.items()
        },
    }
