"""Base classes of operations on a session, and of hooks around operations.

`SessionOperation` handles the deadline, repeated call_ids, the record, the quotas and the answer. A subclass implements
the change, and hooks of features run before and after the change. The change and its record are stored in one commit. A
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
    """Facts about a session that never change. All operations of the session share one object.

    Attributes:
        recipe: The recipe.
        hooks: The operation hooks that concern the session.
    """

    recipe: Recipe
    hooks: "tuple[OperationHook, ...]"


def check_facts(context: SessionContext, session: StoredSession) -> SessionFacts:
    """Check a session that was read from the store, and return its facts.

    Raise the same errors as `SessionContext.check_session`.
    """
    context.check_session(session)
    hooks = (hook for hook in context.operation_hooks if isinstance(hook, OperationHook) and hook.concerns(session))
    return SessionFacts(Recipe.of(session), tuple(hooks))


class SessionOperation:
    """Operation on a session. The engine's `Operation` documents when each method is called.

    `prepare` and `change` raise a `RequestError` to refuse the operation, which then changes nothing.

    Args:
        owner: Owner that the session must have.
        call_id: Idempotency key of the request, if it has one.

    Attributes:
        method: JSON-RPC method of the operation.
        kind: Label that groups operations of similar duration, used to predict how long such an operation takes.
            Default: the method.
        lane: Lane of the operation, which limits how many slow operations run at once.
        record_kind: Name of the record's kind.
        starts_clock: Whether the operation itself starts the clock of its deadline. If not, `steps` starts the clock.
        by: Name of the address that received the request, or `client`.
        facts: Facts about the session. `steps` sets this attribute before it calls `prepare`.
        trace: Trace of the call. None if no feature traces calls.
        hook_scratch: Data that a hook passes from `before` to `after`, by hook.
        links: Number of operations that hooks have run ahead of this operation.
        is_told: Whether the server notifies the watchers after the operation.
        on_unheard: Callback for an operation that ends after its caller has stopped waiting. It runs on the event loop.
        late: Error message of a missed deadline. `{:g}` stands for the deadline in seconds.
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
            shown: The record's fields that clients see.
            private: The fields that only the server reads, including those from `private_members`.
        """
        raise NotImplementedError

    def change(self, state: SessionState, start_clock: StartClock) -> Effect:
        """Run the operation, and return its effect. The method runs in a thread and is allowed to block."""
        raise NotImplementedError

    def private_members(self, change: Effect) -> Mapping[str, Any]:  # noqa: ARG002 - a subclass uses it
        """Return the record's private fields, which `repeated` needs."""
        return {}

    def too_large(self, error: TooLargeError) -> Any:
        """Return the answer for an operation that exceeds a quota, or raise the error.

        In both cases, nothing is committed.
        """
        raise error

    # Common behaviour

    def changing(self, state: SessionState, start_clock: StartClock) -> Steps[Effect]:
        """Run `change` as a generator that yields nothing. A subclass can yield coroutines, which the caller awaits."""
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
        if limited:  # To determine the address's functions, `prepare` might run a toolpack's code, so it has a deadline
            start_clock(context.settings.timeout_seconds, context.settings.timeout_seconds)
        seconds = self.prepare(state)
        if limited:
            start_clock(float("inf"))  # that deadline was only for `prepare`
        self._started_at = time.time()
        if not self.starts_clock:
            start_clock(seconds)
        # If hooks have run other operations, the first run has checked this.
        if self.recorded_call_id is not None and not self.links:
            # `state.uncommitted` contains records of earlier operations that aren't stored yet.
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
            uncommitted: Records that might not be stored yet, by stored call_id.

        Raises:
            CallIdReusedError: The record belongs to another request.
        """
        call_id = self.recorded_call_id or ""
        parameters = dumps([self.method, *self.asked()], sort_keys=True)  # sorted: the order of fields is irrelevant
        self._digest = hashlib.blake2b(parameters, digest_size=16).hexdigest()
        if self.by != CLIENT and feature_options and self.context.addresses.named.of(feature_options):
            # If a session has several addresses, two of them might use the same call_id, so add the address's name.
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
        """Return the error for the caller, because an operation that a hook ran first has missed its deadline."""
        return OverloadedError(LINK_LATE)

    def ended_unheard(self) -> None:
        """Handle the end of an operation after its caller has stopped waiting."""
        if self.on_unheard is not None:
            self.on_unheard()


class OperationHook(SessionHook):
    """Hook that a feature runs before and after operations on sessions. A subclass overrides the methods that it needs.

    `before` can raise a `RequestError` to refuse an operation. The server calls the hook only for sessions for which
    `concerns` returns True.

    A hook can derive its own state from a session's records, and cache this state in `state.hook_state[self]`. The
    cached state belongs to the session's last record. It is lost when the server reads the session from the store
    again.
    """

    def before(self, operation: SessionOperation, state: SessionState, start_clock: StartClock) -> Any:
        """Prepare an operation. The method runs in the operation's thread and is allowed to block.

        The method isn't called for a repeated request. It returns:

        - None, to continue.
        - An `Effect` with `next`, to run other operations first. `next` is the first of these operations. If the `next`
          of the last of them is this operation, this operation runs again from its beginning. In this case, call
          `CallOperation.restart` before you return.
        - Any other value, which becomes the answer. The operation then doesn't run and isn't recorded.

        To record a call without running its function, set `CallOperation.outcome` and return None.
        """

    def unfinished(self, session: StoredSession, head: Head) -> SessionOperation | None:
        """Return an operation that runs the pending consequences of the session's last record, or None.

        Consequences, such as events, are pending if the server was too busy to run them. If only a toolpack's code can
        decide whether consequences are pending, the hook returns an operation that runs this code. The method is
        allowed to read the store.
        """

    def after(self, operation: SessionOperation, state: SessionState, change: Effect) -> None:
        """Process the effect of an operation before the effect is recorded.

        The method can add to `change.members`, `change.private` and `change.hook_state`. It can also replace
        `change.answer`. The agent then gets the new answer, now and whenever it repeats the request. After a missed
        deadline, the method is called under a lock, so it must be quick.
        """
