"""Operation hook that runs the events of sessions with event rules.

A session with rules has simulated time: each call takes one step, and `wait` takes longer. Before an operation, the
hook runs all events up to the operation's time. After it, the hook runs the events that the operation has set off for
the same time. Each event is an operation with a record; `Effect.next` chains the operations.
"""

import fnmatch
from collections.abc import Callable, Mapping, Sequence
from functools import cache, lru_cache, partial
from typing import Any, NamedTuple

from pydantic import ValidationError
from typing_extensions import override

from toolpack_server.base.cache import BoundedCache
from toolpack_server.base.errors import CallError, VersionConflictError
from toolpack_server.engine.jobs import StartClock
from toolpack_server.engine.state import Effect, SessionState
from toolpack_server.execution.call import Outcome
from toolpack_server.execution.failure import CallFailure, Failure
from toolpack_server.features.evaluation.event_rules import FACTS, SECOND, EventRule, fits, time_text
from toolpack_server.features.evaluation.events.operations import (
    ConditionCheck,
    FunctionEvent,
    LookOperation,
    MessageEvent,
    MoveOperation,
    PlainEvent,
)
from toolpack_server.features.evaluation.events.timeline import ComingEvent, SessionEvents, Timeline
from toolpack_server.features.evaluation.events.world import GET_TIME, WAIT
from toolpack_server.features.evaluation.events.world import NAME as WORLD_PACK
from toolpack_server.features.evaluation.perturbations.counts import COUNTS
from toolpack_server.jsonio.strict import dumps, loads
from toolpack_server.packs.pack_function import PackFunction
from toolpack_server.protocol.senders import AGENT, CLIENT
from toolpack_server.sessions.addresses import View
from toolpack_server.sessions.calls import CallOperation
from toolpack_server.sessions.context import SessionContext
from toolpack_server.sessions.operation import OperationHook, SessionOperation
from toolpack_server.sessions.recipes import Recipe, details_of
from toolpack_server.stores.base import Head, StoredSession

NAME = "events"  # name of the request's parameter, and key of the rules in a session's details
TIMELINE = "timeline"  # key of a timeline in a fork's details and in the private data of records
MAX_CACHED = 1000  # max cache entries: parsed rules, and names of functions
BEFORE_ALL = -(2**62)  # a time before all events
MAX_SETTLED = 10_000  # max sessions in `EventHook._settled`; each takes about 300 bytes
MAX_EVENTS = 1000  # max events before one call, or in one wait


class TooManyEventsError(CallError):
    """More than `MAX_EVENTS` events are due before a call, so the call isn't run."""


class _Wait(NamedTuple):
    """A call of `wait` that the hook answers. `end` is the time at which the wait ends."""

    end: int


class Names:
    """The names of a session's functions. A rule may use a name with or without the toolpack.

    Attributes:
        functions: The functions by their names in the session.
    """

    def __init__(self, functions: Mapping[str, PackFunction]) -> None:
        self.functions = functions
        self._by_spelling = {name: name for name in functions}
        for name, function in functions.items():
            self._by_spelling.setdefault(full_name(function), name)

    def find(self, spelling: str) -> str | None:
        """Return a function's name in the session for a name in a rule, or None for an unknown name."""
        return self._by_spelling.get(spelling)

    def has_match(self, pattern: str) -> bool:
        """Return whether a pattern matches the name of any function."""
        return any(fnmatch.fnmatchcase(name, pattern) for name in self._by_spelling)

    def all_of(self, name: str) -> Sequence[str]:
        """Return all names of a function, given its name in a call. The result is empty for an unknown name."""
        function = self.functions.get(name)
        return () if function is None else (name, function.registered_name, full_name(function))


def full_name(function: PackFunction) -> str:
    return f"{function.toolpack}.{function.registered_name}"


class EventHook(OperationHook):
    """Runs the events of sessions with event rules, and answers calls of `wait` and `get_time`."""

    def __init__(self, context: SessionContext) -> None:
        self._context = context
        self._paths = context.paths
        self._kinds = context.record_kinds
        self.names = lru_cache(maxsize=MAX_CACHED)(lambda toolpacks: Names(context.catalog.functions(toolpacks)))
        self._read = lru_cache(maxsize=MAX_CACHED)(_read_events)
        # For each session without due events: the id of the last record when its conditions were last checked.
        self._settled = BoundedCache[str, str](MAX_SETTLED)

    @override
    def concerns(self, session: StoredSession) -> bool:
        return bool(session.details) and NAME in details_of(session)

    def events(self, session: StoredSession) -> SessionEvents:
        """Return the rules of a session for which `concerns` is true."""
        events: SessionEvents = self._read(session.details)
        return events

    def timeline_at(self, session: StoredSession, last: int) -> Timeline:
        """Return the timeline after the record with the index `last`. -1 means the beginning of the session."""
        if last >= 0:
            return Timeline.read(loads(self._paths.private(session.id, last))[TIMELINE])
        inherited = details_of(session).get(TIMELINE)
        return self.events(session).start() if inherited is None else Timeline.read(inherited)

    def timeline(self, state: SessionState) -> Timeline:
        """Return the timeline after the last record, with the conditions that were checked after that record."""
        return state.remembered(self, lambda: self.timeline_at(state.session, state.index))

    # Before an operation

    @override
    def before(self, operation: SessionOperation, state: SessionState, start_clock: StartClock) -> Effect | None:
        """Run the next due event or check before an operation, or prepare the operation if nothing is due.

        After an event or a check, the operation starts again, so this method runs once more for each of them.
        """
        timeline, events = self.timeline(state), self.events(state.session)
        if isinstance(operation, FunctionEvent | PlainEvent | ConditionCheck):  # this hook has started it
            self._pin(operation, timeline.now if isinstance(operation, ConditionCheck) else operation.event.at)
            return None
        if operation.after_commits:  # resets, messages, answers and verdicts take no time
            return None
        operation.is_told |= events.speaks  # wakes participants that wait for messages of events
        wait = isinstance(operation, CallOperation) and self._wait(operation, timeline)
        if wait:
            until = wait.end
        elif isinstance(operation, CallOperation):
            until = timeline.rest + events.step
        elif isinstance(operation, LookOperation):
            until = BEFORE_ALL  # only conditions are checked; no event is due
        else:
            until = max(timeline.rest, getattr(operation, "until", None) or 0)
        link = self._due(operation, timeline, events, until)
        if link is not None:
            if operation.links < MAX_EVENTS or not isinstance(operation, CallOperation):
                return self._first(operation, link, state)
            if not wait:
                text = f"More than {MAX_EVENTS} events are due before this call: call `wait` first."
                error = TooManyEventsError(text)
                return Effect(Outcome(failure=CallFailure.of(error, Failure.TOO_LARGE, keep_cause=False)))
            wait = _Wait(max(timeline.now, timeline.rest))  # too many events: the wait ends early
        if isinstance(operation, CallOperation):
            self._answer(operation, timeline, wait or None, until)
        return None

    def _due(
        self, resume: SessionOperation, timeline: Timeline, events: SessionEvents, until: int
    ) -> SessionOperation | None:
        """Return the next condition check or event up to a time, or None if nothing is due.

        Args:
            resume: The operation that runs afterwards.
        """
        if timeline.unchecked:
            return ConditionCheck(resume, events.rules[timeline.unchecked[0]], self._checked)
        event = timeline.next_event(until)
        return None if event is None else self._operation(resume, event, events.rules[event.rule])

    def _operation(self, resume: SessionOperation, event: ComingEvent, rule: EventRule) -> SessionOperation:
        """Return the operation that makes an event happen."""
        if rule.say is not None:
            return MessageEvent(resume, event, rule)
        if rule.do is None:
            return PlainEvent(resume, event, rule)
        function = self.names(resume.facts.recipe.toolpacks).find(rule.do) or rule.do
        args = rule.args if event.args is None else event.args
        return FunctionEvent(resume, event, function, args or {})

    @staticmethod
    def _first(operation: SessionOperation, link: SessionOperation, state: SessionState) -> Effect:
        """Return the effect that runs an event or a check (`link`) before an operation.

        Raises:
            VersionConflictError: The session doesn't have the version that the call expects. It is compared here,
                because events increase the version before the call runs.
        """
        operation.links += not isinstance(link, ConditionCheck)
        if isinstance(operation, CallOperation):
            expected = operation.request.expected_version
            if expected is not None and expected != state.version:
                raise VersionConflictError(expected, state.version)
            operation.restart()
        return Effect(None, next=link)

    def _wait(self, operation: CallOperation, timeline: Timeline) -> _Wait | None:
        """Return a call of `wait` with its end. None if the call isn't a wait, or has invalid arguments.

        The hook calls this again after each event, because a notice ends the wait early.
        """
        if not self._is(operation, WAIT):
            return None
        function = operation.plan.runtime.functions[operation.plan.function]
        try:
            arguments = function.parameters.model_validate(operation.request.kwargs)
        except ValidationError:
            return None  # the call itself fails with this error
        began = timeline.rest
        end = began + round(arguments.seconds * SECOND)
        if arguments.until_something_happens and timeline.news:
            end = min(end, max(began, timeline.news[0][0]))
        return _Wait(end)

    @staticmethod
    def _is(operation: CallOperation, name: str) -> bool:
        """Return whether a valid call without nested calls is one of a function of the toolpack `world`."""
        plan, refused = operation.plan, operation.outcome is not None or operation.request.problem
        return plan.toolpack == WORLD_PACK and plan.registered_name == name and not plan.nested and not refused

    def _answer(self, operation: CallOperation, timeline: Timeline, wait: _Wait | None, at: int) -> None:
        """Answer a call of `wait` or `get_time`. Prepare any other call to run at the time `at`."""
        if wait is not None:
            operation.hook_scratch = {**operation.hook_scratch, self: wait}
            news = [text for _, text in timeline.news]
            waited = (wait.end - timeline.rest) / SECOND
            answer = {"time": time_text(wait.end), "waited": waited, "news": news}
            operation.outcome = Outcome(dumps(answer))
        elif self._is(operation, GET_TIME):
            operation.outcome = Outcome(dumps(time_text(at)))
        else:
            self._pin(operation, at)
            self._narrow(operation, timeline)

    @staticmethod
    def _pin(operation: SessionOperation, at: int) -> None:
        """Let the call's function see the simulated time, if the session has a pinned clock."""
        if isinstance(operation, CallOperation) and operation.plan.policy is not None:
            operation.plan.policy = operation.plan.policy.at(at)

    def _narrow(self, operation: CallOperation, timeline: Timeline) -> None:
        """Remove functions that aren't offered now from a participant's call, so that the call can't use them."""
        gone = self._gone(operation.facts.recipe.toolpacks, timeline)
        if not gone or operation.by == CLIENT or operation.outcome is not None:
            return
        names = {*operation.plan.runtime.functions}
        called = {operation.plan.function, *(nested.function for nested in operation.plan.nested)}
        if names & called & gone:
            operation.narrow(frozenset(names - gone))

    def _gone(self, toolpacks: tuple[str, ...], timeline: Timeline) -> set[str]:
        """Return all names in the session of the functions that aren't offered now."""
        withdrawn = self._withdrawn(toolpacks, timeline)
        if not withdrawn:
            return set()
        names = self.names(toolpacks)
        full_names = {full_name(names.functions[name]) for name in withdrawn}
        return {name for name, function in names.functions.items() if full_name(function) in full_names}

    def _withdrawn(self, toolpacks: tuple[str, ...], timeline: Timeline) -> set[str]:
        """Return one name of each function that isn't offered now."""
        names = self.names(toolpacks)
        withdrawn = {names.find(spelling) for spelling, is_shown in timeline.shown.items() if not is_shown}
        return {name for name in withdrawn if name is not None}

    # After an operation

    @override
    def after(self, operation: SessionOperation, state: SessionState, change: Effect) -> None:
        """Compute the timeline after an operation, and chain the next operation if something is due at once."""
        members = change.members if change.members is not None else {}
        timeline, problems = self.timeline(state), list[str]()
        events, delay = self.events(state.session), (change.private.get(COUNTS) or [{}, 0.0])[1]
        back_to = self._kinds[operation.record_kind].goes_back_to(members)
        if back_to is not None:
            last = self._paths.end(state.session.id, back_to, state.index)
            timeline = self.timeline_at(state.session, last)
            timeline = timeline._replace(rest=timeline.now, delay=delay)
        elif isinstance(operation, FunctionEvent | PlainEvent):
            function, failed = self._called(operation), bool(members.get("error"))
            facts = self._facts(change, operation.event.at)
            timeline, problems = events.after_event(timeline, operation.event, function, facts, failed=failed)
            members["at"] = time_text(operation.event.at)
        elif isinstance(operation, CallOperation):
            wait: _Wait | None = operation.hook_scratch.get(self)
            at = timeline.rest + events.step if wait is None else wait.end
            if wait is not None:
                timeline = timeline._replace(news=())
            run = bool(members.get("perturbed", {"run": True})["run"])
            facts = self._facts(change, at)
            timeline, problems = events.after_call(timeline, at, self._called(operation), facts, run=run)
            later = round((delay - timeline.delay) * SECOND)
            timeline = timeline._replace(now=at + later, rest=at + later, delay=delay)
            members["at"] = time_text(at)
            if change.versions and timeline.unanswered and operation.by in {AGENT, CLIENT}:
                timeline, members["reactions"] = events.react(timeline, at)
        if change.versions and not isinstance(operation, MoveOperation):
            timeline = events.after_change(timeline)
        if problems:
            members["problem"] = ". ".join(problems)
        change.private[TIMELINE], change.hook_state[self] = timeline.to_json(), timeline
        if isinstance(operation, FunctionEvent | PlainEvent):
            change.next = operation.resume
        elif _has_due(timeline):
            change.next = MoveOperation(operation.context, operation.session_id, operation.owner)

    def _called(self, operation: SessionOperation) -> Sequence[str]:
        if not isinstance(operation, CallOperation):
            return ()
        return self.names(operation.facts.recipe.toolpacks).all_of(operation.request.function)

    @staticmethod
    def _facts(change: Effect, at: int) -> Callable[[], Mapping[str, Any]]:
        """Return a function that computes a call's facts for rules, once and only if a rule needs them."""

        @cache
        def facts() -> Mapping[str, Any]:
            members = loads(dumps({name: (change.members or {}).get(name) for name in FACTS}))
            return {**members, "at": time_text(at)}

        return facts

    # Conditions

    def _checked(self, check: ConditionCheck, session: StoredSession, last: str, hook_state: dict[Any, Any]) -> None:
        """Store the result of a condition in the session's hook state, in memory.

        It needs no record, because the condition can be checked again on the same environments.

        Args:
            last: The id of the session's last record when the check began.
        """
        outcome = check.outcome_of_check or Outcome()
        failure = outcome.failure and outcome.failure.text
        facts = {"result": loads(outcome.result or b'""'), "error": failure, "at": time_text(hook_state[self].now)}
        truth = failure is None and fits((check.rule.when or {}).get("where"), facts)
        timeline, _ = self.events(session).after_check(hook_state[self], check.rule.name, truth=truth)
        hook_state[self] = timeline
        if not _has_due(timeline):
            self._settled.put(session.id, last)

    @override
    def unfinished(self, session: StoredSession, head: Head) -> SessionOperation | None:
        if self._settled.get(session.id) == head.last or not _has_due(self.timeline_at(session, head.index)):
            return None
        return MoveOperation(self._context, session.id, session.owner)

    # Lists of functions

    def view(self, session: StoredSession, head: Head) -> View | None:
        """Return the view without functions that aren't offered now. None if no rule offers or withdraws functions."""
        events = self.events(session)
        if not events.changes_lists:
            return None
        withdrawn = self._withdrawn(Recipe.of(session).toolpacks, self.timeline_at(session, head.index))
        functions = self.names(Recipe.of(session).toolpacks).functions
        return View(partial(_without, {full_name(functions[name]) for name in withdrawn}), lasts=False)


def _has_due(timeline: Timeline) -> bool:
    """Return whether a condition must be checked now, or an event must happen now."""
    return bool(timeline.unchecked) or timeline.next_event(timeline.rest) is not None


def _without(full_names: set[str], functions: Sequence[PackFunction]) -> list[PackFunction]:
    return [function for function in functions if full_name(function) not in full_names]


def _read_events(details: bytes) -> SessionEvents:
    members = loads(details)
    return SessionEvents(members[NAME], members.get("seed") or "")
