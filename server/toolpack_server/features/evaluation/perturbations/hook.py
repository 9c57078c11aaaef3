"""Operation hook that applies a session's perturbation rules to the calls of its agent.

A rule can answer a call without running its function, run the function without committing its changes, or change the
answer. Rules never change how a function runs. The record shows the real call and, in `perturbed`, the agent's view.
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
from toolpack_server.features.evaluation.perturbations.calls import agent_view
from toolpack_server.features.evaluation.perturbations.counts import COUNTS, NAME, UNKNOWN, Counts, counts_at
from toolpack_server.features.evaluation.perturbations.effects import KeyedRandom, apply_effect, too_large_error
from toolpack_server.features.evaluation.perturbations.session_rules import Call, Decision, Functions, SessionRules
from toolpack_server.features.evaluation.rules import Rule
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

MAX_CACHED = 1000  # max cache entries: parsed rules, and names of functions
MAX_RECENT = 100  # max answers in `_Memo.recent`; must exceed the number of calls in one commit

_TYPED = re.compile(r"([A-Za-z_][\w.]*): (.*)", re.DOTALL)


class _AnswerIndex:
    """Index of the agent's latest answers on a session's path, for `stale` rules, which repeat an earlier answer.

    The index covers the first `count` records of the path. A cancelled operation might still add records to the index.
    This does no harm, because `count` and the positions never decrease. A reset starts a new index.
    """

    def __init__(self) -> None:
        self.count = 0  # number of records that were read
        self.positions: dict[bytes, int] = {}  # position of the latest answer on the path, by digest of the call


class _Memo(NamedTuple):
    """This hook's data for a session. It is kept in memory, and describes the session after its last record."""

    counts: Counts
    answers: _AnswerIndex
    recent: Mapping[bytes, bytes] = {}  # latest answers by call; records before their commit can't be read elsewhere


class _MatchedRules(NamedTuple):
    """The rules that `before` found for a call. `after` reads them and applies the rules that change the answer."""

    decision: Decision
    run: bool  # whether the function runs
    start_clock: StartClock
    sent: CallRequest | None = None  # the agent's request, if it used new names of functions
    appearance: Appearance | None = None


class PerturbationHook(OperationHook):
    """Injects errors, changed results and lost answers into the agent's calls, according to the session's rules."""

    def __init__(self, context: SessionContext) -> None:
        self._context = context
        self._paths = context.paths
        self._kinds = context.record_kinds
        self._functions = lru_cache(maxsize=MAX_CACHED)(
            lambda toolpacks: Functions(context.catalog.functions(toolpacks))
        )
        self._read = lru_cache(maxsize=MAX_CACHED)(
            lambda details, toolpacks: SessionRules.of(loads(details)[NAME], self._functions(toolpacks))
        )

    @override
    def concerns(self, session: StoredSession) -> bool:
        return bool(session.details) and NAME in details_of(session)

    def _rules(self, session: StoredSession) -> SessionRules:
        rules: SessionRules = self._read(session.details, Recipe.of(session).toolpacks)
        return rules

    def _memo(self, state: SessionState) -> _Memo:
        return state.remembered(self, lambda: _Memo(counts_at(state.session, state.index, self._paths), _AnswerIndex()))

    # Lists of functions

    def view(self, session: StoredSession, head: Head) -> View:
        """Return the agent's view of the functions in a session, which must have rules (see `concerns`)."""
        rules = self._rules(session)
        appearance = rules.appearance(counts_at(session, head.index, self._paths).calls)
        return View(list if appearance is None else appearance.apply, lasts=not rules.changes_lists)

    # Calls

    @override
    def before(self, operation: SessionOperation, state: SessionState, start_clock: StartClock) -> None:
        """Find the rules that apply to a call by the agent. Apply the rules that change or replace the call.

        The rules that change the answer are kept in `operation.hook_scratch`, and `after` applies them. Each call, also
        of a client, sees the session's clock with all delays so far.
        """
        if not isinstance(operation, CallOperation):
            return
        memo, decision = self._memo(state), Decision()
        if operation.by == AGENT and operation.outcome is None:
            matched = self._decide(operation, state, start_clock, memo)
            decision = matched.decision
            operation.dry_run = decision.phantom is not None
            operation.hook_scratch = {**operation.hook_scratch, self: matched}  # `after` reads it
        policy, delay = operation.plan.policy, memo.counts.delay + decision.delay
        if policy is not None and delay:
            operation.plan.policy = policy.later(delay)

    def _decide(
        self, operation: CallOperation, state: SessionState, start_clock: StartClock, memo: _Memo
    ) -> _MatchedRules:
        """Apply the rules that take effect before the function runs. Return all rules that apply."""
        rules, sent = self._rules(state.session), operation.request
        appearance, names = rules.appearance(memo.counts.calls), list[str]()
        hidden = self._hide(operation, appearance) if appearance is not None and appearance.hidden else []
        if appearance is not None and appearance.names:  # `_hide` came first, so hidden functions are unknown here
            names, refused = self._translate(operation, appearance)
            if refused is not None:
                operation.outcome = refused
                return _MatchedRules(Decision(hidden or names), False, start_clock)
        if hidden:
            return _MatchedRules(Decision(hidden), False, start_clock)
        decision = rules.decide(memo.counts.calls, self._calls(operation, state), partial(self._has_answer, state))
        if decision.replacement is not None:
            operation.outcome = self._replacement(decision.replacement, operation, state)
        decision = decision._replace(applied=[*names, *decision.applied])
        return _MatchedRules(decision, decision.replacement is None, start_clock, sent if names else None, appearance)

    @staticmethod
    def _translate(operation: CallOperation, appearance: Appearance) -> tuple[list[str], Outcome | None]:
        """Replace new names of functions in a call by the real names.

        Return the names of the rules that renamed the functions, and None. If a name in the call is unknown, return an
        outcome with the error instead of None. The error lists only names that the agent can see.
        """
        plan, request = operation.plan, operation.request
        functions = {name: function.name for name, function in plan.runtime.functions.items()}
        applied: dict[str, None] = {}
        for name in (plan.function, *(nested.function for nested in plan.nested)):
            real = appearance.real_name(name)
            # Unknown: no function has this name, or the agent used another spelling of a renamed function's old name.
            if real not in functions or functions[real] in appearance.names.keys() - {real}:
                visible = [appearance.names[f][0] if f in appearance.names else f for f in functions.values()]
                spellings = dict.fromkeys(spelling for new in visible for spelling in (new, without_dots(new)))
                rule = appearance.renaming_rule(functions.get(name, name))
                refused = Outcome(failure=CallFailure.of(not_found(name, spellings), keep_cause=False))
                return [] if rule is None else [rule], refused
            rule = appearance.renaming_rule(functions[real])
            if rule is not None:
                applied[rule] = None
        if applied:
            kwargs = _with_real_names(request.kwargs, appearance)
            function = appearance.real_name(request.function) or request.function
            operation.retarget(request._replace(function=function, kwargs=kwargs, sent=dumps(kwargs)))
        return list(applied), None

    @staticmethod
    def _hide(operation: CallOperation, appearance: Appearance) -> list[str]:
        """Remove hidden functions from the call's runtime, so that the call can't find them.

        Return a list with the name of one rule: the rule that hides the first hidden function in the call. The list is
        empty if the call names no hidden function.
        """
        plan = operation.plan
        called = [
            plan.runtime.functions.get(name) for name in (*(nested.function for nested in plan.nested), plan.function)
        ]
        offered = {function.name for function in plan.runtime.functions.values()} & appearance.offered
        operation.narrow(frozenset(offered))
        return [appearance.hidden[f.name] for f in called if f and f.name in appearance.hidden][:1]

    def _calls(self, operation: CallOperation, state: SessionState) -> list[Call]:
        """Return the nested calls of a call and the call itself, in order of execution."""
        plan, names = operation.plan, self._functions(Recipe.of(state.session).toolpacks).names
        nested = ((call.function, call.arguments) for call in plan.nested)
        sent = [*nested, (plan.function, operation.request.kwargs)]
        return [(names[name] if name in plan.runtime.functions else UNKNOWN, kwargs) for name, kwargs in sent]

    def _replacement(self, rule: Rule, operation: CallOperation, state: SessionState) -> Outcome:
        """Return the answer of a rule that replaces the call: the rule's error, or for `stale` an earlier answer."""
        if rule.effect == "error":
            return Outcome(failure=_failure(rule.value))
        return Outcome(self._latest_answer(state, self._calls(operation, state)[-1]))

    # Earlier answers, for `stale` rules

    def _has_answer(self, state: SessionState, call: Call) -> bool:
        return self._latest_answer(state, call) is not None

    def _latest_answer(self, state: SessionState, call: Call) -> bytes | None:
        """Return the latest successful answer that the agent got to an equal call, as JSON.

        Return None if the agent got no successful answer, or if the answer was cut in its record.
        """
        key, memo = dumps(call, sort_keys=True), self._memo(state)
        if key in memo.recent:
            return memo.recent[key]
        self._extend_index(state, memo.answers)
        position = memo.answers.positions.get(_digest(key))
        if position is None:
            return None
        ((_, line),) = self._paths.lines(state.session, state.version, position, 1)
        return dumps(agent_view(loads(line))["result"])

    def _extend_index(self, state: SessionState, index: _AnswerIndex) -> None:
        """Add the records of the path that aren't in the index yet."""
        names = self._functions(Recipe.of(state.session).toolpacks).names
        lines = self._paths.lines(state.session, state.version, index.count)
        for position, (_, line) in enumerate(lines, index.count):
            shown = loads(line)
            if self._kinds[shown["kind"]].is_call and shown.get("by") == AGENT:
                view = agent_view(shown)
                if view["error"] is None and not _is_cut(view["result"]):
                    key = _digest(dumps((names.get(shown["function"]), shown["kwargs"]), sort_keys=True))
                    index.positions[key] = max(position, index.positions.get(key, position))
            index.count = max(position + 1, index.count)

    # The agent's view of a call

    @override
    def after(self, operation: SessionOperation, state: SessionState, change: Effect) -> None:
        """Count the call, apply the rules that change its answer, and store the counts in the record."""
        shown, memo = change.members or {}, self._memo(state)
        kind = self._kinds[operation.record_kind]
        back_to = kind.goes_back_to(shown)
        if back_to is not None:  # a reset restores the counts of calls, but the session's clock never goes back
            last = self._paths.end(state.session.id, back_to, state.index)
            memo = _Memo(counts_at(state.session, last, self._paths)._replace(delay=memo.counts.delay), _AnswerIndex())
        else:
            functions = self._functions(Recipe.of(state.session).toolpacks)
            memo = memo._replace(counts=memo.counts.after(kind, shown, functions))
        matched: _MatchedRules | None = operation.hook_scratch.get(self)
        if matched is not None and isinstance(operation, CallOperation):
            self._perturb(matched, operation.plan, state, change)
            counts = memo.counts._replace(delay=memo.counts.delay + matched.decision.delay)
            memo = memo._replace(counts=counts, recent=self._recent_answers(memo, operation, state, change))
        change.private[COUNTS], change.hook_state[self] = memo.counts.to_json(), memo

    def _perturb(self, matched: _MatchedRules, plan: Plan, state: SessionState, change: Effect) -> None:
        """Replace the agent's answer as the rules say, and add `perturbed` to the record if a rule had an effect."""
        decision, real = matched.decision, change.answer
        names, answer = [*decision.applied], real
        phantom = matched.run and real.failure is None and not plan.read_only and decision.phantom
        if phantom:
            names.append(phantom.name)
        if matched.run and real.failure is None and decision.lost is not None:
            answer = replace(real, result=None, failure=_failure(decision.lost.value))
            names.append(decision.lost.name)
        elif matched.run and real.failure is None:
            if plan.compares and decision.results:  # restart the deadline that the read-only check has replaced
                matched.start_clock(plan.timeout_seconds, plan.own_timeout_seconds)
            answer, result_rules = self._apply_result_rules(decision, real, self._rules(state.session).seed)
            names += result_rules
        elif matched.run and matched.appearance is not None and matched.appearance.names:
            answer, renaming_rules = _rename_in_failure(real, matched.appearance)
            names += [name for name in renaming_rules if name not in names]
        if not names:
            return
        perturbed: dict[str, Any] = {"rules": names, "run": matched.run and not phantom}
        if phantom:
            perturbed["phantom"] = True
        perturbed["agent"] = self._agent_view(matched, real, answer)
        (change.members or {})["perturbed"] = perturbed
        change.answer = answer
        if answer.content != real.content:
            change.private["content"] = answer.content

    def _agent_view(self, matched: _MatchedRules, real: Outcome, answer: Outcome) -> dict[str, Any]:
        """Return the fields of the call where the agent's view differs from the real call.

        `function` is included if the agent used a new name for the called function or for a function in a nested call.
        """
        max_bytes, view = self._context.settings.max_record_bytes, dict[str, Any]()
        if matched.sent is not None:
            view["function"] = matched.sent.function
            if matched.sent.kwargs != _with_real_names(matched.sent.kwargs, matched.appearance):
                view["kwargs"] = Fragment(cut_arguments(matched.sent.sent, matched.sent.kwargs, max_bytes))
        if answer.failure is not real.failure and answer.failure is not None:
            view["error"] = cut_error(answer.failure.text, max_bytes)
        if answer.result != real.result:
            view["result"] = Fragment(cut_if_longer(b'""' if answer.result is None else answer.result, max_bytes))
        return view

    def _apply_result_rules(self, decision: Decision, outcome: Outcome, seed: str) -> tuple[Outcome, list[str]]:
        """Apply the rules that change results. Return the new outcome, and the names of the rules that changed it.

        If a rule makes the result too large, the outcome is a failure. The call's deadline can interrupt this method.
        """
        names: list[str] = []
        if not decision.results:
            return outcome, names
        max_bytes, content = self._context.settings.max_result_bytes, outcome.content
        with interruptible():
            value = loads(outcome.result or b'""')
            text = dumps(value)
            for rule, name, number in decision.results:
                try:
                    random = KeyedRandom.of(seed, rule.name, name, number)
                    value = apply_effect(rule, value, random, max_bytes, content=outcome.content)
                    new = dumps(value)
                    if len(new) > max(max_bytes, len(text)):
                        raise too_large_error(max_bytes)
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

    def _recent_answers(
        self, memo: _Memo, operation: CallOperation, state: SessionState, change: Effect
    ) -> Mapping[bytes, bytes]:
        """Return the latest answers. Add this call's answer if a `stale` rule might need it later."""
        answer: Outcome = change.answer
        if answer.failure is not None or answer.result is None or not self._rules(state.session).may_be_stale:
            return memo.recent
        if max(len(answer.result), len(operation.request.sent)) > self._context.settings.max_record_bytes:
            return memo.recent  # as in `_extend_index`, ignore an answer that is cut in its record
        name, _ = self._calls(operation, state)[-1]
        # The key is computed from `sent`, because the function might have changed the objects in `kwargs`.
        key = dumps((name, loads(operation.request.sent)), sort_keys=True)
        others = [entry for entry in memo.recent.items() if entry[0] != key][1 - MAX_RECENT :]
        return dict([*others, (key, answer.result)])


def _with_real_names(kwargs: Mapping[str, Any], appearance: Appearance | None) -> dict[str, Any]:
    """Return the arguments with the real names of functions in nested calls."""
    return {name: _with_real_name(value, appearance) for name, value in kwargs.items()}


def _with_real_name(value: Any, appearance: Appearance | None) -> Any:
    """Return an argument with real names of functions if it is a nested call. Otherwise return it unchanged."""
    call = value.get("$call") if type(value) is dict and len(value) == 1 else None
    if type(call) is not dict or call.keys() != {"function", "args"} or type(call["args"]) is not dict:
        return value
    function = appearance.real_name(call["function"]) if appearance is not None else None
    return {"$call": {"function": function or call["function"], "args": _with_real_names(call["args"], appearance)}}


def _rename_in_failure(outcome: Outcome, appearance: Appearance) -> tuple[Outcome, list[str]]:
    """Replace real names of functions in a failure's message by new names, because the agent knows only the new names.

    Return the outcome, and the names of the rules that renamed the functions.
    """
    failure = outcome.failure
    if failure is None:
        return outcome, []
    message, rules = appearance.rename_in(failure.message)
    return (replace(outcome, failure=replace(failure, message=message)) if rules else outcome), rules


def _failure(text: str) -> CallFailure:
    """Build a failure from a string: `ErrorType: message`, or a message alone."""
    match = _TYPED.fullmatch(text)
    kind, message = (match[1], match[2]) if match else ("", text)
    return CallFailure(kind, message, Failure.RAISED)


def _digest(key: bytes) -> bytes:
    return hashlib.blake2b(key, digest_size=16).digest()


def _is_cut(result: Any) -> bool:
    return isinstance(result, dict) and result.keys() == {"$cut"}
