"""Creation hook that collects the event rules of a new session from its toolpacks, its task and the request.

The session stores its rules, so that a later change to the toolpack's code doesn't affect the session. A request with
rules that the session can't use is refused before anything is stored.
"""

from collections.abc import Container, Mapping, Sequence
from typing import Any

from pydantic import Field
from typing_extensions import override

from toolpack_server.base.errors import InvalidParamsError, shown
from toolpack_server.features.evaluation.episodes.rights import PARTICIPANTS
from toolpack_server.features.evaluation.event_rules import (
    DEFAULT_BEGINS,
    MAX_SECONDS,
    EventRule,
    microseconds,
    read_event_rules,
)
from toolpack_server.features.evaluation.events.authors import EventAuthor
from toolpack_server.features.evaluation.events.hook import NAME, TIMELINE, EventHook, Names
from toolpack_server.features.evaluation.events.results import Events
from toolpack_server.features.evaluation.events.world import NAME as WORLD_PACK
from toolpack_server.features.evaluation.tasks.finding import find_task, tasks_of
from toolpack_server.features.evaluation.tasks.task import SEPARATOR
from toolpack_server.protocol.parameters import ForkRequest, Parameters, SessionRequest
from toolpack_server.sessions.context import SessionContext
from toolpack_server.sessions.hooks import CreationHook
from toolpack_server.sessions.recipes import details_of
from toolpack_server.stores.base import Head, StoredSession

HIDDEN = "hidden_functions"
"""Key in a session's recipe. Its value lists the functions of events and conditions, which agents can't call."""


class EventParameters(Parameters):
    events: list[dict[str, Any]] | Events | None = Field(
        None,
        description="Event rules, in addition to those of the toolpacks and the task. An object with `rules` replaces "
        "all of them.",
        exclude_if=lambda value: value is None,
    )


class ForkEvents(Parameters):
    without_events: list[str] | None = Field(
        None,
        description="Names of events that don't happen in the forks; default: all events happen.",
        exclude_if=lambda value: value is None,
    )


class EventCreationHook(CreationHook):
    """Collects and checks the event rules of a new session, and computes the timeline of a fork."""

    option_names = frozenset({NAME, TIMELINE, HIDDEN})

    def __init__(self, context: SessionContext) -> None:
        self._context = context
        self._hook = EventHook(context)
        self._packs = context.catalog.toolpacks
        self._moving = frozenset(
            name
            for name, pack in self._packs.items()
            if isinstance(pack, EventAuthor) and (pack.companions or pack.hidden)
        )

    @override
    def concerns(self, request: SessionRequest) -> bool:
        if getattr(request, NAME, None) is not None:
            return True
        return bool(self._moving) and not self._moving.isdisjoint(self._toolpacks(request))

    def _toolpacks(self, request: SessionRequest) -> Sequence[str]:
        """Return the session's toolpacks, including the task's toolpack, which the tasks feature may add only later."""
        task = getattr(request, "task", None)
        own = [task.partition(SEPARATOR)[0]] if task else []
        if request.toolpacks is None and not task:
            return [name for name, pack in self._packs.items() if not pack.opt_in]
        return [*own, *(request.toolpacks or ())]

    @override
    def runs_code(self, request: SessionRequest) -> bool:
        pack = self._packs.get((getattr(request, "task", None) or "").partition(SEPARATOR)[0])
        return pack is not None and not tasks_of(pack).is_loaded

    @override
    def prepare(self, request: SessionRequest) -> SessionRequest:
        """Add the resolved rules to the request. If there are rules, also add the toolpack `world` with `wait`.

        Raises:
            InvalidParamsError: The rules can't be used, or the server has no toolpack `world`.
        """
        toolpacks = self._context.catalog.choose(request.toolpacks)
        events = self._resolve(request, toolpacks)
        update: dict[str, Any] = {NAME: events}
        if events is not None and WORLD_PACK not in toolpacks:
            if WORLD_PACK not in self._packs:
                raise InvalidParamsError(
                    "No toolpack of this server has `begins`, `step_seconds` or an event, so sessions can't have "
                    "events: set `begins` of a toolpack."
                )
            update["toolpacks"] = [*toolpacks, WORLD_PACK]
        return request.model_copy(update=update)

    @override
    def feature_options(self, request: SessionRequest) -> Mapping[str, Any]:
        packs = [self._packs[name] for name in request.toolpacks or ()]
        hidden = [f"{p.name}.{name}" for p in packs if isinstance(p, EventAuthor) for name in sorted(p.hidden)]
        return {HIDDEN: hidden}

    @override
    def check_feature_options(self, feature_options: Mapping[str, Any], toolpacks: Sequence[str]) -> None:
        value = feature_options.get(HIDDEN, [])
        if not (isinstance(value, list) and all(isinstance(name, str) for name in value)):
            raise InvalidParamsError("The bundle's hidden functions must be a list of names.")

    @override
    def details(self, request: SessionRequest) -> Mapping[str, Any]:
        events = getattr(request, NAME)
        return {} if events is None else {NAME: events}

    @override
    def details_of_fork(
        self, request: ForkRequest, parent: StoredSession, head: Head, version: int
    ) -> Mapping[str, Any]:
        """Return the parent's rules without those in `without_events`, and the timeline at the fork's version."""
        details = details_of(parent)
        without: Sequence[str] = getattr(request, "without_events", None) or ()
        if NAME not in details:
            if without:
                raise InvalidParamsError("The session has no events: omit without_events.")
            return {}
        events, hook = details[NAME], self._hook
        names = [rule["name"] for rule in events["rules"]]
        for name in without:
            if name not in names:
                raise InvalidParamsError(f"The session has no event {shown(name)!r}: it has {', '.join(names)}.")
        last = self._context.paths.end(parent.id, version, head.index)  # -1: the fork begins before the first record
        timeline = hook.timeline_at(parent, last)
        if last >= 0:
            timeline = timeline.forked()
        elif TIMELINE not in details and not without:
            return {NAME: events}  # the fork begins as its parent began, so the rules determine the timeline
        rules = [rule for rule in events["rules"] if rule["name"] not in without]
        return {NAME: {**events, "rules": rules}, TIMELINE: timeline.without(without).to_json()}

    def _resolve(self, request: SessionRequest, toolpacks: Sequence[str]) -> Events | None:
        """Return the session's rules, the time when it begins, and its step. Return None if it has no events.

        The rules of the toolpacks, the task and the request are added up, unless the request replaces them all. The
        request's clock determines when the session begins, then `begins` of its events, then of the toolpacks.

        Raises:
            InvalidParamsError: The rules can't be used in this session.
        """
        value: Any = getattr(request, NAME, None)
        replaces = isinstance(value, Mapping)
        packs = [pack for name in toolpacks if isinstance(pack := self._packs[name], EventAuthor)]
        task = getattr(request, "task", None)
        if replaces:
            rules = [*value["rules"]]
        else:
            rules = [rule for pack in packs for rule in pack.event_rules]
            rules += find_task(self._context.catalog, task)[1].events if task else ()
            rules += value or ()
        begins = value.get("begins") if replaces else None
        step = value.get("step") if replaces else None
        begins = getattr(request, "clock", None) or begins or next((p.begins for p in packs if p.begins), None)
        for other in (getattr(request, "clock_step_seconds", None), *(pack.step_seconds for pack in packs)):
            step = other if step is None else step
        if not rules and (replaces or not any(pack.companions for pack in packs)):
            return None
        begins, step = begins or DEFAULT_BEGINS, 1 if step is None else step
        try:
            started = microseconds(begins)
        except ValueError:
            raise InvalidParamsError(
                f"events: begins is {shown(begins)!r}: give a time like {DEFAULT_BEGINS}."
            ) from None
        if not 0 <= step <= MAX_SECONDS:
            raise InvalidParamsError("events: step must be a number of seconds, at most 366 days.")
        rules = [{"name": str(index), **rule} for index, rule in enumerate(rules)]
        try:
            parsed = read_event_rules(rules, started)
        except ValueError as error:
            raise InvalidParamsError(f"{error}.") from None
        self._check(parsed, Names(self._context.catalog.functions(toolpacks)))
        _check_participants(parsed, getattr(request, PARTICIPANTS, None) or {})
        return {"rules": rules, "begins": begins, "step": step}

    @staticmethod
    def _check(rules: Sequence[EventRule], names: Names) -> None:
        """Check that the functions in the rules exist, and that conditions are read-only."""
        for rule in rules:
            condition = [rule.when["call"]] if rule.when else []
            for name in [*([rule.do] if rule.do else []), *rule.offer, *rule.withdraw, *condition]:
                if names.find(name) is None:
                    raise InvalidParamsError(f"Event {rule.name!r}: the session has no function {shown(name)!r}.")
            for name in condition:
                if not names.functions[names.find(name) or ""].read_only:
                    raise InvalidParamsError(
                        f"Event {rule.name!r}: {shown(name)!r} isn't read-only, so it can't be a condition."
                    )
            if rule.call is not None and not names.has_match(rule.call):
                raise InvalidParamsError(f"Event {rule.name!r}: the session has no function {shown(rule.call)!r}.")


def _check_participants(rules: Sequence[EventRule], participants: Container[str]) -> None:
    """Check that the senders and recipients in the rules are participants of the session."""
    for rule in rules:
        if rule.say is None:
            continue
        if not participants:
            raise InvalidParamsError(
                f"Event {rule.name!r}: its message has no recipients: create the session with participants."
            )
        for name in (rule.sender, rule.to):
            if name is not None and name not in participants:
                raise InvalidParamsError(f"Event {rule.name!r}: the session has no participant {shown(name)!r}.")
