"""Address hook for sessions with a task: the agent gets the task's functions, call limit and prompt."""

from dataclasses import replace

from typing_extensions import override

from toolpack_server.features.evaluation.episodes.rights import PARTICIPANTS
from toolpack_server.features.evaluation.tasks.service import Tasks, prompt_of
from toolpack_server.rpc.method import App
from toolpack_server.sessions.addresses import Address, AddressHook
from toolpack_server.sessions.recipes import Recipe
from toolpack_server.stores.base import StoredSession


class TaskAddresses(AddressHook):
    """Sets the agent's permissions from the task.

    In a session with participants, this hook does nothing, because the participants feature sets the permissions of all
    participants.
    """

    def __init__(self, app: App) -> None:
        self._tasks = app.feature(Tasks)

    @override
    def fill(self, session: StoredSession, address: Address) -> Address:
        """Return the agent's address with the task's permissions, or unchanged without a task or with participants."""
        task = None if PARTICIPANTS in Recipe.of(session).feature_options else self._tasks.task(session)
        if task is None:
            return address
        return replace(
            address,
            functions=None if task.functions is None else frozenset(task.functions),
            max_calls=task.max_calls,
            prompt=prompt_of(task),
            answers=True,
        )
