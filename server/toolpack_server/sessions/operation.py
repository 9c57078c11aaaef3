"""Base class of operations on a session, and of the hooks around them.

The base class handles the deadline, repeated call_ids, the record, the quotas and the result. A subclass implements the
change itself. Hooks of features run before and after it. The record and the change are one commit; a refused operation
has neither.
"""

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from toolpack_server.base.errors import DeadlineError, OverloadedError, TooLargeError
from toolpack_server.base.times import timestamp
from toolpack_server.engine.jobs import LaneName, StartClock
from toolpack_server.engine.state import NONE, Effect, SessionState, added_bytes
from toolpack_server.functions.steps import Steps
from toolpack_server.jsonio.strict import dumps
from toolpack_server.observability.trace_context import trace_context
from toolpack_server.observability.tracing import CallTrace
from toolpack_server.protocol.senders import CLIENT
from toolpack_server.sessions.context import SessionContext
from toolpack_server.sessions.hooks import SessionHook
from toolpack_server.sessions.recipes import Recipe
from toolpack_server.sessions.records import stored_call_id
from toolpack_server.stores.base import Head, Record, StoredSession

LINK_LATE = "What had to happen before this call took too long; the call wasn't run. Send it again."


class SessionFacts(NamedTuple):
    """Checked facts about a session, which all its operations share.

    Attributes:
        hooks: The operation hooks that concern the session.
    """

    recipe: Recipe
    hooks: "tuple[OperationHook, ...]"


def check_facts(context: SessionContext, session: StoredSession) -> SessionFacts:
    """Check a session at its first use after it was read. Raises the errors of `SessionContext.check_session`."""
    context.check_session(session)
    hooks = (hook for hook in context.operation_hooks if isinstance(hook, OperationHook) and hook.concerns(session))
    return SessionFacts(Recipe.of(session), tuple(hooks))


class SessionOperation:
    """Operation on a session. The engine's `Operation` documents when each method is called.

    `prepare` and `change` raise a `RequestError` to refuse the operation. Nothing has changed then.

    Args:
        owner: Required owner of the session.
        call_id: Idempotency key of the request, if it has one.

    Attributes:
        method: JSON-RPC method of the operation.
        kind: Operations of one kind take about the same time. Default: the method.
        lane: Lane that limits slow operations.
        record_kind: Name of the kind of its record.
        starts_clock: The operation starts its clock itself, later than the base class would.
        by: Name of the address that received the request, or `client`.
        facts: Facts about the session. `steps` sets them before it calls `prepare`.
        trace: Trace of the call. None if no feature traces it.
        hook_scratch: Data of hooks between `before` and `after`, by hook.
        links: Number of operations that hooks have run before this one.
        is_told: Watchers are notified after the operation.
        on_unheard: Called on the event loop when the operation ends after its caller has stopped waiting.
        late: Error message of a missed deadline. `{:g}` is replaced by the seconds.
    """

    after_commits = False
    cancelled = False
    kind = ""
    lane: LaneName = "functions"
    method = ""
    record_kind = ""
    starts_clock = False
    by = CLIENT
    hook_scratch: Mapping[Any, Any] = NONE
    links = 0
    is_told = False
    on_unheard: Callable[[], None] | None = None
    facts: SessionFacts
    trace: CallTrace | None = None
    late = "The request took longer than {:g} s; nothing has changed."

    def __init__(self, context: SessionContext, session_id: str, owner: str, call_id: str | None = None) -> None:
        self.session_id = session_id
        self.owner = owner
        self.call_id = call_id
        self.recorded_call_id = call_id  # the form of the call_id in the record
        self.context = context
        self._trace_context = trace_context.get()
        self._started_at = 0.0
        self._digest: str | None = None

    def __init_subclass__(cls) -> None:
        cls.kind = cls.kind or cls.method

    # Methods for subclasses to implement

    def prepare(self, state: SessionState) -> float:  # noqa: ARG002 - a subclass uses it
        """Check the request, and return its deadline in seconds."""
        return self.context.settings.timeout_seconds

    def asked(self) -> Sequence[Any]:
        """Return the parameters that a repeated request must have in common with the first one."""
        raise NotImplementedError

    def repeated(self, record: Record, shown: Mapping[str, Any], private: Mapping[str, Any]) -> Any:
        """Return the answer to a repeated request from the record of the first one.

        Args:
            shown: The members of the record that clients see.
            private: The members that only the server reads, including those of `feature_options`.
        """
        raise NotImplementedError

    def change(self, state: SessionState, start_clock: StartClock) -> Effect:
        """Run the operation in a thread. The method may block."""
        raise NotImplementedError

    def feature_options(self, change: Effect) -> Mapping[str, Any]:  # noqa: ARG002 - a subclass uses it
        """Return private data for the record, which the answer to a repeated request needs."""
        return {}

    def too_large(self, error: TooLargeError) -> Any:
        """Return the answer if the quotas have no room for the record, or raise the error."""
        raise error

    # Common behaviour

    def changing(self, state: SessionState, start_clock: StartClock) -> Steps[Effect]:
        """Run `change` as a generator, whose driver awaits the coroutines that it yields."""
        return self.change(state, start_clock)
        yield  # makes the method a generator

    def steps(self, state: SessionState[SessionFacts], start_clock: StartClock) -> Steps[Effect]:
        context, facts = self.context, state.facts
        if facts is None:
            facts = state.facts = check_facts(context, state.session)
        self.facts = facts
        feature_options = facts.recipe.feature_options
        limited = self.by != CLIENT and feature_options
        if limited:  # a toolpack's loader may determine the address's functions, so a deadline is needed
            start_clock(context.settings.timeout_seconds, context.settings.timeout_seconds)
        seconds = self.prepare(state)
        if limited:
            start_clock(float("inf"))
        self._started_at = time.time()
        if not self.starts_clock:
            start_clock(seconds)
        if self.recorded_call_id is not None and not self.links:  # if events came first, it was looked up before them
            # The operation may run before earlier commits are stored. Their records are in the state.
            earlier = self.earlier_record(feature_options, state.uncommitted)
            if earlier is not None:
                return Effect(self.repeated(*earlier))
        for hook in facts.hooks:
            answer = hook.before(self, state, start_clock)
            if answer is not None:
                return answer if type(answer) is Effect else Effect(answer)
        change = yield from self.changing(state, start_clock)
        if change.members is None:
            return change
        record = change.record = self.record(state, change)
        try:
            context.quotas.check_session(state, added_bytes(record, change.new_blobs))
        except TooLargeError as error:
            return Effect(self.too_large(error))
        return change

    def earlier_record(
        self, feature_options: Mapping[str, Any], uncommitted: Mapping[str, Record] = NONE
    ) -> tuple[Record, dict[str, Any], dict[str, Any]] | None:
        """Return the record of an earlier request with the same call_id, and both its lines, parsed; None without one.

        Args:
            feature_options: Feature data of the session's recipe.
            uncommitted: Records that may not be stored yet, by stored call_id.

        Raises:
            CallIdReusedError: The record belongs to another request.
        """
        call_id = self.recorded_call_id or ""
        asked = dumps([self.method, *self.asked()], sort_keys=True)  # the order of members makes no difference
        self._digest = hashlib.blake2b(asked, digest_size=16).hexdigest()
        if self.by != CLIENT and feature_options and self.context.addresses.named.of(feature_options):
            call_id = self.recorded_call_id = f"{self.by}/{self.call_id}"  # each address has its own call_ids
        stored = stored_call_id(call_id, self.by)
        record = uncommitted.get(stored) or self.context.store.record_of_call(self.session_id, stored)
        if record is None:
            return None
        return record, *self.context.records.read_repeated(self.session_id, record, self._digest)

    def record(self, state: SessionState, change: Effect) -> Record:
        """Return the operation's record, after the hooks have extended it."""
        for hook in self.facts.hooks:
            hook.after(self, state, change)
        private = change.private
        if self._digest is not None:
            private = {"digest": self._digest, **self.feature_options(change), **private}
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
        """Return the effect of a missed deadline, or raise an error."""
        raise DeadlineError(self.late.format(self.context.settings.timeout_seconds))

    def link_timeout_error(self, error: Exception | None) -> Exception:  # noqa: ARG002 - a subclass uses it
        """Return the error if an operation that a hook has run before this one missed its deadline."""
        return OverloadedError(LINK_LATE)

    def ended_unheard(self) -> None:
        if self.on_unheard is not None:
            self.on_unheard()


class OperationHook(SessionHook):
    """Hook of a feature around the operations on sessions. A subclass overrides the methods that it needs.

    `before` raises a `RequestError` to refuse an operation. Hooks aren't called for sessions that don't concern them.

    `state.hook_state[self]` caches the hook's state of a session as of its last record. It is lost when the session is
    read from the store again.
    """

    def before(self, operation: SessionOperation, state: SessionState, start_clock: StartClock) -> Any:
        """Prepare an operation in its thread. The method may block. Repeated requests are answered before it is called.

        Return None to continue. Any other value is the answer: the operation doesn't run and isn't recorded. To record
        a call without running its function, set `CallOperation.outcome`. To run other operations first, return an
        `Effect` whose `next` is the first of them. If the last one's `next` is this operation, it runs again from its
        beginning; undo what hooks have changed with `CallOperation.restart`.
        """

    def unfinished(self, session: StoredSession, head: Head) -> SessionOperation | None:
        """Return an operation that finishes what the session's last record has set off, or None. It may read the store.

        Such a rest is left if the server was too busy for it. If the hook can't know without running code, it returns
        an operation that finds out.
        """

    def after(self, operation: SessionOperation, state: SessionState, change: Effect) -> None:
        """Process the effect of an operation before it is recorded.

        The method may add to `change.members`, `change.private` and `change.hook_state`. It may replace
        `change.answer`: the agent and a repeated request then get the new answer. After a missed deadline the method
        must be quick, because it is called under a lock.
        """
