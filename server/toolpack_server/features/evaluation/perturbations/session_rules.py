"""The rules of one session: which hold for a call, and how functions appear to its agent.

Pure. What follows from the rules and the functions alone is computed once.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from toolpack_server.features.evaluation.perturbations.appearance import Appearance
from toolpack_server.features.evaluation.rules import INSTEAD, OF_LISTS, OF_NESTED, Rule, read_rules
from toolpack_server.packs.names import without_dots
from toolpack_server.packs.pack_function import PackFunction

VIEWS = 100

Call = tuple[str, Mapping[str, Any]]
"""What a function is called in the session, and its arguments."""


class Functions:
    """The functions of a session.

    Args:
        functions: By what they can be called there.

    Attributes:
        called: What each is called, by all names by which it can be.
        spellings: All names by which rules may mean it, by what it is called.
    """

    def __init__(self, functions: Mapping[str, PackFunction]) -> None:
        self.called = {name: function.name for name, function in functions.items()}
        self.spellings = {function.name: _spellings(function) for function in functions.values()}

    def __iter__(self) -> Any:
        return iter(self.spellings)


def _spellings(function: PackFunction) -> frozenset[str]:
    names = {function.name, function.registered_name, f"{function.toolpack}.{function.registered_name}"}
    return frozenset(names | {without_dots(name) for name in names})


class Decision(NamedTuple):
    """What rules do to a call.

    Attributes:
        met: The rules that the call has met before it runs.
        instead: The rule by which it isn't run.
        lost: The rule by which its answer is lost.
        results: The rules that change its result, each with the number of the call.
        delay: By how many seconds the clock is moved on before it.
    """

    met: Sequence[str] = ()
    instead: Rule | None = None
    lost: Rule | None = None
    results: Sequence[tuple[Rule, str, int]] = ()
    delay: float = 0.0


class SessionRules:
    """The rules of a session; `seed` is what chance is drawn from."""

    def __init__(self, rules: Sequence[Rule], seed: str, functions: Functions) -> None:
        self.seed = seed
        self._functions = functions
        self._of_calls = [rule for rule in rules if rule.effect not in OF_LISTS]
        self._of_lists = [rule for rule in rules if rule.effect in OF_LISTS]
        self._about = {
            rule.name: [name for name, spellings in functions.spellings.items() if rule.names(spellings)]
            for rule in rules
        }
        self._trusted = {
            rule.name: [name for name, spellings in functions.spellings.items() if rule.waits_for(spellings)]
            for rule in rules
            if rule.after is not None
        }
        self.may_be_stale = any(rule.effect == "stale" for rule in self._of_calls)
        self.changes_lists = any(rule.calls or rule.after for rule in self._of_lists)
        self._appearance = lru_cache(maxsize=VIEWS)(self._make_appearance)

    @classmethod
    def of(cls, written: Mapping[str, Any], functions: Functions) -> "SessionRules":
        return cls(read_rules(written["rules"]), written["seed"], functions)

    def unknown(self, rule: Rule) -> str | None:
        """Get a pattern of a rule that is about no function of the session."""
        renamed: Sequence[str] = [*rule.value] if rule.effect == "rename" and rule.value is not True else ()
        for pattern in [*(rule.functions or ()), *(rule.after or ()), *renamed]:
            only = Rule(rule.name, rule.effect, rule.value, [pattern])
            if not any(map(only.names, self._functions.spellings.values())):
                return pattern
        return None

    def ambiguous(self) -> tuple[str, str] | None:
        """Get a rule by which two functions would be called alike, and that name."""
        for each in self._of_lists:
            names = self._make_appearance((each.name,)).names
            called = [names.get(name, (name, ""))[0] for name in self._functions]
            for name, _ in names.values():
                if sum(without_dots(name) == without_dots(other) for other in called) > 1:
                    return each.name, name
        return None

    # Calls

    def decide(self, before: Mapping[str, int], calls: Sequence[Call], has_answer: Callable[[Call], bool]) -> Decision:
        """Say what the rules do to a call.

        Args:
            before: How often each function was called before.
            calls: The call, and before it those that are nested in it, in the order in which they run.
            has_answer: Whether a call has succeeded before.
        """
        met: list[str] = []
        results: list[tuple[Rule, str, int]] = []
        lost, delay, counts = None, 0.0, dict(before)
        for place, (name, arguments) in enumerate(calls):
            counts[name] = counts.get(name, 0) + 1
            nested = place < len(calls) - 1
            for rule in self._of_calls:
                if nested and rule.effect not in OF_NESTED:
                    continue
                number = self._number(rule, name, arguments, before, counts)
                if number is None or (rule.effect == "stale" and not has_answer((name, arguments))):
                    continue
                if rule.effect in INSTEAD:
                    return Decision([*met, rule.name], rule, None, (), delay)
                if rule.effect == "delay":
                    delay += rule.value
                    met.append(rule.name)
                elif rule.effect == "lost":
                    lost = lost or rule
                else:
                    results.append((rule, name, number))
        return Decision(met, None, lost, results, delay)

    def _number(
        self, rule: Rule, name: str, arguments: Mapping[str, Any], before: Mapping[str, int], counts: Mapping[str, int]
    ) -> int | None:
        """Get the number of a call among those that a rule counts; None if the rule isn't about it."""
        about = self._about[rule.name]
        if name not in about or not self._is_trusted(rule, before):
            return None
        number = sum(counts.get(each, 0) for each in about)
        return number if rule.counts(number) and rule.fits(arguments) and rule.hits(self.seed, name, number) else None

    def _is_trusted(self, rule: Rule, before: Mapping[str, int]) -> bool:
        return rule.after is None or any(before.get(each) for each in self._trusted[rule.name])

    # Lists

    def appearance(self, before: Mapping[str, int]) -> Appearance | None:
        """Get how functions appear after these calls; None: as they are."""
        if not self._of_lists:
            return None
        number = sum(before.values()) + 1
        rules = [rule.name for rule in self._of_lists if rule.counts(number) and self._is_trusted(rule, before)]
        return self._appearance(tuple(rules)) if rules else None

    def _make_appearance(self, names: tuple[str, ...]) -> Appearance:
        rules = [rule for rule in self._of_lists if rule.name in names]
        about = {rule.name: [name for name in self._about[rule.name] if rule.hits(self.seed, name)] for rule in rules}
        return Appearance(rules, about, [*self._functions])
