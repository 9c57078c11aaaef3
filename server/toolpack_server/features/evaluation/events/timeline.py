"""Timeline of a session with event rules: its simulated time, its coming events, and its undelivered notices.

Each record stores the timeline after it, so a worker needs only the last record to continue a session. All functions
here are pure: they return a new timeline, and the same rules, seed and calls produce the same timelines.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from toolpack_server.features.evaluation.event_rules import (
    DEFAULT_BEGINS,
    EXPONENTIAL,
    SECOND,
    EventRule,
    is_missing,
    lookup,
    microseconds,
    read_event_rules,
)

MAX_COMING = 100
MAX_NEWS = 50
MAX_DEPTH = 16  # max length of a chain of events that trigger each other at the same time; stops endless chains


class ComingEvent(NamedTuple):
    """A scheduled event.

    Attributes:
        at: The time of the event.
        number: Number that increases with each scheduled event. It orders events with the same time.
        rule: The name of the event's rule.
        base: The time without the rule's delay and spread. With `every`, the next interval begins at this time.
        depth: The event's position in a chain of events that trigger each other at the same time; see `MAX_DEPTH`.
        args: The arguments of the event's function. None: the rule's arguments are used.
    """

    at: int
    number: int
    rule: str
    base: int
    depth: int = 0
    args: Mapping[str, Any] | None = None


class Timeline(NamedTuple):
    """The simulated time of a session and the state of its rules. Mappings use the names of rules as keys.

    Attributes:
        now: The time of the last record.
        rest: The time of the last call. The next call happens one step later, even if events happen in between.
        coming: The scheduled events, in order of time.
        number: The `number` of the next event that will be scheduled.
        counts: How many events each rule has scheduled so far.
        done: How many events of each rule have succeeded.
        news: The time and text of each notice that no `wait` has returned yet.
        truth: Whether each condition was true when it was last checked.
        unchecked: The rules with a condition that must be checked, because the environments have changed.
        shown: For each function that rules offer or withdraw: whether agents have it now. Keys are functions' names.
        depth: The depth of the last event; 0 after a call.
        delay: The seconds that perturbations have added to the session's time.
        unanswered: The time when each event first happened, if the agent has changed nothing since then.
    """

    now: int
    rest: int
    coming: tuple[ComingEvent, ...] = ()
    number: int = 0
    counts: Mapping[str, int] = {}
    done: Mapping[str, int] = {}
    news: tuple[tuple[int, str], ...] = ()
    truth: Mapping[str, bool] = {}
    unchecked: tuple[str, ...] = ()
    shown: Mapping[str, bool] = {}
    depth: int = 0
    delay: float = 0.0
    unanswered: Mapping[str, int] = {}

    @classmethod
    def read(cls, value: Sequence[Any]) -> "Timeline":
        """Create a timeline from the list that `to_json` returns."""
        timeline = cls(*value)
        return timeline._replace(
            coming=tuple(ComingEvent(*each) for each in timeline.coming),
            news=tuple((at, text) for at, text in timeline.news),
            unchecked=tuple(timeline.unchecked),
        )

    def to_json(self) -> list[Any]:
        members = {**self._asdict(), "coming": [[*event] for event in self.coming]}
        return [*members.values()]

    def next_event(self, until: int) -> ComingEvent | None:
        """Return the first coming event, or None if its time is after `until`."""
        event = self.coming[0] if self.coming else None
        return event if event is not None and event.at <= until else None

    def forked(self) -> "Timeline":
        """Return the timeline at the beginning of a fork.

        A fork can begin in the middle of its parent's wait. The fork doesn't continue the wait, so its first call
        happens one step after `now`.
        """
        return self._replace(rest=self.now)

    def without(self, names: Sequence[str]) -> "Timeline":
        """Return the timeline without the coming events and the unchecked conditions of these rules."""
        return self._replace(
            coming=tuple(event for event in self.coming if event.rule not in names),
            unchecked=tuple(name for name in self.unchecked if name not in names),
        )


class SessionEvents:
    """The event rules of a session. The methods compute each timeline from the previous timeline.

    Args:
        events: An `Events` object: the rules, the time when the session begins, and the step.
        seed: The session's seed, which determines random times.

    Attributes:
        begins: The time when the session begins.
        step: The simulated time that a call takes.
        rules: The rules by name.
        speaks: Whether any rule sends messages.
        changes_lists: Whether any rule offers or withdraws functions.
    """

    def __init__(self, events: Mapping[str, Any], seed: str) -> None:
        self.begins = microseconds(events.get("begins", DEFAULT_BEGINS))
        self.step = round(events.get("step", 1) * SECOND)
        self.rules = {rule.name: rule for rule in read_event_rules(events["rules"], self.begins, complete=False)}
        self.speaks = any(rule.say is not None for rule in self.rules.values())
        self.changes_lists = any(rule.offer or rule.withdraw for rule in self.rules.values())
        self._conditions = tuple(name for name, rule in self.rules.items() if rule.when is not None)
        self._call_rules = [rule for rule in self.rules.values() if rule.call is not None]
        self._seed = seed

    def start(self) -> Timeline:
        """Return the timeline of a new session."""
        shown = {name: False for rule in self.rules.values() for name in rule.offer}  # hidden until offered
        timeline = Timeline(self.begins, self.begins, shown=shown, unchecked=self._conditions)
        for rule in self.rules.values():
            if rule.at is not None:
                timeline, _ = self._schedule(timeline, rule, rule.at)
            elif rule.every is not None:
                interval = self._interval(timeline, rule)
                timeline, _ = self._schedule(timeline, rule, self.begins + interval)
        return timeline

    def _interval(self, timeline: Timeline, rule: EventRule) -> int:
        if rule.spread == EXPONENTIAL:
            return rule.draw(self._seed, timeline.counts.get(rule.name, 0))
        return rule.every or 0

    def _schedule(
        self, timeline: Timeline, rule: EventRule, base: int, args: Mapping[str, Any] | None = None
    ) -> tuple[Timeline, str | None]:
        """Schedule an event of a rule. Return the new timeline, and a problem if a limit of the server forbids it.

        If the rule has reached its own `count` or `until`, no event is scheduled, and no problem is returned.
        """
        number = timeline.counts.get(rule.name, 0)
        if rule.count is not None and number >= rule.count:
            return timeline, None
        spread = 0 if rule.spread == EXPONENTIAL else rule.draw(self._seed, number)
        at = max(base + rule.delay + spread, timeline.now)
        if rule.until is not None and at > rule.until:
            return timeline, None
        depth = timeline.depth + 1 if at == timeline.now else 0
        if depth > MAX_DEPTH:
            return timeline, f"Event {rule.name!r}: {MAX_DEPTH} events have set each other off without time passing"
        if len(timeline.coming) >= MAX_COMING:
            return timeline, f"Event {rule.name!r}: {MAX_COMING} other events are coming, which is the maximum"
        event = ComingEvent(at, timeline.number, rule.name, base, depth, args)
        return timeline._replace(
            coming=tuple(sorted((*timeline.coming, event), key=lambda each: (each.at, each.number))),
            number=timeline.number + 1,
            counts={**timeline.counts, rule.name: number + 1},
        ), None

    # Changes by records

    def after_call(
        self, timeline: Timeline, at: int, names: Sequence[str], facts: Callable[[], Mapping[str, Any]], *, run: bool
    ) -> tuple[Timeline, list[str]]:
        """Return the timeline after a call by a participant or a client.

        Also return the problems of events that the call should have triggered but that can't happen.
        """
        timeline = timeline._replace(now=at, rest=at, depth=0)
        return self._set_off(timeline, names, facts, run=run, by_world=False)

    def after_event(
        self,
        timeline: Timeline,
        event: ComingEvent,
        names: Sequence[str],
        facts: Callable[[], Mapping[str, Any]],
        *,
        failed: bool,
    ) -> tuple[Timeline, list[str]]:
        """Return the timeline after an event, and the problems of further events that it should have triggered.

        Args:
            names: All names of the function that the event called. Empty if the event called no function.
            facts: Returns the facts of the event's call.
            failed: Whether the event's function failed. Then the event has no effect on lists, notices and `after`.
        """
        rule, problems = self.rules[event.rule], list[str | None]()
        rest = tuple(each for each in timeline.coming if each.number != event.number)
        timeline = timeline._replace(now=event.at, depth=event.depth, coming=rest)
        if not failed:
            timeline = self._succeed(timeline, rule)
            for other in self.rules.values():
                # A rule with `after` needs each of the named events to have succeeded at least once.
                if rule.name in other.after and all(timeline.done.get(name) for name in other.after):
                    timeline, problem = self._schedule(timeline, other, event.at, other.args)
                    problems.append(problem)
        if rule.every is not None:  # also after a failure
            base = event.base + self._interval(timeline, rule)
            timeline, problem = self._schedule(timeline, rule, base)
            problems.append(problem)
        timeline, others = self._set_off(timeline, names, facts, run=True, by_world=True)
        return timeline, [problem for problem in problems if problem] + others

    @staticmethod
    def _succeed(timeline: Timeline, rule: EventRule) -> Timeline:
        """Return the timeline after a successful event: with functions offered or withdrawn, and its notice added."""
        shown = {**timeline.shown, **dict.fromkeys(rule.offer, True), **dict.fromkeys(rule.withdraw, False)}
        news = timeline.news if rule.notice is None else (*timeline.news, (timeline.now, rule.notice))[-MAX_NEWS:]
        done = {**timeline.done, rule.name: timeline.done.get(rule.name, 0) + 1}
        unanswered = timeline.unanswered
        if rule.name not in timeline.done:  # the agent's reaction is measured only for an event's first time
            unanswered = {**unanswered, rule.name: timeline.now}
        return timeline._replace(shown=shown, news=news, done=done, unanswered=unanswered)

    def _set_off(
        self,
        timeline: Timeline,
        names: Sequence[str],
        facts: Callable[[], Mapping[str, Any]],
        *,
        run: bool,
        by_world: bool,
    ) -> tuple[Timeline, list[str]]:
        """Schedule the events that a call triggers. Return the timeline, and why some of them can't happen.

        Args:
            names: All names of the called function. Empty: there was no call, so nothing is triggered.
            facts: Returns the facts of the call.
            run: Whether the function ran.
            by_world: Whether an event made the call.
        """
        problems = []
        for rule in self._call_rules if names else ():
            if rule.is_set_off_by(names, facts(), run=run, by_world=by_world):
                args, missing = fill_in(rule.args or {}, facts())
                problem = missing and f"Event {rule.name!r}: the call has no value at {missing!r}"
                if not problem:
                    timeline, problem = self._schedule(timeline, rule, timeline.now, args)
                if problem:
                    problems.append(problem)
        return timeline, problems

    @staticmethod
    def react(timeline: Timeline, at: int) -> tuple[Timeline, Mapping[str, float]]:
        """Return the timeline after the agent changed something, and the seconds since each unanswered event.

        Args:
            at: The time of the agent's change.
        """
        reactions = {name: (at - happened) / SECOND for name, happened in timeline.unanswered.items()}
        return timeline._replace(unanswered={}), reactions

    def after_change(self, timeline: Timeline) -> Timeline:
        """Return the timeline after a change to the environments. All conditions must be checked again."""
        return timeline._replace(unchecked=self._conditions) if self._conditions else timeline

    def after_check(self, timeline: Timeline, name: str, *, truth: bool) -> tuple[Timeline, str | None]:
        """Return the timeline after the check of a rule's condition.

        If the condition has become true, the rule's event is scheduled. Also return the problem if the event can't
        happen, else None.
        """
        before = timeline.truth.get(name, truth)  # a condition that is true at the first check triggers no event
        unchecked = tuple(each for each in timeline.unchecked if each != name)
        timeline = timeline._replace(truth={**timeline.truth, name: truth}, unchecked=unchecked)
        if not truth or before:
            return timeline, None
        rule = self.rules[name]
        return self._schedule(timeline, rule, timeline.now, rule.args)


def fill_in(args: Any, facts: Mapping[str, Any]) -> tuple[Any, str | None]:
    """Replace each `{"$get": pointer}` in arguments by the value at the JSON Pointer in the call's facts.

    Return the arguments, and the first pointer to a missing value. The pointer is None if all values exist.
    """
    if isinstance(args, Mapping):
        if args.keys() == {"$get"} and isinstance(args["$get"], str):
            value = lookup(facts, args["$get"])
            return (None, args["$get"]) if is_missing(value) else (value, None)
        values = {name: fill_in(value, facts) for name, value in args.items()}
        return {name: value for name, (value, _) in values.items()}, _first_missing(values.values())
    if isinstance(args, list | tuple):
        items = [fill_in(value, facts) for value in args]
        return [value for value, _ in items], _first_missing(items)
    return args, None


def _first_missing(pairs: Any) -> str | None:
    return next((missing for _, missing in pairs if missing), None)
