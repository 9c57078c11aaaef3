"""Progress of a session: how many calls each address has used, and whether the session has ended.

Each record stores the progress up to that record, so a worker needs only the last record to know the progress. If every
address of a session offers all functions without a limit on calls, its records don't store the progress.
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
from toolpack_server.protocol.senders import AGENT, CLIENT, WORLD
from toolpack_server.sessions.addresses import Address
from toolpack_server.sessions.calls import CallOperation, wrong_arguments
from toolpack_server.sessions.context import SessionContext
from toolpack_server.sessions.operation import OperationHook, SessionOperation
from toolpack_server.sessions.record_kinds import RecordKind, Shown
from toolpack_server.stores.base import StoredSession


class EpisodeOverError(CallError):
    """A call is refused because the session has ended, or because the caller has used all its calls."""


class Progress(NamedTuple):
    """How many calls each address of a session has used, and whether and how the session has ended."""

    calls: Mapping[str, int] = {}  # number of calls on the path, by address
    ended: int | None = None  # index of the record that ended the session, such as the answer's record
    ending: "Ending | None" = None  # how the session ended; known only here until the record is stored

    @classmethod
    def read(cls, private: Mapping[str, Any]) -> "Progress":
        """Read the progress from a record's private line, which stores a plain number if only the agent made calls."""
        calls, ended = private["progress"]
        return cls(calls if isinstance(calls, dict) else {AGENT: calls} if calls else {}, ended)

    def to_json(self) -> list[Any]:
        """Return the form that `read` accepts. It is short if only the agent has made calls."""
        others = self.calls.keys() - {AGENT}
        return [self.calls if others else self.calls.get(AGENT, 0), self.ended]

    def after(self, kind: RecordKind, shown: Shown, index: int) -> "Progress":
        """Return the progress after the next record. The record must not be a reset."""
        if kind.ends(shown):
            return self._replace(ended=index, ending=Ending(kind.answer(shown), kind.failure(shown)))
        by = shown.get("by", CLIENT)
        if not kind.is_call or by in {CLIENT, WORLD}:
            return self
        count = 1 + len(shown.get("nested", ()))
        return self._replace(calls={**self.calls, by: self.calls.get(by, 0) + count})


class Ending(NamedTuple):
    """How a session ended for all its addresses: by an answer, by a participant's failure, or else by a verdict."""

    answer: str | None
    failure: PartFailure | None

    def __str__(self) -> str:
        if self.failure:
            return "a participant has failed"
        return "the session has been evaluated" if self.answer is None else "the answer has been submitted"


class ProgressChecker:
    """Checks that the progress in each record of a bundle agrees with the records before it.

    Args:
        began_as_fork: Whether the session began as a fork. The bundle then lacks the parent's records, so the progress
            in its first record is trusted.
    """

    def __init__(self, *, began_as_fork: bool) -> None:
        self._last = None if began_as_fork else Progress()
        self._ends: dict[int, Progress] = {0: Progress()}  # by version, for resets

    def add(self, kind: RecordKind, shown: Shown, private: Mapping[str, Any]) -> None:
        """Check the next record.

        Raises:
            InvalidParamsError: The record's progress is wrong.
        """
        index, version = shown["index"], shown["version"]
        back_to = kind.goes_back_to(shown)
        try:
            progress = Progress.read(private)
            if self._last is None:  # the fork's inherited counts are those of its first record, without that record
                own = Progress().after(kind, shown, index)
                inherited = {by: count - own.calls.get(by, 0) for by, count in progress.calls.items()}
                self._last = self._ends[0] = Progress(inherited)
                if min(inherited.values(), default=0) < 0:
                    raise ValueError
            expected = self._last.after(kind, shown, index) if back_to is None else self._ends[back_to]
            if progress.to_json() != expected.to_json():
                raise ValueError
        except (KeyError, TypeError, ValueError):
            raise InvalidParamsError(
                f"Record {index} of the bundle has a progress that disagrees with the records before it."
            ) from None
        self._last = self._ends[version] = expected


class Episodes(OperationHook):
    """Operation hook that stores the progress in each record.

    It refuses participants' calls after the session has ended, and calls above an address's limit.
    """

    def __init__(self, context: SessionContext) -> None:
        self._addresses = context.addresses
        self._store = context.store
        self._records = context.records
        self._paths = context.paths
        self._kinds = context.record_kinds

    @staticmethod
    def of(context: SessionContext) -> "Episodes":
        """Return the server's instance of this hook."""
        return next(hook for hook in context.operation_hooks if isinstance(hook, Episodes))

    @override
    def concerns(self, session: StoredSession) -> bool:
        return not self._addresses.is_plain(session)

    @override
    def before(self, operation: SessionOperation, state: SessionState, start_clock: StartClock) -> Outcome | None:
        """Refuse a participant's call after the session has ended, or if it needs more calls than the participant has.

        If no call is left, return an outcome with the error, which isn't recorded. If only the nested calls (calls that
        are written as arguments) are too many, the call is recorded with an error, and the result is None. The result
        is also None if the call can run.
        """
        if operation.by == CLIENT or not isinstance(operation, CallOperation):
            return None
        address = self._addresses.of(state.session, operation.by)
        progress = self.progress(state)
        reason = self.refusal_reason(state.session.id, address, progress)
        if reason:
            return Outcome(failure=CallFailure.of(EpisodeOverError(reason), Failure.EPISODE_OVER))
        if address.max_calls is not None:
            count, left = 1 + len(operation.plan.nested), address.max_calls - progress.calls.get(address.name, 0)
            if count > left:
                owner = "the task's" if address.answers else "your"
                operation.refuse(
                    wrong_arguments(
                        f"With its nested calls this counts as {count} calls; {left} of {owner} "
                        f"{address.max_calls} are left: nest fewer.",
                        "too_many_calls",
                    )
                )
        return None

    @override
    def after(self, operation: SessionOperation, state: SessionState, change: Effect) -> None:
        """Store the progress in the operation's record and in memory. A reset restores the progress of its version."""
        shown = change.members or {}
        kind = self._kinds[operation.record_kind]
        back_to = kind.goes_back_to(shown)
        if back_to is not None:
            progress = self.stored(state.session, self._paths.end(state.session.id, back_to, state.index))
        else:
            progress = self.progress(state).after(kind, shown, state.index + 1)
        change.private["progress"], change.hook_state[self] = progress.to_json(), progress

    def progress(self, state: SessionState) -> Progress:
        """Return the progress before an operation. The session must store its progress: `concerns` must be true."""
        return state.remembered(self, lambda: self.stored(state.session, state.index))

    def stored(self, session: StoredSession, last: int) -> Progress:
        """Return the stored progress after the record with the index `last`. -1: when the session began."""
        if last < 0:
            return Progress(self._inherited_calls(session))
        return Progress.read(loads(self._paths.private(session.id, last)))

    def _inherited_calls(self, session: StoredSession) -> Mapping[str, int]:
        """Return how many calls a fork inherits, by address. The newest record of its ancestors stores the counts."""
        point = session.parent
        while point is not None:
            before = self._paths.before(point)
            last = self._paths.end(point.session_id, point.version, point.last)
            if last >= 0:
                return Progress.read(loads(self._paths.private(point.session_id, last))).calls
            point = before
        return {}

    def ending(self, session_id: str, progress: Progress) -> Ending | None:
        """Return how a session ended, or None if it is still open."""
        if progress.ended is None or progress.ending is not None:
            return progress.ending
        (record,) = self._store.records(session_id, progress.ended - 1, 1)
        shown = loads(self._records.read(session_id, record)[0])
        kind = self._kinds[shown["kind"]]
        return Ending(kind.answer(shown), kind.failure(shown))

    def check_open(self, state: SessionState, consequence: str) -> None:
        """Check that the session hasn't ended.

        Args:
            consequence: The second half of the error message "<how the session ended>, so <consequence>.".

        Raises:
            AnsweredError: The session has ended.
        """
        ending = self.ending(state.session.id, self.progress(state))
        if ending is not None:
            raise AnsweredError(f"{str(ending).capitalize()}, so {consequence}.")

    def refusal_reason(self, session_id: str, address: Address, progress: Progress) -> str | None:
        """Return the reason why an address can't make another call, or None if it can."""
        ending = self.ending(session_id, progress)
        if ending is not None:
            return f"{ending}, so no further call is run."
        max_calls = address.max_calls
        if max_calls is not None and progress.calls.get(address.name, 0) >= max_calls:
            if not address.answers:  # this participant can't submit an answer, so the message doesn't suggest it
                return f"all {max_calls} of your calls are used, so no further one is run."
            return f"all {max_calls} calls of the task are used, so no further one is run: submit an answer."
        return None
