"""Recorded verdicts: the operation that records them, their kind of record, and a filter for `list_sessions`.

A recorded verdict counts only while it is the session's last record, because later records could change the reward. It
also counts only if this server evaluated the session: a verdict copied by a replay doesn't count.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pydantic import Field
from typing_extensions import override

from toolpack_server.base.errors import TooLargeError
from toolpack_server.engine.jobs import StartClock, deadline_error
from toolpack_server.engine.state import Effect, SessionState
from toolpack_server.features.evaluation.episodes.progress import Episodes
from toolpack_server.features.evaluation.tasks.results import Verdict, VerdictRecord
from toolpack_server.jsonio.strict import dumps, loads
from toolpack_server.protocol.parameters import Parameters
from toolpack_server.sessions.context import SessionContext
from toolpack_server.sessions.hooks import SessionFilter
from toolpack_server.sessions.operation import SessionOperation
from toolpack_server.sessions.record_kinds import RecordKind, Shown
from toolpack_server.stores.base import StoredSession

_MEMBERS = ("task", "reward", "passed", "checks", "metrics", "valid", "failure", "perturbed", "reactions")
_OWN = "verdict"  # private field that marks verdicts of this server; clients can't set it


class VerdictOperation(SessionOperation):
    """Evaluates a session and records the verdict. Later operations on the session wait until this operation is done.

    Args:
        evaluate: Returns the verdict. It accepts the session's state and a function that it calls with the evaluator's
            deadline in seconds, to start the deadline.
        ends: Whether the verdict ends the agent's part, just as an answer does.
    """

    after_commits = True
    kind = "evaluate"
    lane = "authors"
    record_kind = "verdict"
    starts_clock = True

    def __init__(
        self,
        context: SessionContext,
        session_id: str,
        owner: str,
        evaluate: Callable[[SessionState, Callable[[float], None]], Verdict],
        *,
        ends: bool,
    ) -> None:
        super().__init__(context, session_id, owner)
        self._evaluate = evaluate
        self._ends = self.is_told = ends  # watchers are notified, because participants that wait must stop
        self._episodes = Episodes.of(context)
        self._thread = 0  # the thread that runs the evaluator, whose stack the error of a missed deadline shows
        self._seconds = context.settings.timeout_seconds

    @override
    def change(self, state: SessionState, start_clock: StartClock) -> Effect:
        """Evaluate the session and record the verdict, unless the last record is an equal verdict of this server."""
        self._thread = threading.get_ident()

        def start(seconds: float) -> None:
            self._seconds = seconds
            start_clock(seconds, seconds)

        start(self._seconds)
        verdict = self._evaluate(state, start)
        members = {name: value for name, value in verdict.items() if name in _MEMBERS and value is not None}
        size, max_size = len(dumps(members)), self.context.settings.max_record_bytes
        if size > max_size:
            raise TooLargeError(
                f"The verdict has {size} bytes; a record can have {max_size}: shorten the task's checks or metrics."
            )
        ends = self._ends and self._episodes.progress(state).ended is None  # a session can end only once
        if state.index >= 0 and not ends:
            (record,) = self.context.store.records(self.session_id, state.index - 1, 1)
            shown, private = map(loads, self.context.records.read(self.session_id, record))
            if (private or {}).get(_OWN) and _has_members(shown, members):
                return Effect(verdict)
        change = Effect(verdict, {**members, "ends": True} if ends else members)
        change.private[_OWN] = True
        return change

    @override
    def on_timeout(self, state: SessionState) -> Effect:
        raise deadline_error(self._thread, self._seconds)


def _has_members(shown: Mapping[str, Any], members: Mapping[str, Any]) -> bool:
    """Return whether a record contains exactly these fields of a verdict.

    Null counts as missing, because older servers wrote null for missing fields.
    """
    return {name: shown[name] for name in _MEMBERS if shown.get(name) is not None} == members


class VerdictKind(RecordKind):
    """Record kind of a verdict. Forks don't inherit verdicts."""

    name = "verdict"
    shape = VerdictRecord
    title = "verdict on {task}"
    content = "checks"
    inherited = False

    @override
    def ends(self, shown: Shown) -> bool:
        return bool(shown.get("ends"))


class VerdictRequest(Parameters):
    passed: bool | None = Field(
        None,
        description="List only sessions whose last record is a verdict with this `passed`.",
    )


class VerdictFilter(SessionFilter):
    """Filter of `list_sessions` that selects sessions by their recorded verdict."""

    def __init__(self, context: SessionContext) -> None:
        self._store = context.store
        self._records = context.records

    @override
    def predicate(self, request: Parameters) -> Callable[[StoredSession], bool] | None:
        passed = request.passed if isinstance(request, VerdictRequest) else None
        return None if passed is None else lambda session: self._passed(session.id) is passed

    def _passed(self, session_id: str) -> bool | None:
        """Return `passed` of a session's recorded verdict, or None if the last record isn't a verdict that counts."""
        entry = self._store.get(session_id)
        records: Sequence[Any] = ()
        if entry and entry[1].index >= 0:  # the session has records
            records = self._store.records(session_id, entry[1].index - 1, 1)  # only the last record
        for record in records:
            verdict = recorded_verdict(*map(loads, self._records.read(session_id, record)))
            if verdict is not None:
                return verdict["passed"]
        return None


def recorded_verdict(shown: Mapping[str, Any], private: Mapping[str, Any] | None) -> Verdict | None:
    """Return the verdict in a record, or None if the record isn't a verdict of this server.

    Args:
        shown: The fields that clients see.
        private: The fields that only the server reads.
    """
    if not (private or {}).get(_OWN):
        return None
    # Records omit fields without a value, so the defaults are added.
    members = {"valid": True, "failure": None, "perturbed": {}, "reactions": None, **shown}
    return {name: members[name] for name in Verdict.__annotations__}  # type: ignore[return-value]
