"""Verdicts that are kept: as records of their sessions, by which lists can be filtered.

A verdict holds for as long as it is the session's last record: whatever comes after it may change what an
evaluator says. Only this server's evaluators make one; a record that a replay has copied is none.
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

_SAID = ("task", "reward", "passed", "checks", "metrics", "valid", "failure", "perturbed")
_OWN = "verdict"  # marks the record, in the line that only the server writes


class VerdictOperation(SessionOperation):
    """Evaluates a session in its turn, and records the verdict; whatever comes meanwhile waits.

    Args:
        evaluate: Returns the verdict on the session in this state. It starts the clock.
        ends: Whether the verdict ends the agent's part, as an answer does.
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
        self._ends = self.is_told = ends
        self._episodes = Episodes.of(context)
        self._thread = 0
        self._seconds = context.settings.timeout_seconds

    @override
    def change(self, state: SessionState, start_clock: StartClock) -> Effect:
        """Record it; the same verdict again is no other."""
        self._thread = threading.get_ident()

        def start(seconds: float) -> None:
            self._seconds = seconds
            start_clock(seconds, seconds)

        start(self._seconds)
        verdict = self._evaluate(state, start)
        members = {name: said for name, said in verdict.items() if name in _SAID and said is not None}
        size, most = len(dumps(members)), self.context.settings.max_record_bytes
        if size > most:
            raise TooLargeError(f"The verdict has {size} bytes; {most} can be recorded: shorten its checks or metrics.")
        ends = self._ends and self._episodes.progress(state).ended is None
        if state.index >= 0 and not ends:
            (record,) = self.context.store.records(self.session_id, state.index - 1, 1)
            shown, private = map(loads, self.context.records.read(self.session_id, record))
            if (private or {}).get(_OWN) and _says(shown, members):
                return Effect(verdict)
        change = Effect(verdict, {**members, "ends": True} if ends else members)
        change.private[_OWN] = True
        return change

    @override
    def on_timeout(self, state: SessionState) -> Effect:
        raise deadline_error(self._thread, self._seconds)


def _says(shown: Mapping[str, Any], members: Mapping[str, Any]) -> bool:
    """Whether a record says the same; records once had null for what isn't set."""
    return {name: shown[name] for name in _SAID if shown.get(name) is not None} == members


class VerdictKind(RecordKind):
    """The record of a verdict; each fork gets its own."""

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
        None, description="Only sessions whose recorded verdict says so, and that have not gone on since."
    )


class VerdictFilter(SessionFilter):
    def __init__(self, context: SessionContext) -> None:
        self._store = context.store
        self._records = context.records

    @override
    def predicate(self, request: Parameters) -> Callable[[StoredSession], bool] | None:
        passed = request.passed if isinstance(request, VerdictRequest) else None
        return None if passed is None else lambda session: self._says(session.id) is passed

    def _says(self, session_id: str) -> bool | None:
        """Get whether a session has passed by its last record; None if that isn't a verdict."""
        found = self._store.get(session_id)
        records: Sequence[Any] = ()
        if found and found[1].index >= 0:
            records = self._store.records(session_id, found[1].index - 1, 1)
        for record in records:
            verdict = recorded_verdict(*map(loads, self._records.read(session_id, record)))
            if verdict is not None:
                return verdict["passed"]
        return None


def recorded_verdict(shown: Mapping[str, Any], private: Mapping[str, Any] | None) -> Verdict | None:
    """Get the verdict that a record of these two lines keeps; None if it is another record, or a copy."""
    if not (private or {}).get(_OWN):
        return None
    kept = {"valid": True, "failure": None, "perturbed": {}, **shown}  # which older verdicts don't have
    return {name: kept[name] for name in Verdict.__annotations__}  # type: ignore[return-value]
