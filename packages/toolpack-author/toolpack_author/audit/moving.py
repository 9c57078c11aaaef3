"""Calls of attempts at tasks with events, which change the world without a call. Only sessions run events."""

import contextlib
from typing import NamedTuple

from toolpack_author.audit.attempts import Calls
from toolpack_server.execution.snapshot import Snapshot
from toolpack_server.features.api.core import Caller, ReplyError
from toolpack_server.features.evaluation.tasks.evaluation import SeenRecord
from toolpack_server.features.evaluation.tasks.service import Tasks
from toolpack_server.features.executors.transport import unseal_part
from toolpack_server.jsonio.strict import dumps
from toolpack_server.sessions.calls import CallRequest
from toolpack_server.wiring.service import Service


class CallResult(NamedTuple):
    """The state of a session after some calls.

    Attributes:
        snapshots: The worlds of the requested version and of all later ones.
        path: The records of the session's history.
        failed: Whether the last call failed.
    """

    snapshots: tuple[Snapshot, ...]
    path: tuple[SeenRecord, ...]
    failed: bool


class MovingSessions:
    """Sessions of one task, in which `Trials` makes the calls of attempts.

    If the current session has made exactly the calls before the new call, the new call runs there. Otherwise a new
    session begins, and makes the earlier calls first.
    """

    def __init__(self, service: Service, task: str) -> None:
        self._service, self._task = service, task
        self._session_id, self._calls = "", Calls()

    async def call(self, calls: Calls, since: int) -> CallResult:
        """Make the last of these calls after the others.

        Args:
            since: The first version whose world is needed.
        """
        if not self._session_id or self._calls != calls[:-1]:
            await self._begin()
            for number in range(len(calls) - 1):
                await self._run(calls[: number + 1])
        failed = await self._run(calls)
        service, heavy = self._service, self._service.sessions.heavy_reader
        tasks = service.feature(Tasks)

        def read(_reader: object) -> CallResult:
            session, head = heavy.find(self._session_id, "")
            evidence, _ = tasks.evidence(heavy, session, head, None, None)
            worlds = [self._unseal(evidence.at(version)) for version in range(since, evidence.version + 1)]
            return CallResult(tuple(worlds), tuple(evidence.path), failed)

        return await service.sessions.read(read)

    async def _begin(self) -> None:
        """Close the session, if there is one, and create a new one."""
        service = self._service
        if self._session_id:
            with contextlib.suppress(ReplyError):
                await service.request(Caller(), "close_session", {"session_id": self._session_id})
        self._calls = Calls()
        self._session_id = (await service.request(Caller(), "create_session", {"task": self._task}))["session_id"]

    async def _run(self, calls: Calls) -> bool:
        """Make the last of these calls. Return whether it failed."""
        function, kwargs, by = calls[-1]
        self._calls = calls
        request = CallRequest(function, kwargs, dumps(kwargs), by=by)
        return (await self._service.sessions.call(self._session_id, "", request)).failure is not None

    def _unseal(self, snapshot: Snapshot) -> Snapshot:
        """Return a snapshot without seals, as the trials use it."""
        codec = self._service.context.codec
        return Snapshot(snapshot.parts, {part: unseal_part(codec, snapshot, part) for part in snapshot.parts})
