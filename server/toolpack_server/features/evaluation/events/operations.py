"""Operations for events: an event, the check of a condition, and the run of all due events.

The events hook runs them between the operations of clients and agents.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from typing_extensions import override

from toolpack_server.base.errors import DeadlineError, TooLargeError
from toolpack_server.engine.jobs import StartClock
from toolpack_server.engine.state import Effect, SessionState
from toolpack_server.execution.call import Outcome
from toolpack_server.features.evaluation.event_rules import EventRule
from toolpack_server.features.evaluation.events.timeline import ComingEvent, Timeline
from toolpack_server.functions.steps import Steps
from toolpack_server.jsonio.strict import dumps
from toolpack_server.protocol.senders import AGENT, WORLD
from toolpack_server.sessions.calls import CallOperation, CallRequest
from toolpack_server.sessions.context import SessionContext
from toolpack_server.sessions.operation import SessionOperation
from toolpack_server.stores.base import Record, StoredSession


class FunctionEvent(CallOperation):
    """An event that calls a function. The events hook creates it when the event is due.

    Attributes:
        event: The scheduled event that happens.
        resume: The operation that the event interrupted. It runs after the event.
    """

    def __init__(self, resume: SessionOperation, event: ComingEvent, function: str, args: Mapping[str, Any]) -> None:
        self.event, self.resume = event, resume
        kwargs = {**args}
        super().__init__(resume.context, resume.session_id, resume.owner, CallRequest(function, kwargs, dumps(kwargs)))

    @override
    def _effect(self, outcome: Outcome, seconds: float) -> Effect:
        change = super()._effect(outcome, seconds)
        members = change.members or {}
        members["by"], members["event"] = WORLD, self.event.rule
        return change

    @override
    def too_large(self, error: TooLargeError) -> Outcome:
        """Raise the error, so that the operation fails. For other calls, the error would become the call's result."""
        raise error


class PlainEvent(SessionOperation):
    """An event that calls no function: it offers or withdraws functions, or only adds a record to the trace."""

    method = kind = "event"
    record_kind = "event"

    def __init__(self, resume: SessionOperation, event: ComingEvent, rule: EventRule) -> None:
        super().__init__(resume.context, resume.session_id, resume.owner)
        self.event, self.resume = event, resume
        self._members: dict[str, Any] = {"event": rule.name, "by": WORLD}
        self._members |= {name: [*names] for name in ("offer", "withdraw") if (names := getattr(rule, name))}

    @override
    def change(self, state: SessionState, start_clock: StartClock) -> Effect:
        return Effect(None, {**self._members})


class MessageEvent(PlainEvent):
    """An event that sends a message, either from the world or in the name of a participant."""

    record_kind = "message"

    def __init__(self, resume: SessionOperation, event: ComingEvent, rule: EventRule) -> None:
        super().__init__(resume, event, rule)
        by = rule.sender or WORLD
        self._members |= {"role": "assistant" if by == AGENT else "user", "content": rule.say, "by": by}
        if rule.to is not None:
            self._members["to"] = rule.to


class ConditionCheck(CallOperation):
    """A check of a rule's condition: a call that leaves no record.

    Attributes:
        rule: The rule with the condition.
        resume: The operation that the check interrupted. It runs after the check.
        outcome_of_check: The outcome of the condition's function. None: the function hasn't run yet.

    Args:
        store_result: Callback that stores the result of the finished check.
    """

    def __init__(self, resume: SessionOperation, rule: EventRule, store_result: "StoreResult") -> None:
        when = rule.when or {}
        kwargs = {**when["kwargs"]}
        request = CallRequest(when["call"], kwargs, dumps(kwargs))
        super().__init__(resume.context, resume.session_id, resume.owner, request)
        self.rule, self.resume = rule, resume
        self.outcome_of_check: Outcome | None = None
        self._store_result = store_result

    @override
    def changing(self, state: SessionState, start_clock: StartClock) -> Steps[Effect]:
        """Run the condition's function and store the result. The returned effect continues the interrupted operation.

        This is a generator, as `CallOperation.changing` is: it yields the coroutine of an async function to its caller.
        """
        # Both are read before the check: if it misses its deadline, `state` might belong to a later operation by then.
        last, hook_state = state.last, state.hook_state
        change = yield from super().changing(state, start_clock)
        self._store_result(self, state.session, last, hook_state)
        change.next = self.resume
        return change

    @override
    def _effect(self, outcome: Outcome, seconds: float) -> Effect:
        outcome.drop_changes()
        self.outcome_of_check = outcome
        return Effect(None, seconds=seconds)

    @override
    def on_timeout(self, state: SessionState) -> Effect:
        seconds = self.plan.timeout_seconds if hasattr(self, "plan") else self.context.settings.timeout_seconds
        raise DeadlineError(f"The condition of event {self.rule.name!r} took longer than {seconds:g} s.")


class RunEventsOperation(SessionOperation):
    """Operation that does nothing itself and leaves no record. Before it, the hook runs all due events.

    Attributes:
        until: The events up to this time are run. None: the events up to the session's current time are run.
    """

    method = kind = "events"

    def __init__(self, context: SessionContext, session_id: str, owner: str, until: int | None = None) -> None:
        super().__init__(context, session_id, owner)
        self.until = until

    @override
    def asked(self) -> Sequence[Any]:
        return ()

    @override
    def repeated(self, record: Record, shown: Mapping[str, Any], private: Mapping[str, Any]) -> None:
        """Do nothing: without a call_id, the operation is never a repetition."""

    @override
    def change(self, state: SessionState, start_clock: StartClock) -> Effect:
        return Effect(None)

    @override
    def link_timeout_error(self, error: Exception | None) -> Exception:
        return error or DeadlineError("An event took too long; the session's trace has its record.")


class TimelineOperation(RunEventsOperation):
    """Operation that returns the timeline after all conditions have been checked. No event happens before it.

    The results of conditions are stored only with the session's next record. Until then, only this operation can
    return them.
    """

    def __init__(
        self, context: SessionContext, session_id: str, owner: str, read_timeline: Callable[[SessionState], Timeline]
    ) -> None:
        super().__init__(context, session_id, owner)
        self._read_timeline = read_timeline

    @override
    def change(self, state: SessionState, start_clock: StartClock) -> Effect:
        return Effect(self._read_timeline(state))


StoreResult = Callable[[ConditionCheck, StoredSession, str, dict[Any, Any]], None]
"""Callback that stores the result of a check.

Arguments: the check, the session, the id of the session's last record, and the session's `hook_state`.
"""
