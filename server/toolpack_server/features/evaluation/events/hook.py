"""Operation hook that moves the worlds of sessions with event rules.

Before an operation, the world does everything that is due until the operation begins. After it, the world does what is
due at once. Each event is an operation of its own, with a record; `Effect.next` chains them.
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

NAME = "events"  # name of the parameter, and of the rules among the details of a session
TIMELINE = "timeline"  # name in the details of a fork, and in the private data of records
MAX_CACHED = 1000  # rules and function names of sessions
BEFORE_ALL = -(2**62)  # a time before all events
MAX_SETTLED = 10_000  # sessions whose conditions are known to be checked; each takes about 300 bytes
MAX_EVENTS = 1000  # events before one call, or in one wait


class TooManyEventsError(CallError):
    """So many events happen before a call that it isn't run."""


class _Wait(NamedTuple):
    """A wait that the hook answers, and its end."""

    end: int


class Names:
    """The names of a session's functions.

    Attributes:
        functions: The functions by their names in the session.
    """

    def __init__(self, functions: Mapping[str, PackFunction]) -> None:
        self.functions = functions
        self._by_spelling = {name: name for name in functions}
        for name, function in functions.items():
            self._by_spelling.setdefault(full_name(function), name)

    def find(self, spelling: str) -> str | None:
        """Return the name in the session of a function that is named alone or with its toolpack, or None."""
        return self._by_spelling.get(spelling)

    def has_match(self, pattern: str) -> bool:
        """Return whether a pattern matches a name of a function."""
        return any(fnmatch.fnmatchcase(name, pattern) for name in self._by_spelling)

    def all_of(self, name: str) -> Sequence[str]:
        """Return all names of a function that a call names; none if there is no such function."""
        function = self.functions.get(name)
        return () if function is None else (name, function.registered_name, full_name(function))


def full_name(function: PackFunction) -> str:
    return f"{function.toolpack}.{function.registered_name}"


class EventHook(OperationHook):
    """Moves the worlds of sessions with event rules, and answers `wait` and `get_time`."""

    def __init__(self, context: SessionContext) -> None:
        self._context = context
        self._paths = context.paths
        self._kinds = context.record_kinds
        self.names = lru_cache(maxsize=MAX_CACHED)(lambda toolpacks: Names(context.catalog.functions(toolpacks)))
        self._read = lru_cache(maxsize=MAX_CACHED)(_read_events)
        # The last record of each session after which all conditions were checked, and nothing was due.
        self._settled = BoundedCache[str, str](MAX_SETTLED)

    @override
    def concerns(self, session: StoredSession) -> bool:
        return bool(session.details) and NAME in details_of(session)

    def events(self, session: StoredSession) -> SessionEvents:
        """Return the rules of a session that has some."""
        events: SessionEvents = self._read(session.details)
        return events

    def timeline_at(self, session: StoredSession, last: int) -> Timeline:
        """Return the timeline after the record with the index `last`; -1: at the beginning of the session."""
        if last >= 0:
            return Timeline.read(loads(self._paths.private(session.id, last))[TIMELINE])
        inherited = details_of(session).get(TIMELINE)
        return self.events(session).start() if inherited is None else Timeline.read(inherited)

    def timeline(self, state: SessionState) -> Timeline:
        """Return the timeline after the last record, and after the conditions that were checked since then."""
        return state.remembered(self, lambda: self.timeline_at(state.session, state.index))

    # Before an operation

    @override
    def before(self, operation: SessionOperation, state: SessionState, start_clock: StartClock) -> Effect | None:
        timeline, events = self.timeline(state), self.events(state.session)
        if isinstance(operation, FunctionEvent | PlainEvent | ConditionCheck):
            self._pin(operation, timeline.now if isinstance(operation, ConditionCheck) else operation.event.at)
            return None
        if operation.after_commits:
            return None
        operation.is_told |= events.speaks  # so that participants hear what events say
        waits = isinstance(operation, CallOperation) and self._wait(operation, timeline)
        if waits:
            until = waits.end
        elif isinstance(operation, CallOperation):
            until = timeline.rest + events.step
        elif isinstance(operation, LookOperation):
            until = BEFORE_ALL
        else:
            until = max(timeline.rest, getattr(operation, "until", None) or 0)
        link = self._due(operation, timeline, events, until)
        if link is not None:
            if operation.links < MAX_EVENTS or not isinstance(operation, CallOperation):
                return self._first(operation, link, state)
            if not waits:
                error = TooManyEventsError(f"More than {MAX_EVENTS} events happen before this call. Wait first.")
                return Effect(Outcome(failure=CallFailure.of(error, Failure.TOO_LARGE, keep_cause=False)))
            waits = _Wait(max(timeline.now, timeline.rest))
        if isinstance(operation, CallOperation):
            self._answer(operation, timeline, waits or None, until)
        return None

    def _due(
        self, resume: SessionOperation, timeline: Timeline, events: SessionEvents, until: int
    ) -> SessionOperation | None:
        """Return the next operation of the world up to a time, or None."""
        if timeline.unchecked:
            return ConditionCheck(resume, events.rules[timeline.unchecked[0]], self._checked)
        event = timeline.next_event(until)
        return None if event is None else self._operation(resume, event, events.rules[event.rule])

    def _operation(self, resume: SessionOperation, event: ComingEvent, rule: EventRule) -> SessionOperation:
        if rule.say is not None:
            return MessageEvent(resume, event, rule)
        if rule.do is None:
            return PlainEvent(resume, event, rule)
        function = self.names(resume.facts.recipe.toolpacks).find(rule.do) or rule.do
        args = rule.args if event.args is None else event.args
        return FunctionEvent(resume, event, function, args or {})

    @staticmethod
    def _first(operation: SessionOperation, link: SessionOperation, state: SessionState) -> Effect:
        """Return the effect by which a link runs before an operation."""
        operation.links += not isinstance(link, ConditionCheck)
        if isinstance(operation, CallOperation):
            expected = operation.request.expected_version
            if expected is not None and expected != state.version:
                raise VersionConflictError(expected, state.version)
            operation.restart()
        return Effect(None, next=link)

    def _wait(self, operation: CallOperation, timeline: Timeline) -> _Wait | None:
        """Return the end of a wait, as far as it is known; None if the call is no wait that the hook answers."""
        if not self._is(operation, WAIT):
            return None
        function = operation.plan.runtime.functions[operation.plan.function]
        try:
            arguments = function.parameters.model_validate(operation.request.kwargs)
        except ValidationError:
            return None  # the function refuses them
        began = timeline.rest
        end = began + round(arguments.seconds * SECOND)
        if arguments.until_something_happens and timeline.news:
            end = min(end, max(began, timeline.news[0][0]))
        return _Wait(end)

    @staticmethod
    def _is(operation: CallOperation, name: str) -> bool:
        plan, refused = operation.plan, operation.outcome is not None or operation.request.problem
        return plan.toolpack == WORLD_PACK and plan.registered_name == name and not plan.nested and not refused

    def _answer(self, operation: CallOperation, timeline: Timeline, waits: _Wait | None, at: int) -> None:
        """Prepare a call that runs now, or answer it instead."""
        if waits is not None:
            operation.hook_scratch = {**operation.hook_scratch, self: waits}
            news = [text for _, text in timeline.news]
            waited = (waits.end - timeline.rest) / SECOND
            answer = {"time": time_text(waits.end), "waited": waited, "news": news}
            operation.outcome = Outcome(dumps(answer))
        elif self._is(operation, GET_TIME):
            operation.outcome = Outcome(dumps(time_text(at)))
        else:
            self._pin(operation, at)
            self._narrow(operation, timeline)

    @staticmethod
    def _pin(operation: SessionOperation, at: int) -> None:
        if isinstance(operation, CallOperation) and operation.plan.policy is not None:
            operation.plan.policy = operation.plan.policy.at(at)

    def _narrow(self, operation: CallOperation, timeline: Timeline) -> None:
        """Take the functions that aren't there now from a call at an address."""
        gone = self._gone(operation.facts.recipe.toolpacks, timeline)
        if not gone or operation.by == CLIENT or operation.outcome is not None:
            return
        names = {*operation.plan.runtime.functions}
        called = {operation.plan.function, *(nested.function for nested in operation.plan.nested)}
        if names & called & gone:
            operation.narrow(frozenset(names - gone))

    def _gone(self, toolpacks: tuple[str, ...], timeline: Timeline) -> set[str]:
        not_shown = self._not_shown(toolpacks, timeline)
        if not not_shown:
            return set()
        names = self.names(toolpacks)
        gone = {full_name(names.functions[name]) for name in not_shown}
        return {name for name, function in names.functions.items() if full_name(function) in gone}

    def _not_shown(self, toolpacks: tuple[str, ...], timeline: Timeline) -> set[str]:
        names = self.names(toolpacks)
        found = {names.find(spelling) for spelling, is_shown in timeline.shown.items() if not is_shown}
        return {name for name in found if name is not None}

    # After an operation

    @override
    def after(self, operation: SessionOperation, state: SessionState, change: Effect) -> None:
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
            waits: _Wait | None = operation.hook_scratch.get(self)
            at = timeline.rest + events.step if waits is None else waits.end
            if waits is not None:
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
        """Return a function that returns a call's facts, which a rule can refer to."""

        @cache
        def facts() -> Mapping[str, Any]:
            members = loads(dumps({name: (change.members or {}).get(name) for name in FACTS}))
            return {**members, "at": time_text(at)}

        return facts

    # Conditions

    def _checked(self, check: ConditionCheck, session: StoredSession, last: str, memo: dict[Any, Any]) -> None:
        """Store the result of a condition in the session's memo. It follows from the world, so it needs no record.

        Args:
            last: The id of the session's last record when the check began.
        """
        outcome = check.outcome_of_check or Outcome()
        failure = outcome.failure and outcome.failure.text
        facts = {"result": loads(outcome.result or b'""'), "error": failure, "at": time_text(memo[self].now)}
        truth = failure is None and fits((check.rule.when or {}).get("where"), facts)
        timeline, _ = self.events(session).after_check(memo[self], check.rule.name, truth=truth)
        memo[self] = timeline
        if not _has_due(timeline):
            self._settled.put(session.id, last)

    @override
    def unfinished(self, session: StoredSession, head: Head) -> SessionOperation | None:
        if self._settled.get(session.id) == head.last or not _has_due(self.timeline_at(session, head.index)):
            return None
        return MoveOperation(self._context, session.id, session.owner)

    # Lists of functions

    def view(self, session: StoredSession, head: Head) -> View | None:
        """Return which functions the addresses of a session see, or None if they always see all of theirs."""
        events = self.events(session)
        if not events.changes_lists:
            return None
        gone = self._not_shown(Recipe.of(session).toolpacks, self.timeline_at(session, head.index))
        functions = self.names(Recipe.of(session).toolpacks).functions
        return View(partial(_without, {full_name(functions[name]) for name in gone}), lasts=False)


def _has_due(timeline: Timeline) -> bool:
    """Return whether a condition must be checked, or an event must happen, before the session rests."""
    return bool(timeline.unchecked) or timeline.next_event(timeline.rest) is not None


def _without(gone: set[str], functions: Sequence[PackFunction]) -> list[PackFunction]:
    return [function for function in functions if full_name(function) not in gone]


def _read_events(details: bytes) -> SessionEvents:
    known = loads(details)
    return SessionEvents(known[NAME], known.get("seed") or "")
