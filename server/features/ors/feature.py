"""What the Open Reward Standard adds to the server."""

from server.features.api import Feature
from server.features.ors.settings import OrsSettings

_ENDPOINTS = "server.features.ors.endpoints"


class OrsFeature(Feature):
    name = "ors"
    needs = ("tasks",)
    about = "The paths of the Open Reward Standard, such as /create and /{env}/call, play tasks for its clients."
    settings = OrsSettings
    routes = {
        "/health": f"{_ENDPOINTS}:Health",
        "/version": f"{_ENDPOINTS}:Version",
        "/list_environments": f"{_ENDPOINTS}:Environments",
        "/create_session": f"{_ENDPOINTS}:NewId",
        "/delete_session": f"{_ENDPOINTS}:OldId",
        "/create": f"{_ENDPOINTS}:Create",
        "/ping": f"{_ENDPOINTS}:Ping",
        "/delete": f"{_ENDPOINTS}:Delete",
        **{
            f"{env}/{path}": f"{_ENDPOINTS}:{endpoint}"
            for env in ("", "/{env}")
            for path, endpoint in {
                "tools": "Tools",
                "splits": "Splits",
                "tasks": "Tasks",
                "num_tasks": "NumTasks",
                "task": "Task",
                "task_range": "TaskRange",
                "prompt": "Prompt",
                "task_tools": "TaskTools",
                "messages": "Messages",
                "call": "Call",
                "score_group": "ScoreGroup",
            }.items()
        },
    }
