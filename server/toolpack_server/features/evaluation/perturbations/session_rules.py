"""Perturbation rules of one session. They decide which rules apply to a call, and how functions appear to the agent.

All functions here are pure. Values that depend only on the rules and the session's functions are computed once.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from toolpack_server.features.evaluation.perturbations.appearance import Appearance
from toolpack_server.features.evaluation.rules import LIST_EFFECTS, NESTED_EFFECTS, REPLACING_EFFECTS, Rule, read_rules
from toolpack_server.packs.names import without_dots
from toolpack_server.packs.pack_function import PackFunction

MAX_APPEARANCES = 100  # max cached appearances for each `SessionRules`

Call = tuple[str, Mapping[str, Any]]
"""A call: the function's name in the session, and the arguments."""


class Functions:
    """Index of a session's functions: their names in calls and in rules.

    Args:
        functions: Maps each name that a call can use to its function.

    Attributes:
        names: Maps each name that a call can use to the function's name in the session.
        spellings: Maps the function's name in the session to all names that a rule can use for it.
    """

    def __init__(self, functions: Mapping[str, PackFunction]) -> None:
        self.names = {name: function.name for name, function in functions.items()}
        self.spellings = {function.name: _spellings(function) for function in functions.values()}

    def __iter__(self) -> Any:
        return iter(self.spellings)


def _spellings(function: PackFunction) -> frozenset[str]:
    names = {function.name, function.registered_name, f"{function.toolpack}.{function.registered_name}"}
    return frozenset(names | {without_dots(name) for name in names})


class Decision(NamedTuple):
    """The rules that apply to a call.

    Attributes:
        applied: The names of the rules that take effect before the call runs.
        replacement: A rule that answers the call, so the function doesn't run.
        lost: A rule that replaces the answer to a successful call by an error.
        phantom: A rule that keeps the call's changes from being committed.
        results: The rules that change the result. With each rule come the function's name and the call's number, which
            determine the rule's random numbers.
        delay: Seconds that rules add to the session's clock before the call.
    """

    applied: Sequence[str] = ()
    replacement: Rule | None = None
    lost: Rule | None = None
    phantom: Rule | None = None
    results: Sequence[tuple[Rule, str, int]] = ()
    delay: float = 0.0


class SessionRules:
    """The perturbation rules of a session.

    Attributes:
        seed: Seed that determines the random numbers of the rules.
        may_be_stale: Whether a rule repeats earlier answers, so that the hook must remember answers.
        changes_lists: Whether the agent's list of functions can change between calls.
    """

    def __init__(self, rules: Sequence[Rule], seed: str, functions: Functions) -> None:
        self.seed = seed
        self._functions = functions
        self._call_rules = [rule for rule in rules if rule.effect not in LIST_EFFECTS]
        self._list_rules = [rule for rule in rules if rule.effect in LIST_EFFECTS]
        self._functions_by_rule = {
            rule.name: [name for name, spellings in functions.spellings.items() if rule.names(spellings)]
            for rule in rules
        }
        self._triggers = {
            rule.name: [name for name, spellings in functions.spellings.items() if rule.waits_for(spellings)]
            for rule in rules
            if rule.after is not None
        }
        self.may_be_stale = any(rule.effect == "stale" for rule in self._call_rules)
        self.changes_lists = any(rule.calls or rule.after for rule in self._list_rules)
        self._appearance = lru_cache(maxsize=MAX_APPEARANCES)(self._make_appearance)

    @classmethod
    def of(cls, perturbations: Mapping[str, Any], functions: Functions) -> "SessionRules":
        return cls(read_rules(perturbations["rules"]), perturbations["seed"], functions)

    def unknown_pattern(self, rule: Rule) -> str | None:
        """Return the first pattern of a rule that matches no function of the session, or None."""
        renamed: Sequence[str] = [*rule.value] if rule.effect == "rename" and rule.value is not True else ()
        harmful = rule.harmful_functions
        for pattern in [*(rule.functions or ()), *(rule.after or ()), *harmful, *renamed]:
            pattern_rule = Rule(rule.name, rule.effect, rule.value, [pattern])  # the rule with only this pattern
            if not any(map(pattern_rule.names, self._functions.spellings.values())):
                return pattern
        return None

    def ambiguous_name(self) -> tuple[str, str] | None:
        """Return the name of a rule that renames two functions to the same name, and that name.

        Return None if all new names are unique.
        """
        for rule in self._list_rules:
            names = self._make_appearance((rule.name,)).names
            new_names = [names.get(name, (name, ""))[0] for name in self._functions]
            for name, _ in names.values():
                if sum(without_dots(name) == without_dots(other) for other in new_names) > 1:
                    return rule.name, name
        return None

    # Calls

    def decide(self, before: Mapping[str, int], calls: Sequence[Call], has_answer: Callable[[Call], bool]) -> Decision:
        """Return the rules that apply to a call and its nested calls: calls that are written as its arguments.

        If a rule answers any of these calls in place of its function, the whole call gets this answer, so rules for the
        result aren't searched. Of several `lost` or `phantom` rules, the first counts.

        Args:
            before: The number of earlier calls, by function.
            calls: The nested calls in order, then the call itself.
            has_answer: Returns whether the agent got an answer to an equal call before. Only `stale` rules need it.
        """
        applied: list[str] = []
        results: list[tuple[Rule, str, int]] = []
        lost, phantom, delay, counts = None, None, 0.0, dict(before)
        for index, (name, arguments) in enumerate(calls):
            counts[name] = counts.get(name, 0) + 1
            nested = index < len(calls) - 1  # the call itself comes last
            for rule in self._call_rules:
                if nested and rule.effect not in NESTED_EFFECTS:
                    continue
                number = self._call_number(rule, name, arguments, before, counts)
                if number is None or (rule.effect == "stale" and not has_answer((name, arguments))):
                    continue
                if rule.effect in REPLACING_EFFECTS:
                    return Decision([*applied, rule.name], rule, delay=delay)
                if rule.effect == "delay":
                    delay += rule.value
                    applied.append(rule.name)
                elif rule.effect == "lost":
                    lost = lost or rule
                elif rule.effect == "phantom":
                    phantom = phantom or rule
                else:
                    results.append((rule, name, number))
        return Decision(applied, None, lost, phantom, results, delay)

    def _call_number(
        self, rule: Rule, name: str, arguments: Mapping[str, Any], before: Mapping[str, int], counts: Mapping[str, int]
    ) -> int | None:
        """Return the number of a call, counting calls to any function that the rule affects.

        Return None if the rule doesn't apply to the call.
        """
        functions = self._functions_by_rule[rule.name]
        if name not in functions or not self._is_triggered(rule, before):
            return None
        number = sum(counts.get(function, 0) for function in functions)
        return number if rule.counts(number) and rule.fits(arguments) and rule.hits(self.seed, name, number) else None

    def _is_triggered(self, rule: Rule, before: Mapping[str, int]) -> bool:
        return rule.after is None or any(before.get(function) for function in self._triggers[rule.name])

    # Lists

    def appearance(self, before: Mapping[str, int]) -> Appearance | None:
        """Return how functions appear to the agent after these calls, or None if no rule changes the list now.

        Args:
            before: The number of earlier calls, by function.
        """
        if not self._list_rules:
            return None
        number = sum(before.values()) + 1  # of the agent's next call
        rules = [rule.name for rule in self._list_rules if rule.counts(number) and self._is_triggered(rule, before)]
        return self._appearance(tuple(rules)) if rules else None

    def _make_appearance(self, names: tuple[str, ...]) -> Appearance:
        """Return the appearance of functions that results from the rules with these names."""
        rules = [rule for rule in self._list_rules if rule.name in names]
        functions_by_rule = {
            rule.name: [name for name in self._functions_by_rule[rule.name] if rule.hits(self.seed, name)]
            for rule in rules
        }
        return Appearance(rules, functions_by_rule, [*self._functions])
