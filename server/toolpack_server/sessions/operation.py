"""What happens for every operation on a session, whatever it does.

The clock, the answer to a repeated call_id, the record, the quotas and the result are
here and nowhere else. A subclass says what is its own, and features hang on both sides of it. A record and what the
operation has changed are one commit; what is refused leaves neither.
"""

import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from toolpack_server.base.errors import DeadlineError, TooLargeError
from toolpack_server.base.times import timestamp
from toolpack_server.engine.jobs import LaneName, StartClock
from toolpack_server.engine.state import NONE, Effect, SessionState, added_bytes
from toolpack_server.functions.steps import Steps
from toolpack_server.observability.trace_context import trace_context
from toolpack_server.observability.tracing import CallTrace
from toolpack_server.protocol.senders import CLIENT
from toolpack_server.sessions.context import SessionContext
from toolpack_server.sessions.hooks import SessionHook
from toolpack_server.sessions.recipes import Recipe
from toolpack_server.sessions.records import request_digest, stored_call_id
from toolpack_server.stores.base import Record, StoredSession


class SessionFacts(NamedTuple):
    """What operations know of a session that has proved to be as it was created.

    Attributes:
        hooks: Those that have to do with the session.
    """

    recipe: Recipe
    hooks: "tuple[OperationHook, ...]"


def check_facts(context: SessionContext, session: StoredSession) -> SessionFacts:
    """Check a session that is used for the first time since it was read; raise as `SessionContext.check_session`."""
    context.check_session(session)
    hooks = (each for each in context.operation_hooks if isinstance(each, OperationHook) and each.concerns(session))
    return SessionFacts(Recipe.of(session), tuple(hooks))


class SessionOperation:
    """An operation on a session; the engine's `Operation` says when its methods are called.

    To refuse it, `prepare` and `change` raise a `RequestError`; then nothing has changed.

    Args:
        owner: The owner that the session must have.
        call_id: The idempotency key of the request, if it has one.

    Attributes:
        method: The method of JSON-RPC that asks for it.
        kind: Operations of one kind take about the same time; by default those of one method.
        lane: The lane that limits it, unless its kind is known to be quick.
        record_kind: The name of the kind of its record.
        starts_clock: It starts its clock itself, later than others do.
        by: Whose address it came to, or `client`.
        facts: What is known of the session, from `prepare` on.
        trace: What is noted of it; None if nobody wants to know.
        notes: What each of those around the operation keeps between `before` and `after`.
        is_told: Watchers are told of it.
        late: The error text of a missed deadline, of so many seconds.
    """

    after_commits = False
    cancelled = False
    kind = ""
    lane: LaneName = "functions"
    method = ""
    record_kind = ""
    starts_clock = False
    by = CLIENT
    notes: Mapping[Any, Any] = NONE
    is_told = False
    facts: SessionFacts
    trace: CallTrace | None = None
    late = "The request took longer than {:g} s; nothing has changed."

    def __init__(self, context: SessionContext, session_id: str, owner: str, call_id: str | None = None) -> None:
        self.session_id = session_id
        self.owner = owner
        self.call_id = call_id
        self.recorded_call_id = call_id  # by which the record has it
        self.context = context
        self._trace_context = trace_context.get()
        self._started_at = 0.0
        self._digest: str | None = None

    def __init_subclass__(cls) -> None:
        cls.kind = cls.kind or cls.method

    # What a subclass says

    def prepare(self, state: SessionState) -> float:  # noqa: ARG002 - a subclass uses it
        """Check the request itself, and get its deadline in seconds."""
        return self.context.settings.timeout_seconds

    def asked(self) -> Sequence[Any]:
        """Get what a repeated request must have in common with the first one."""
        raise NotImplementedError

    def repeated(self, record: Record, shown: Mapping[str, Any], private: Mapping[str, Any]) -> Any:
        """Get the answer from the record of the same request.

        Args:
            shown: What clients see of the record.
            private: What only the server reads of it, `kept` included.
        """
        raise NotImplementedError

    def change(self, state: SessionState, start_clock: StartClock) -> Effect:
        """Do it, in a thread; may block."""
        raise NotImplementedError

    def kept(self, change: Effect) -> Mapping[str, Any]:  # noqa: ARG002 - a subclass uses it
        """Get what the answer to a repeated request needs besides the record."""
        return {}

    def too_large(self, error: TooLargeError) -> Any:
        """Get the answer where the quotas have no room for the record, or raise."""
        raise error

    # What all have in common

    def changing(self, state: SessionState, start_clock: StartClock) -> Steps[Effect]:
        """Do what `change` does, but let somebody else await the coroutines."""
        return self.change(state, start_clock)
        yield  # which makes it a generator

    def steps(self, state: SessionState[SessionFacts], start_clock: StartClock) -> Steps[Effect]:
        context, facts = self.context, state.facts
        if facts is None:
            facts = state.facts = check_facts(context, state.session)
        self.facts = facts
        kept = facts.recipe.kept
        limited = self.by != CLIENT and kept
        if limited:  # what the address has may be for a loader to say
            start_clock(context.settings.timeout_seconds, context.settings.timeout_seconds)
        seconds = self.prepare(state)
        if limited:
            start_clock(float("inf"))
        self._started_at = time.time()
        if not self.starts_clock:
            start_clock(seconds)
        if self.recorded_call_id is not None:
            self._digest = request_digest(self.method, *self.asked())
            if limited and context.addresses.named.of(kept):
                self.recorded_call_id = f"{self.by}/{self.call_id}"  # each address has its own
            # An operation that doesn't wait for the commits before it finds their records in the state.
            stored = stored_call_id(self.recorded_call_id, self.by)
            record = state.uncommitted.get(stored) or context.store.record_of_call(self.session_id, stored)
            if record is not None:
                lines = context.records.read_repeated(self.session_id, record, self._digest)
                return Effect(self.repeated(record, *lines))
        for each in facts.hooks:
            answer = each.before(self, state, start_clock)
            if answer is not None:
                return Effect(answer)
        change = yield from self.changing(state, start_clock)
        if change.members is None:
            return change
        record = change.record = self.record(state, change)
        try:
            context.quotas.check_session(state, added_bytes(record, change.new_blobs))
        except TooLargeError as error:
            return Effect(self.too_large(error))
        return change

    def record(self, state: SessionState, change: Effect) -> Record:
        """Write the record, with what those around the operation add to it."""
        for each in self.facts.hooks:
            each.after(self, state, change)
        private = change.private
        if self._digest is not None:
            private = {"digest": self._digest, **self.kept(change), **private}
        if self._trace_context is not None:
            private = {**private, **self._trace_context.members()}
        shown = {"index": state.index + 1, "kind": self.record_kind}
        if self.call_id is not None:
            shown["call_id"] = self.recorded_call_id
        shown.update(change.members or {})
        shown["version"] = state.version + change.versions
        shown["started_at"] = timestamp(self._started_at)
        shown["duration_ms"] = round(change.seconds * 1000, 3)
        return self.context.records.write(self.session_id, shown, private or None)

    def on_timeout(self, state: SessionState) -> Effect:  # noqa: ARG002 - a subclass uses it
        raise DeadlineError(self.late.format(self.context.settings.timeout_seconds))


class OperationHook(SessionHook):
    """What one feature does around the operations on sessions; a subclass overrides what it needs.

    To refuse an operation, `before` raises a `RequestError`.

    A session with which no feature has to do costs nothing.

    `state.memo[self]` is what it remembers of a session as of its last record. It is gone whenever the session was read
    from the store anew.
    """

    def before(self, operation: SessionOperation, state: SessionState, start_clock: StartClock) -> Any:
        """Prepare an operation, in its thread, after a repeated request has got its answer; may block.

        Anything but None is the answer at once: nothing is done, and nothing recorded. To have a call answered and
        recorded without running its function, set `CallOperation.outcome`.
        """

    def after(self, operation: SessionOperation, state: SessionState, change: Effect) -> None:
        """Look at what an operation has done before that is recorded.

        It may add to `change.members`, `change.private` and `change.memo`, and replace `change.answer`: the agent, and
        the repeat of its request, then hear that instead. After a missed deadline it must be brief, as it is called
        under a lock.
        """
