"""What rules do around the calls of a session's agent.

A call that is perturbed isn't run, or does exactly what it would have done. What has happened is recorded as
always; what the agent has heard instead stands beside it.
"""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any, NamedTuple

from typing_extensions import override

from toolpack_server.base.errors import ResultError, TooLargeError
from toolpack_server.engine.jobs import StartClock
from toolpack_server.engine.pool_thread import interruptible
from toolpack_server.engine.state import Effect, SessionState
from toolpack_server.execution.call import Outcome
from toolpack_server.execution.failure import CallFailure, Failure, cut_error
from toolpack_server.execution.plan import Plan
from toolpack_server.features.evaluation.perturbations.appearance import Appearance
from toolpack_server.features.evaluation.perturbations.calls import heard
from toolpack_server.features.evaluation.perturbations.counts import COUNTS, NAME, UNKNOWN, Counts, counts_at
from toolpack_server.features.evaluation.perturbations.effects import Chance, altered, too_large
from toolpack_server.features.evaluation.perturbations.session_rules import Call, Decision, Functions, SessionRules
from toolpack_server.functions.content import check_content
from toolpack_server.functions_runtime import not_found
from toolpack_server.jsonio.strict import Fragment, cut_if_longer, dumps, loads
from toolpack_server.packs.names import without_dots
from toolpack_server.protocol.senders import AGENT
from toolpack_server.sessions.addresses import View
from toolpack_server.sessions.calls import CallOperation, CallRequest
from toolpack_server.sessions.context import SessionContext
from toolpack_server.sessions.operation import OperationHook, SessionOperation
from toolpack_server.sessions.recipes import Recipe, details_of
from toolpack_server.sessions.records import cut_arguments
from toolpack_server.stores.base import Head, StoredSession

REMEMBERED = 1000  # sessions' rules
RECENT = 100  # answers that a session remembers for rules that repeat them: more than wait for one commit

_TYPED = re.compile(r"([A-Za-z_][\w.]*): (.*)", re.DOTALL)


class _Index:
    """Where on a session's path the answers are that its agent has heard last, as far as the path has been read.

    A reset begins another one. It only grows, so it makes no difference if one who was cancelled still reads on.
    """

    def __init__(self) -> None:
        self.count = 0  # of the records that have been read
        self.places: dict[bytes, int] = {}  # by digest of the call


class _Memo(NamedTuple):
    """What is remembered of a session as of its last record."""

    counts: Counts
    heard_at: _Index
    recent: Mapping[bytes, bytes] = {}  # what the agent has heard last, by call; perhaps not committed yet


class _MatchedRules(NamedTuple):
    """What was found before a call for what comes after it."""

    decision: Decision
    run: bool
    start_clock: StartClock
    sent: CallRequest | None = None  # if the agent has called a function otherwise
    appearance: Appearance | None = None


class PerturbationHook(OperationHook):
    """Has calls of agents fail, lie and lose their answers, as the rules of their sessions say."""

    def __init__(self, context: SessionContext) -> None:
        self._context = context
        self._paths = context.paths
        self._kinds = context.record_kinds
        self._functions = lru_cache(maxsize=REMEMBERED)(
            lambda toolpacks: Functions(context.catalog.functions(toolpacks))
        )
        self._read = lru_cache(maxsize=REMEMBERED)(
            lambda details, toolpacks: SessionRules.of(loads(details)[NAME], self._functions(toolpacks))
        )

    @override
    def concerns(self, session: StoredSession) -> bool:
        return bool(session.details) and NAME in details_of(session)

    def _rules(self, session: StoredSession) -> SessionRules:
        rules: SessionRules = self._read(session.details, Recipe.of(session).toolpacks)
        return rules

    def _memo(self, state: SessionState) -> _Memo:
        return state.remembered(self, lambda: _Memo(counts_at(state.session, state.index, self._paths), _Index()))

    # Lists of functions

    def view(self, session: StoredSession, head: Head) -> View:
        """Return how functions appear to the agent of a session that has rules."""
        rules = self._rules(session)
        appearance = rules.appearance(counts_at(session, head.index, self._paths).calls)
        return View(list if appearance is None else appearance.listed, lasts=not rules.changes_lists)

    # Calls

    @override
    def before(self, operation: SessionOperation, state: SessionState, start_clock: StartClock) -> None:
        if not isinstance(operation, CallOperation):
            return
        memo, decision = self._memo(state), Decision()
        if operation.by == AGENT and operation.outcome is None:
            met = self._decide(operation, state, start_clock, memo)
            decision = met.decision
            operation.notes = {**operation.notes, self: met}
        conditions, delay = operation.plan.conditions, memo.counts.delay + decision.delay
        if conditions is not None and delay:
            operation.plan.conditions = conditions.later(delay)

    def _decide(
        self, operation: CallOperation, state: SessionState, start_clock: StartClock, memo: _Memo
    ) -> _MatchedRules:
        rules, sent = self._rules(state.session), operation.request
        appearance, names = rules.appearance(memo.counts.calls), list[str]()
        hidden = self._hide(operation, appearance) if appearance is not None and appearance.hidden else []
        if appearance is not None and appearance.names:  # names of hidden functions lead nowhere, as those of none do
            names, refused = self._translate(operation, appearance)
            if refused is not None:
                operation.outcome = refused
                return _MatchedRules(Decision(hidden or names), False, start_clock)
        if hidden:
            return _MatchedRules(Decision(hidden), False, start_clock)
        decision = rules.decide(memo.counts.calls, self._calls(operation, state), partial(self._is_known, state))
        if decision.instead is not None:
            operation.outcome = self._instead(decision, operation, state)
        decision = decision._replace(met=[*names, *decision.met])
        return _MatchedRules(decision, decision.instead is None, start_clock, sent if names else None, appearance)

    @staticmethod
    def _translate(operation: CallOperation, appearance: Appearance) -> tuple[list[str], Outcome | None]:
        """Send the call on to the functions that are meant, and get the rules that have renamed them.

        If there is no such function, get the answer to that, too, which names no function by its real name.
        """
        plan, request = operation.plan, operation.request
        functions = {name: function.name for name, function in plan.runtime.functions.items()}
        met: dict[str, None] = {}
        for name in (plan.function, *(each.function for each in plan.nested)):
            real = appearance.called(name)
            if real not in functions or functions[real] in appearance.names.keys() - {real}:
                shown = [appearance.names[each][0] if each in appearance.names else each for each in functions.values()]
                spellings = dict.fromkeys(spelling for each in shown for spelling in (each, without_dots(each)))
                rule = appearance.met(functions.get(name, name))
                refused = Outcome(failure=CallFailure.of(not_found(name, spellings), keep_cause=False))
                return [] if rule is None else [rule], refused
            rule = appearance.met(functions[real])
            if rule is not None:
                met[rule] = None
        if met:
            kwargs = _with_names(request.kwargs, appearance)
            function = appearance.called(request.function) or request.function
            operation.retarget(request._replace(function=function, kwargs=kwargs, sent=dumps(kwargs)))
        return list(met), None

    @staticmethod
    def _hide(operation: CallOperation, appearance: Appearance) -> list[str]:
        """Take the functions away that are hidden, and get the rule that hides one which is called, if one is."""
        plan = operation.plan
        called = [
            plan.runtime.functions.get(name) for name in (*(each.function for each in plan.nested), plan.function)
        ]
        offered = {function.name for function in plan.runtime.functions.values()} & appearance.offered
        operation.narrow(frozenset(offered))
        return [appearance.hidden[each.name] for each in called if each and each.name in appearance.hidden][:1]

    def _calls(self, operation: CallOperation, state: SessionState) -> list[Call]:
        plan, called = operation.plan, self._functions(Recipe.of(state.session).toolpacks).called
        sent = [*((each.function, each.arguments) for each in plan.nested), (plan.function, operation.request.kwargs)]
        return [(called[name] if name in plan.runtime.functions else UNKNOWN, kwargs) for name, kwargs in sent]

    def _instead(self, decision: Decision, operation: CallOperation, state: SessionState) -> Outcome:
        rule = decision.instead
        if rule is not None and rule.effect == "error":
            return Outcome(failure=_failure(rule.value))
        return Outcome(self._answer(state, self._calls(operation, state)[-1]))

    # Answers that were heard before

    def _is_known(self, state: SessionState, call: Call) -> bool:
        return self._answer(state, call) is not None

    def _answer(self, state: SessionState, call: Call) -> bytes | None:
        """Get what the agent has heard when the same call has succeeded last, as JSON, if the trace has that whole."""
        key, memo = dumps(call, sort_keys=True), self._memo(state)
        if key in memo.recent:
            return memo.recent[key]
        self._read_on(state, memo.heard_at)
        place = memo.heard_at.places.get(_digest(key))
        if place is None:
            return None
        ((_, line),) = self._paths.lines(state.session, state.version, place, 1)
        return dumps(heard(loads(line))["result"])

    def _read_on(self, state: SessionState, index: _Index) -> None:
        """Read what has come onto the path since the last time."""
        called = self._functions(Recipe.of(state.session).toolpacks).called
        lines = self._paths.lines(state.session, state.version, index.count)
        for place, (_, line) in enumerate(lines, index.count):
            shown = loads(line)
            if self._kinds[shown["kind"]].is_call and shown.get("by") == AGENT:
                told = heard(shown)
                if told["error"] is None and not _is_cut(told["result"]):
                    key = _digest(dumps((called.get(shown["function"]), shown["kwargs"]), sort_keys=True))
                    index.places[key] = max(place, index.places.get(key, place))
            index.count = max(place + 1, index.count)

    # What is heard

    @override
    def after(self, operation: SessionOperation, state: SessionState, change: Effect) -> None:
        shown, memo = change.members or {}, self._memo(state)
        kind = self._kinds[operation.record_kind]
        back_to = kind.goes_back_to(shown)
        if back_to is not None:  # time goes on
            last = self._paths.end(state.session.id, back_to, state.index)
            memo = _Memo(counts_at(state.session, last, self._paths)._replace(delay=memo.counts.delay), _Index())
        else:
            functions = self._functions(Recipe.of(state.session).toolpacks)
            memo = memo._replace(counts=memo.counts.after(kind, shown, functions))
        met: _MatchedRules | None = operation.notes.get(self)
        if met is not None and isinstance(operation, CallOperation):
            self._perturb(met, operation.plan, state, change)
            counts = memo.counts._replace(delay=memo.counts.delay + met.decision.delay)
            memo = memo._replace(counts=counts, recent=self._remembered(memo, operation, state, change))
        change.private[COUNTS], change.memo[self] = memo.counts.written(), memo

    def _perturb(self, met: _MatchedRules, plan: Plan, state: SessionState, change: Effect) -> None:
        """Replace what the agent hears, and record that."""
        decision, outcome = met.decision, change.answer
        names, told = [*decision.met], outcome
        if met.run and outcome.failure is None and decision.lost is not None:
            told = replace(outcome, result=None, failure=_failure(decision.lost.value))
            names.append(decision.lost.name)
        elif met.run and outcome.failure is None:
            if plan.compares and decision.results:  # its own clock had to wait
                met.start_clock(plan.timeout_seconds, plan.own_timeout_seconds)
            told, changed = self._changed(decision, outcome, self._rules(state.session).seed)
            names += changed
        elif met.run and met.appearance is not None and met.appearance.names:
            told, renamed = _renamed(outcome, met.appearance)
            names += [name for name in renamed if name not in names]
        if not names:
            return
        most, agent = self._context.settings.max_record_bytes, dict[str, Any]()
        if met.sent is not None:
            agent["function"] = met.sent.function
            if met.sent.kwargs != _with_names(met.sent.kwargs, met.appearance):
                agent["kwargs"] = Fragment(cut_arguments(met.sent.sent, met.sent.kwargs, most))
        if told.failure is not outcome.failure and told.failure is not None:
            agent["error"] = cut_error(told.failure.text, most)
        if told.result != outcome.result:
            agent["result"] = Fragment(cut_if_longer(b'""' if told.result is None else told.result, most))
        (change.members or {})["perturbed"] = {"rules": names, "run": met.run, "agent": agent}
        change.answer = told
        if told.content != outcome.content:
            change.private["content"] = told.content

    def _changed(self, decision: Decision, outcome: Outcome, seed: str) -> tuple[Outcome, list[str]]:
        """Get an outcome with another result, and the rules that have changed it.

        Rules may make a result too long, as a function may. The call's deadline holds for what they compute, too.
        """
        names: list[str] = []
        if not decision.results:
            return outcome, names
        most, content = self._context.settings.max_result_bytes, outcome.content
        with interruptible():
            value = loads(outcome.result or b'""')
            text = dumps(value)
            for rule, name, number in decision.results:
                try:
                    value = altered(
                        rule, value, Chance.of(seed, rule.name, name, number), most, content=outcome.content
                    )
                    new = dumps(value)
                    if len(new) > max(most, len(text)):
                        raise too_large(most)
                except TooLargeError as error:
                    failure = CallFailure.of(error, keep_cause=False)
                    return replace(outcome, result=None, failure=failure), [*names, rule.name]
                if new != text:
                    text = new
                    names.append(rule.name)
            if names and content:
                try:
                    check_content(text)
                except ResultError:
                    content = False
        return (replace(outcome, result=text, content=content) if names else outcome), names

    def _remembered(
        self, memo: _Memo, operation: CallOperation, state: SessionState, change: Effect
    ) -> Mapping[bytes, bytes]:
        told: Outcome = change.answer
        if told.failure is not None or told.result is None or not self._rules(state.session).may_be_stale:
            return memo.recent
        if max(len(told.result), len(operation.request.sent)) > self._context.settings.max_record_bytes:
            return memo.recent  # the trace hasn't it whole either
        called, _ = self._calls(operation, state)[-1]
        key = dumps((called, loads(operation.request.sent)), sort_keys=True)  # the function may have changed the others
        kept = [each for each in memo.recent.items() if each[0] != key][1 - RECENT :]
        return dict([*kept, (key, told.result)])


def _with_names(kwargs: Mapping[str, Any], appearance: Appearance | None) -> dict[str, Any]:
    """Get arguments with the real names of nested calls' functions."""
    return {name: _with_name(value, appearance) for name, value in kwargs.items()}


def _with_name(value: Any, appearance: Appearance | None) -> Any:
    call = value.get("$call") if type(value) is dict and len(value) == 1 else None
    if type(call) is not dict or call.keys() != {"function", "args"} or type(call["args"]) is not dict:
        return value
    function = appearance.called(call["function"]) if appearance is not None else None
    return {"$call": {"function": function or call["function"], "args": _with_names(call["args"], appearance)}}


def _renamed(outcome: Outcome, appearance: Appearance) -> tuple[Outcome, list[str]]:
    """Get the outcome of a call that has failed, in which functions are called as the agent knows them.

    The rules are those that have renamed one that the text names.
    """
    failure = outcome.failure
    if failure is None:
        return outcome, []
    message, rules = appearance.renamed(failure.message)
    return (replace(outcome, failure=replace(failure, message=message)) if rules else outcome), rules


def _failure(text: str) -> CallFailure:
    """Get a failure with this text: `ErrorType: message`, or a message alone."""
    match = _TYPED.fullmatch(text)
    kind, message = (match[1], match[2]) if match else ("", text)
    return CallFailure(kind, message, Failure.RAISED)


def _digest(key: bytes) -> bytes:
    return hashlib.blake2b(key, digest_size=16).digest()


def _is_cut(result: Any) -> bool:
    return isinstance(result, dict) and result.keys() == {"$cut"}
