"""Operation hook that runs the events of sessions with event rules.

A session with rules has simulated time: each call takes one step, and `wait` takes longer. Before an operation, the
hook runs all events up to the operation's time. After the operation, the hook runs the events that the operation has
triggered and that are due at the same time. Each event is an operation of its own with its own record. The hook sets
`Effect.next` to chain these operations.
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
    MessageEvent,
    PlainEvent,
    RunEventsOperation,
    TimelineOperation,
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
BEFORE_ALL = -(2**62)  # a time that is earlier than every event
MAX_SETTLED = 10_000  # max sessions in `EventHook._settled`; each takes about 300 bytes
MAX_EVENTS = 1000  # max events that run before one call, or during one wait


class TooManyEventsError(CallError):
    """More than `MAX_EVENTS` events are due before a call, so the call isn't run."""


class _Wait(NamedTuple):
    """A call to `wait`, which the hook answers. `end` is the simulated time when the wait ends."""

    end: int


class Names:
    """Index of the names of a session's functions. A rule can use a name with or without its toolpack.

    Attributes:
        functions: The functions by their names in the session.
    """

    def __init__(self, functions: Mapping[str, PackFunction]) -> None:
        self.functions = functions
        self._by_spelling = {name: name for name in functions}
        for name, function in functions.items():
            self._by_spelling.setdefault(full_name(function), name)

    def find(self, spelling: str) -> str | None:
        """Return a function's name in the session for the name that a rule uses. None: the name is unknown."""
        return self._by_spelling.get(spelling)

    def has_match(self, pattern: str) -> bool:
        """Return whether a pattern matches the name of any function."""
        return any(fnmatch.fnmatchcase(name, pattern) for name in self._by_spelling)

    def all_of(self, name: str) -> Sequence[str]:
        """Return all names of the function that a call names. The result is empty if the name is unknown."""
        function = self.functions.get(name)
        return () if function is None else (name, function.registered_name, full_name(function))


def full_name(function: PackFunction) -> str:
    return f"{function.toolpack}.{function.registered_name}"


class EventHook(OperationHook):
    """Runs the events of sessions with event rules, and answers calls to `wait` and `get_time`."""

    def __init__(self, context: SessionContext) -> None:
        self._context = context
        self._paths = context.paths
        self._kinds = context.record_kinds
        self.names = lru_cache(maxsize=MAX_CACHED)(lambda toolpacks: Names(context.catalog.functions(toolpacks)))
        self._read = lru_cache(maxsize=MAX_CACHED)(_read_events)
        # For each session without due events: the id of its last record when its conditions were last checked.
        # While the id is the same, nothing can have become due, so `unfinished` need not read the timeline.
        self._settled = BoundedCache[str, str](MAX_SETTLED)

    @override
    def concerns(self, session: StoredSession) -> bool:
        return bool(session.details) and NAME in details_of(session)

    def events(self, session: StoredSession) -> SessionEvents:
        """Return the event rules of a session, which must have event rules (see `concerns`)."""
        events: SessionEvents = self._read(session.details)
        return events

    def timeline_at(self, session: StoredSession, last: int) -> Timeline:
        """Return the timeline after the record with the index `last`. -1: the timeline when the session began."""
        if last >= 0:
            return Timeline.read(loads(self._paths.private(session.id, last))[TIMELINE])
        inherited = details_of(session).get(TIMELINE)
        return self.events(session).start() if inherited is None else Timeline.read(inherited)

    def timeline(self, state: SessionState) -> Timeline:
        """Return the timeline after the last record, including the results of conditions checked since that record."""
        return state.remembered(self, lambda: self.timeline_at(state.session, state.index))

    # Before an operation

    @override
    def before(self, operation: SessionOperation, state: SessionState, start_clock: StartClock) -> Effect | None:
        """Run the next due event or condition check before an operation. If none is due, prepare the operation.

        After each event or check, the operation starts again, so this method is called again.

        Returns:
            None: the operation runs now. Otherwise an effect whose `next` is the event or check, or whose answer is the
            error that too many events are due.
        """
        timeline, events = self.timeline(state), self.events(state.session)
        if isinstance(operation, FunctionEvent | PlainEvent | ConditionCheck):  # this hook started the operation
            self._pin(operation, timeline.now if isinstance(operation, ConditionCheck) else operation.event.at)
            return None
        if operation.after_commits:  # resets, messages, answers and verdicts take no time
            return None
        operation.is_told |= events.speaks  # wakes participants that wait for messages, because events might send some
        wait = isinstance(operation, CallOperation) and self._wait(operation, timeline)
        # `until` is the time of the operation: all events up to this time happen before the operation.
        if wait:
            until = wait.end
        elif isinstance(operation, CallOperation):
            until = timeline.rest + events.step
        elif isinstance(operation, TimelineOperation):
            until = BEFORE_ALL  # only conditions are checked; no event is due
        else:
            until = max(timeline.rest, getattr(operation, "until", None) or 0)
        link = self._due(operation, timeline, events, until)
        if link is not None:
            if operation.links < MAX_EVENTS or not isinstance(operation, CallOperation):
                return self._run_first(operation, link, state)
            if not wait:
                text = f"More than {MAX_EVENTS} events are due before this call: call `wait` first."
                error = TooManyEventsError(text)
                return Effect(Outcome(failure=CallFailure.of(error, Failure.TOO_LARGE, keep_cause=False)))
            wait = _Wait(max(timeline.now, timeline.rest))  # too many events: the wait ends at the last event
        if isinstance(operation, CallOperation):
            self._answer(operation, timeline, wait or None, until)
        return None

    def _due(
        self, resume: SessionOperation, timeline: Timeline, events: SessionEvents, until: int
    ) -> SessionOperation | None:
        """Return the operation of the next condition check, or of the next event up to the time `until`.

        Return None if nothing is due.

        Args:
            resume: The operation that runs after the returned operation.
        """
        if timeline.unchecked:
            return ConditionCheck(resume, events.rules[timeline.unchecked[0]], self._store_result)
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
    def _run_first(operation: SessionOperation, link: SessionOperation, state: SessionState) -> Effect:
        """Return the effect that runs an event or a check (`link`) before an operation.

        Raises:
            VersionConflictError: The session doesn't have the version that the call expects. The versions are compared
                here, because the events increase the session's version before the call runs.
        """
        operation.links += not isinstance(link, ConditionCheck)  # counts events only, for the limit `MAX_EVENTS`
        if isinstance(operation, CallOperation):
            expected = operation.request.expected_version
            if expected is not None and expected != state.version:
                raise VersionConflictError(expected, state.version)
            operation.restart()
        return Effect(None, next=link)

    def _wait(self, operation: CallOperation, timeline: Timeline) -> _Wait | None:
        """Return when a call to `wait` ends. Return None for any other call, and if the arguments are invalid.

        The hook calls this method again after each event, because a notice of the event can end the wait early.
        """
        if not self._is(operation, WAIT):
            return None
        function = operation.plan.runtime.functions[operation.plan.function]
        try:
            arguments = function.parameters.model_validate(operation.request.kwargs)
        except ValidationError:
            return None  # the call itself will raise this error
        began = timeline.rest
        end = began + round(arguments.seconds * SECOND)
        if arguments.until_something_happens and timeline.news:
            end = min(end, max(began, timeline.news[0][0]))
        return _Wait(end)

    @staticmethod
    def _is(operation: CallOperation, name: str) -> bool:
        """Return whether an operation is a valid call to a function of the toolpack `world`, without nested calls."""
        plan, refused = operation.plan, operation.outcome is not None or operation.request.problem
        return plan.toolpack == WORLD_PACK and plan.registered_name == name and not plan.nested and not refused

    def _answer(self, operation: CallOperation, timeline: Timeline, wait: _Wait | None, at: int) -> None:
        """Set the result of a call to `wait` or `get_time`. Prepare any other call to run at the time `at`."""
        if wait is not None:
            operation.hook_scratch = {**operation.hook_scratch, self: wait}  # `after` reads it
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
        """Set the clock that the call's function sees to the simulated time, if the session has a pinned clock."""
        if isinstance(operation, CallOperation) and operation.plan.policy is not None:
            operation.plan.policy = operation.plan.policy.at(at)

    def _narrow(self, operation: CallOperation, timeline: Timeline) -> None:
        """Keep a participant's call from using functions that aren't offered now."""
        unavailable = self._unavailable_names(operation.facts.recipe.toolpacks, timeline)
        if not unavailable or operation.by == CLIENT or operation.outcome is not None:
            return
        names = {*operation.plan.runtime.functions}
        called = {operation.plan.function, *(nested.function for nested in operation.plan.nested)}
        if names & called & unavailable:
            operation.narrow(frozenset(names - unavailable))

    def _unavailable_names(self, toolpacks: tuple[str, ...], timeline: Timeline) -> set[str]:
        """Return the names of the functions that aren't offered now, including all aliases in the session."""
        withdrawn = self._withdrawn(toolpacks, timeline)
        if not withdrawn:
            return set()
        names = self.names(toolpacks)
        full_names = {full_name(names.functions[name]) for name in withdrawn}
        return {name for name, function in names.functions.items() if full_name(function) in full_names}

    def _withdrawn(self, toolpacks: tuple[str, ...], timeline: Timeline) -> set[str]:
        """Return the names of the functions that aren't offered now, one name for each function."""
        names = self.names(toolpacks)
        withdrawn = {names.find(spelling) for spelling, is_shown in timeline.shown.items() if not is_shown}
        return {name for name in withdrawn if name is not None}

    # After an operation

    @override
    def after(self, operation: SessionOperation, state: SessionState, change: Effect) -> None:
        """Compute the timeline after an operation, and store it in the operation's record and in memory.

        After an event, the operation that it interrupted continues. After another operation, chain an operation if an
        event or a check is due at once.
        """
        members = change.members if change.members is not None else {}
        timeline, problems = self.timeline(state), list[str]()
        # The delay is the total so far; the hook of perturbations ran before this hook and stored it in the record.
        events, delay = self.events(state.session), (change.private.get(COUNTS) or [{}, 0.0])[1]
        back_to = self._kinds[operation.record_kind].goes_back_to(members)
        if back_to is not None:  # a reset restores the timeline of its version, but keeps the delay
            last = self._paths.end(state.session.id, back_to, state.index)
            timeline = self.timeline_at(state.session, last)
            timeline = timeline._replace(rest=timeline.now, delay=delay)
        elif isinstance(operation, FunctionEvent | PlainEvent):
            function, failed = self._called_names(operation), bool(members.get("error"))
            facts = self._facts(change, operation.event.at)
            timeline, problems = events.after_event(timeline, operation.event, function, facts, failed=failed)
            members["at"] = time_text(operation.event.at)
        elif isinstance(operation, CallOperation):
            wait: _Wait | None = operation.hook_scratch.get(self)
            at = timeline.rest + events.step if wait is None else wait.end
            if wait is not None:
                timeline = timeline._replace(news=())  # the result of `wait` contains the notices
            run = bool(members.get("perturbed", {"run": True})["run"])
            facts = self._facts(change, at)
            timeline, problems = events.after_call(timeline, at, self._called_names(operation), facts, run=run)
            later = round((delay - timeline.delay) * SECOND)  # what the rules have added for this call
            timeline = timeline._replace(now=at + later, rest=at + later, delay=delay)
            members["at"] = time_text(at)
            if change.versions and timeline.unanswered and operation.by in {AGENT, CLIENT}:
                timeline, members["reactions"] = events.react(timeline, at)
        if change.versions and not isinstance(operation, RunEventsOperation):
            timeline = events.after_change(timeline)
        if problems:
            members["problem"] = ". ".join(problems)
        change.private[TIMELINE], change.hook_state[self] = timeline.to_json(), timeline
        if isinstance(operation, FunctionEvent | PlainEvent):
            change.next = operation.resume
        elif _has_due(timeline):
            change.next = RunEventsOperation(operation.context, operation.session_id, operation.owner)

    def _called_names(self, operation: SessionOperation) -> Sequence[str]:
        """Return all names of the function that an operation called, for rules. Empty: it called no known function."""
        if not isinstance(operation, CallOperation):
            return ()
        return self.names(operation.facts.recipe.toolpacks).all_of(operation.request.function)

    @staticmethod
    def _facts(change: Effect, at: int) -> Callable[[], Mapping[str, Any]]:
        """Return a function that returns a call's facts for rules. It computes them at its first call only."""

        @cache
        def facts() -> Mapping[str, Any]:
            members = loads(dumps({name: (change.members or {}).get(name) for name in FACTS}))
            return {**members, "at": time_text(at)}

        return facts

    # Conditions

    def _store_result(
        self, check: ConditionCheck, session: StoredSession, last: str, hook_state: dict[Any, Any]
    ) -> None:
        """Store the result of a condition in the session's hook state, which is in memory.

        The result needs no record: if it is lost, the condition is checked again on the same environments.

        Args:
            last: The id of the session's last record when the check began.
        """
        outcome = check.outcome_of_check or Outcome()
        failure = outcome.failure and outcome.failure.text
        facts = {"result": loads(outcome.result or b'""'), "error": failure, "at": time_text(hook_state[self].now)}
        truth = failure is None and fits((check.rule.when or {}).get("where"), facts)
        # A problem of the event isn't stored, because a check has no record.
        timeline, _ = self.events(session).after_check(hook_state[self], check.rule.name, truth=truth)
        hook_state[self] = timeline
        if not _has_due(timeline):
            self._settled.put(session.id, last)

    @override
    def unfinished(self, session: StoredSession, head: Head) -> SessionOperation | None:
        """Return the operation that runs the events and checks that are still due, or None if nothing is due."""
        if self._settled.get(session.id) == head.last or not _has_due(self.timeline_at(session, head.index)):
            return None
        return RunEventsOperation(self._context, session.id, session.owner)

    # Lists of functions

    def view(self, session: StoredSession, head: Head) -> View | None:
        """Return a view without the functions that aren't offered now, or None if no rule changes the list."""
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
