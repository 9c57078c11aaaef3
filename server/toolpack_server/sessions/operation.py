"""Base classes of operations on a session, and of hooks around operations.

`SessionOperation` handles the deadline, repeated call_ids, the record, the quotas and the answer. A subclass implements
the change. Hooks of features run before and after the change. The record and the change are stored in one commit. A
refused operation changes nothing and has no record.
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

LINK_LATE = "The events before this call took too long, so the call wasn't run. Send it again."


class SessionFacts(NamedTuple):
    """Facts about a session that never change. All its operations share one object.

    Attributes:
        recipe: The recipe.
        hooks: The operation hooks that concern the session.
    """

    recipe: Recipe
    hooks: "tuple[OperationHook, ...]"


def check_facts(context: SessionContext, session: StoredSession) -> SessionFacts:
    """Check a session that was read from the store, and return its facts.

    Raise the errors of `SessionContext.check_session`.
    """
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
        record_kind: Name of the record's kind.
        starts_clock: Whether the operation starts the clock of its deadline itself. Otherwise `steps` starts it.
        by: Name of the address that received the request, or `client`.
        facts: Facts about the session. `steps` sets them before it calls `prepare`.
        trace: Trace of the call. None if no feature traces calls.
        hook_scratch: Data that a hook passes from `before` to `after`, by hook.
        links: Number of operations that hooks have run before this operation.
        is_told: Whether watchers are notified after the operation.
        on_unheard: Callback on the event loop, if the operation ends after its caller has stopped waiting.
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
        """Return the parameters that a repeated request must have in common with the first request."""
        raise NotImplementedError

    def repeated(self, record: Record, shown: Mapping[str, Any], private: Mapping[str, Any]) -> Any:
        """Return the answer to a repeated request from the record of the first request.

        Args:
            record: The record.
            shown: The members of the record that clients see.
            private: The members that only the server reads, including those of `private_members`.
        """
        raise NotImplementedError

    def change(self, state: SessionState, start_clock: StartClock) -> Effect:
        """Run the operation, and return its effect. The method runs in a thread and may block."""
        raise NotImplementedError

    def private_members(self, change: Effect) -> Mapping[str, Any]:  # noqa: ARG002 - a subclass uses it
        """Return the private members of the record that `repeated` needs."""
        return {}

    def too_large(self, error: TooLargeError) -> Any:
        """Return the answer for an operation that exceeds a quota, or raise the error. Nothing is committed."""
        raise error

    # Common behaviour

    def changing(self, state: SessionState, start_clock: StartClock) -> Steps[Effect]:
        """Run `change` as a generator without steps. A subclass may yield coroutines, which the caller awaits."""
        return self.change(state, start_clock)
        yield  # makes the method a generator

    def steps(self, state: SessionState[SessionFacts], start_clock: StartClock) -> Steps[Effect]:
        """Run the operation with its hooks, and return its effect with the record.

        A repeated request, or a hook with an answer, ends the operation without a record.
        """
        context, facts = self.context, state.facts
        if facts is None:
            facts = state.facts = check_facts(context, state.session)
        self.facts = facts
        feature_options = facts.recipe.feature_options
        limited = self.by != CLIENT and feature_options
        if limited:  # `prepare` may run a toolpack's code to determine the address's functions, so it has a deadline
            start_clock(context.settings.timeout_seconds, context.settings.timeout_seconds)
        seconds = self.prepare(state)
        if limited:
            start_clock(float("inf"))
        self._started_at = time.time()
        if not self.starts_clock:
            start_clock(seconds)
        if self.recorded_call_id is not None and not self.links:  # with links, this was done before the first link
            # Records of earlier operations that aren't stored yet are in `state.uncommitted`.
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
        """Return the record of an earlier request with the same call_id, and its two lines as JSON objects.

        Return None if there is no such record.

        Args:
            feature_options: Feature data of the session's recipe.
            uncommitted: Records that may not be stored yet, by stored call_id.

        Raises:
            CallIdReusedError: The record belongs to another request.
        """
        call_id = self.recorded_call_id or ""
        parameters = dumps([self.method, *self.asked()], sort_keys=True)  # sorted: the order of members is irrelevant
        self._digest = hashlib.blake2b(parameters, digest_size=16).hexdigest()
        if self.by != CLIENT and feature_options and self.context.addresses.named.of(feature_options):
            # In a session with several addresses, each address has its own call_ids.
            call_id = self.recorded_call_id = f"{self.by}/{self.call_id}"
        stored = stored_call_id(call_id, self.by)
        record = uncommitted.get(stored) or self.context.store.record_of_call(self.session_id, stored)
        if record is None:
            return None
        return record, *self.context.records.read_repeated(self.session_id, record, self._digest)

    def record(self, state: SessionState, change: Effect) -> Record:
        """Call the hooks' `after`, and return the operation's record."""
        for hook in self.facts.hooks:
            hook.after(self, state, change)
        private = change.private
        if self._digest is not None:
            private = {"digest": self._digest, **self.private_members(change), **private}
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
        """Return the effect of a missed deadline, or raise the error for the caller."""
        raise DeadlineError(self.late.format(self.context.settings.timeout_seconds))

    def link_timeout_error(self, error: Exception | None) -> Exception:  # noqa: ARG002 - a subclass uses it
        """Return the caller's error, because an operation that a hook has run before this one missed its deadline."""
        return OverloadedError(LINK_LATE)

    def ended_unheard(self) -> None:
        """Handle the end of the operation, if its caller has stopped waiting."""
        if self.on_unheard is not None:
            self.on_unheard()


class OperationHook(SessionHook):
    """Hook of a feature around the operations on sessions. A subclass overrides the methods that it needs.

    `before` raises a `RequestError` to refuse an operation. The hook is called only if `concerns` returns True for the
    session.

    A hook can derive its own state from a session's records, and cache this state in `state.hook_state[self]`. The
    cache belongs to the session's last record. It is lost when the session is read from the store again.
    """

    def before(self, operation: SessionOperation, state: SessionState, start_clock: StartClock) -> Any:
        """Prepare an operation. The method runs in the operation's thread and may block.

        It isn't called for a repeated request. It returns:

        - None, to continue.
        - An `Effect` with `next`, to run other operations first: `next` is the first of them. If the last operation's
          `next` is this operation, it runs again from its beginning. Call `CallOperation.restart` before you return.
        - Any other value, as the answer. The operation then doesn't run and isn't recorded.

        To record a call without running its function, set `CallOperation.outcome` and return None.
        """

    def unfinished(self, session: StoredSession, head: Head) -> SessionOperation | None:
        """Return an operation that runs the pending consequences of the session's last record, or None.

        Consequences, such as events, are pending if the server was too busy to run them. If the hook must run a
        toolpack's code to know that, it returns an operation that runs the code. The method may read the store.
        """

    def after(self, operation: SessionOperation, state: SessionState, change: Effect) -> None:
        """Process the effect of an operation before the effect is recorded.

        The method may add to `change.members`, `change.private` and `change.hook_state`. It may replace
        `change.answer`. The agent then gets the new answer, now and if it repeats the request. After a missed deadline
        the method is called under a lock, so it must be quick.
        """
