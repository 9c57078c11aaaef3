"""The Open Reward Standard feature: endpoints and settings."""

from toolpack_server.features.api.core import Feature
from toolpack_trainers.ors.episodes import OrsEpisodes
from toolpack_trainers.ors.settings import OrsSettings

_ENDPOINTS = "toolpack_trainers.ors.endpoints"


class OrsFeature(Feature):
    name = "ors"
    needs = ("tasks",)
    services = (OrsEpisodes,)
    about = "The paths of the Open Reward Standard, such as /create and /{env}/call, play tasks for its clients."
    settings = OrsSettings
    routes = {
        "/health": f"{_ENDPOINTS}:HealthEndpoint",
        "/version": f"{_ENDPOINTS}:VersionEndpoint",
        "/list_environments": f"{_ENDPOINTS}:EnvironmentsEndpoint",
        "/create_session": f"{_ENDPOINTS}:NewIdEndpoint",
        "/delete_session": f"{_ENDPOINTS}:DeleteSessionEndpoint",
        "/create": f"{_ENDPOINTS}:CreateEndpoint",
        "/ping": f"{_ENDPOINTS}:PingEndpoint",
        "/delete": f"{_ENDPOINTS}:DeleteEndpoint",
        **{
            f"{env}/{path}": f"{_ENDPOINTS}:{endpoint}"
            for env in ("", "/{env}")
            for path, endpoint in {
                "tools": "ToolsEndpoint",
                "splits": "SplitsEndpoint",
                "tasks": "TasksEndpoint",
                "num_tasks": "NumTasksEndpoint",
                "task": "TaskEndpoint",
                "task_range": "TaskRangeEndpoint",
                "prompt": "PromptEndpoint",
                "task_tools": "TaskToolsEndpoint",
                "messages": "MessagesEndpoint",
                "call": "CallEndpoint",
                "score_group": "ScoreGroupEndpoint",
            }.items()
        },
    }
