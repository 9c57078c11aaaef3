"""How far a session is: how many calls each of its addresses has used, and whether its answer was submitted.

This is known from the last record of a session, which says it of all before, and from nothing else. Whoever
makes the next record writes it down again. Sessions whose addresses have all functions, without a limit, have none of
it.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from typing_extensions import override

from toolpack_server.base.errors import AnsweredError, CallError, InvalidParamsError
from toolpack_server.engine.jobs import StartClock
from toolpack_server.engine.state import Effect, SessionState
from toolpack_server.execution.call import Outcome
from toolpack_server.execution.failure import CallFailure, Failure
from toolpack_server.jsonio.strict import loads
from toolpack_server.protocol.results import PartFailure
from toolpack_server.protocol.senders import AGENT, CLIENT
from toolpack_server.sessions.addresses import Address
from toolpack_server.sessions.calls import CallOperation, wrong_arguments
from toolpack_server.sessions.context import SessionContext
from toolpack_server.sessions.operation import OperationHook, SessionOperation
from toolpack_server.sessions.record_kinds import RecordKind, Shown
from toolpack_server.stores.base import StoredSession


class EpisodeOverError(CallError):
    """The agent has submitted its answer, or has used up the calls of its task."""


class Progress(NamedTuple):
    """How far a session is."""

    calls: Mapping[str, int] = {}  # that each address has made on the path
    ended: int | None = None  # the index of the record that ends it, such as the answer's, if that is on the path
    ending: "Ending | None" = None  # what that record says, if it may not be stored yet

    @classmethod
    def read(cls, private: Mapping[str, Any]) -> "Progress":
        """Get it from the line of a record that only the server reads; a number counts the agent's calls."""
        calls, ended = private["progress"]
        return cls(calls if isinstance(calls, dict) else {AGENT: calls} if calls else {}, ended)

    def written(self) -> list[Any]:
        others = self.calls.keys() - {AGENT}
        return [self.calls if others else self.calls.get(AGENT, 0), self.ended]

    def after(self, kind: RecordKind, shown: Shown, index: int) -> "Progress":
        """Get it as of the next record, which doesn't go back on the path."""
        if kind.ends(shown):
            return self._replace(ended=index, ending=Ending(kind.answer(shown), kind.failure(shown)))
        by = shown.get("by", CLIENT)
        if not kind.is_call or by == CLIENT:
            return self
        more = 1 + len(shown.get("nested", ()))
        return self._replace(calls={**self.calls, by: self.calls.get(by, 0) + more})


class Ending(NamedTuple):
    """The end of the part of all addresses: the answer, or how a participant has failed; neither: a verdict."""

    answer: str | None
    failure: PartFailure | None

    def __str__(self) -> str:
        if self.failure:
            return "a participant has failed"
        return "the session has been evaluated" if self.answer is None else "the answer has been submitted"


class ProgressChecker:
    """Checks, for records that come in a bundle, that each says of those before it what they show.

    Args:
        began_as_fork: The records before the first one aren't there, so what that says of them is taken as it is.
    """

    def __init__(self, *, began_as_fork: bool) -> None:
        self._last = None if began_as_fork else Progress()
        self._ends: dict[int, Progress] = {0: Progress()}  # by version

    def add(self, kind: RecordKind, shown: Shown, private: Mapping[str, Any]) -> None:
        """Check the next record.

        Raises:
            InvalidParamsError: It says something else.
        """
        index, version = shown["index"], shown["version"]
        back_to = kind.goes_back_to(shown)
        try:
            said = Progress.read(private)
            if self._last is None:
                own = Progress().after(kind, shown, index)
                inherited = {by: count - own.calls.get(by, 0) for by, count in said.calls.items()}
                self._last = self._ends[0] = Progress(inherited)
                if min(inherited.values(), default=0) < 0:
                    raise ValueError
            expected = self._last.after(kind, shown, index) if back_to is None else self._ends[back_to]
            if said.written() != expected.written():
                raise ValueError
        except (KeyError, TypeError, ValueError):
            raise InvalidParamsError(
                f"Record {index} of the bundle says something else of the calls before it than their records."
            ) from None
        self._last = self._ends[version] = expected


class Episodes(OperationHook):
    """Knows how far sessions are, writes it down in each record, and ends what their addresses may do."""

    def __init__(self, context: SessionContext) -> None:
        self._addresses = context.addresses
        self._store = context.store
        self._records = context.records
        self._paths = context.paths
        self._kinds = context.record_kinds

    @staticmethod
    def of(context: SessionContext) -> "Episodes":
        return next(each for each in context.operation_hooks if isinstance(each, Episodes))

    @override
    def concerns(self, session: StoredSession) -> bool:
        return not self._addresses.is_plain(session)

    @override
    def before(self, operation: SessionOperation, state: SessionState, start_clock: StartClock) -> Outcome | None:
        if operation.by == CLIENT or not isinstance(operation, CallOperation):
            return None
        address = self._addresses.of(state.session, operation.by)
        progress = self.progress(state)
        why = self.over(state.session.id, address, progress)
        if why:
            return Outcome(failure=CallFailure.of(EpisodeOverError(why), Failure.EPISODE_OVER))
        if address.max_calls is not None:
            wanted, left = 1 + len(operation.plan.nested), address.max_calls - progress.calls.get(address.name, 0)
            if wanted > left:
                whose = "the task's" if address.answers else "your"
                operation.refuse(
                    wrong_arguments(
                        f"With those that are nested in it this is {wanted} calls; {left} of {whose} "
                        f"{address.max_calls} are left: nest fewer.",
                        "too_many_calls",
                    )
                )
        return None

    @override
    def after(self, operation: SessionOperation, state: SessionState, change: Effect) -> None:
        shown = change.members or {}
        kind = self._kinds[operation.record_kind]
        back_to = kind.goes_back_to(shown)
        if back_to is not None:
            progress = self.stored(state.session, self._paths.end(state.session.id, back_to, state.index))
        else:
            progress = self.progress(state).after(kind, shown, state.index + 1)
        change.private["progress"], change.memo[self] = progress.written(), progress

    def progress(self, state: SessionState) -> Progress:
        """Get how far a session is that an operation has, and that this concerns."""
        return state.remembered(self, lambda: self.stored(state.session, state.index))

    def stored(self, session: StoredSession, last: int) -> Progress:
        """Get how far a session is by what is stored; `last` is the index of the last record to take into account."""
        if last < 0:
            return Progress(self._inherited_calls(session))
        return Progress.read(loads(self._paths.private(session.id, last)))

    def _inherited_calls(self, session: StoredSession) -> Mapping[str, int]:
        """Count the calls on the ancestors' part of a path: the last record there says it of all before."""
        point = session.parent
        while point is not None:
            before = self._paths.before(point)
            last = self._paths.end(point.session_id, point.version, point.last)
            if last >= 0:
                return Progress.read(loads(self._paths.private(point.session_id, last))).calls
            point = before
        return {}

    def ending(self, session_id: str, progress: Progress) -> Ending | None:
        """Get what has ended a session's part; None if it goes on."""
        if progress.ended is None or progress.ending is not None:
            return progress.ending
        (record,) = self._store.records(session_id, progress.ended - 1, 1)
        shown = loads(self._records.read(session_id, record)[0])
        kind = self._kinds[shown["kind"]]
        return Ending(kind.answer(shown), kind.failure(shown))

    def check_open(self, state: SessionState, otherwise: str) -> None:
        """Refuse what needs a session that goes on; raises `AnsweredError`, which says what follows `otherwise`."""
        ending = self.ending(state.session.id, self.progress(state))
        if ending is not None:
            raise AnsweredError(f"{str(ending).capitalize()}, so {otherwise}.")

    def over(self, session_id: str, address: Address, progress: Progress) -> str | None:
        """Say why no further call is run at an address; None if it goes on."""
        ending = self.ending(session_id, progress)
        if ending is not None:
            return f"{ending}, so no further call is run."
        most = address.max_calls
        if most is not None and progress.calls.get(address.name, 0) >= most:
            if not address.answers:
                return f"all {most} of your calls are used, so no further one is run."
            return f"all {most} calls of the task are used, so no further one is run: submit an answer."
        return None
