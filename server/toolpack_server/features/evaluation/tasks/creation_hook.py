"""Creation hook that adds a task's toolpacks, options and participants to a new session.

Options and rights in the request take precedence over the task's options and rights.
"""

from collections.abc import Mapping
from typing import Any, cast

from pydantic import Field
from typing_extensions import override

from toolpack_server.base.errors import InvalidParamsError
from toolpack_server.features.evaluation.episodes.rights import PARTICIPANTS, merge_rights
from toolpack_server.features.evaluation.tasks.finding import find_task, tasks_of
from toolpack_server.features.evaluation.tasks.task import SEPARATOR, Task
from toolpack_server.protocol.parameters import SessionRequest
from toolpack_server.sessions.context import SessionContext
from toolpack_server.sessions.hooks import CreationHook


class TaskRequest(SessionRequest):
    task: str | None = Field(
        None,
        description="A task, as toolpack/name. The session gets the task's toolpacks and options. `options` overrides "
        "the task's options, and `toolpacks` adds further toolpacks.",
    )


class TaskCreationHook(CreationHook):
    """Adds the toolpacks, options and participants of the task that a request for a new session names."""

    option_names = frozenset({"task"})

    def __init__(self, context: SessionContext) -> None:
        self._catalog = context.catalog

    @override
    def concerns(self, request: SessionRequest) -> bool:
        return isinstance(request, TaskRequest) and request.task is not None

    @override
    def runs_code(self, request: SessionRequest) -> bool:
        pack = self._catalog.toolpacks.get(_task(request).partition(SEPARATOR)[0])
        return pack is not None and not tasks_of(pack).is_loaded

    @override
    def prepare(self, request: SessionRequest) -> SessionRequest:
        """Return the request with the task's toolpacks, options and participants added.

        Raises:
            InvalidParamsError: There is no such task, or the server lacks the participants feature, which it needs.
        """
        pack, task = find_task(self._catalog, _task(request))
        own = {pack.name: task.options, **task.toolpacks}
        # If the request contains a toolpack's environment, no environment is built, so the task's options don't apply.
        merged = {name: {**options} for name, options in own.items() if name not in request.environment}
        for name, options in request.options.items():
            merged[name] = {**merged.get(name, {}), **options}
        not_empty = {name: options for name, options in merged.items() if options}
        update = {"toolpacks": [*own, *(request.toolpacks or ())], "options": not_empty}
        return request.model_copy(update={**update, **_participants(request, task)})

    @override
    def feature_options(self, request: SessionRequest) -> Mapping[str, Any]:
        return {"task": _task(request)}


def _participants(request: SessionRequest, task: Task) -> dict[str, Any]:
    """Return the parameter `participants`: the task's rights, overridden by the request's rights.

    Return an empty dict if neither the task nor the request names participants.
    """
    requested = getattr(request, PARTICIPANTS, None)
    if requested is None and task.participants:
        raise InvalidParamsError("The task has participants, but this server runs without the participants feature.")
    return {PARTICIPANTS: merge_rights(task.rights(), requested or {})} if requested or task.participants else {}


def _task(request: SessionRequest) -> str:
    return cast("TaskRequest", request).task or ""
