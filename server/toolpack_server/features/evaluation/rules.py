"""Perturbation rules of requests and task variants: their validation and their conditions.

A rule is a JSON object with one effect, such as `error`, and optional conditions, such as `calls`. Whether a rule
applies depends only on the rule, the seed and the agent's calls. All functions here are pure.
"""

import fnmatch
import hashlib
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from toolpack_server.features.evaluation.rule_lists import MAX_BYTES, MAX_RULES, Texts, are_texts, is_text, read_list
from toolpack_server.jsonio.equality import equal_arguments
from toolpack_server.jsonio.strict import dumps

MAX_DELAY = 366 * 86_400.0  # seconds

WHEN = ("name", "functions", "calls", "rate", "after", "where")
FORGETS = ("description", "descriptions", "types", "required", "defaults")

_TEXTS = Texts(
    "The rules must be a list",
    f"Perturbations can have at most {MAX_RULES} rules and {MAX_BYTES} bytes: give fewer rules",
    "The rules can't be converted to JSON: use strings, numbers, lists and objects",
    "Two rules have the name {name!r}: give each rule a different name",
)

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}", re.ASCII)
_ITEM = re.compile(r"(\d{1,9})(-(\d{1,9})?)?(?:/(\d{1,9}))?", re.ASCII)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_share(value: Any) -> bool:
    return _is_number(value) and 0 <= value <= 1


def _maps_texts(value: Any) -> bool:
    return (
        isinstance(value, Mapping) and bool(value) and all(is_text(a) and isinstance(b, str) for a, b in value.items())
    )


def _renames(value: Any) -> bool:
    return _maps_texts(value) and all(_NAME.fullmatch(new) for new in value.values())


def _appends(value: Any) -> bool:
    if isinstance(value, Mapping):
        texts = all(isinstance(each, str) for each in value.values())
        return value.keys() == {"text", "at"} and texts and value["at"][:1] in {"", "/"}
    return is_text(value)


def _describes(value: Any) -> bool:
    if isinstance(value, Mapping):
        return value.keys() == {"append"} and is_text(value["append"])
    return is_text(value) or value is True


def _truncates(value: Any) -> bool:
    sizes = value.values() if isinstance(value, Mapping) and value and value.keys() <= {"texts", "items"} else [None]
    return all(type(each) is int and each >= 0 for each in sizes)


EFFECTS: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "error": (is_text, "a string"),
    "stale": (lambda value: value is True, "true"),
    "lost": (is_text, "a string"),
    "phantom": (lambda value: value is True, "true"),
    "delay": (lambda value: _is_number(value) and 0 < value <= MAX_DELAY, f"a number of seconds up to {MAX_DELAY:.0f}"),
    "result": (lambda _value: True, "JSON"),
    "replace": (_maps_texts, "an object that maps strings to strings"),
    "append": (_appends, "a string, or an object with text and at, a JSON Pointer"),
    "truncate": (_truncates, "an object with numbers as texts or items"),
    "drop": (
        lambda value: are_texts(value) or _is_share(value),
        "a list of names or JSON Pointers, or a share from 0 to 1",
    ),
    "null": (
        lambda value: are_texts(value) or _is_share(value),
        "a list of names or JSON Pointers, or a share from 0 to 1",
    ),
    "corrupt": (_is_share, "a share from 0 to 1"),
    "hide": (lambda value: value is True, "true"),
    "rename": (lambda value: value is True or _renames(value), "true, or an object that maps old names to new names"),
    "describe": (_describes, "a string, true, or an object with a string as append"),
    "forget": (
        lambda value: are_texts(value) and {*value} <= {*FORGETS},
        f"a list of {', '.join(FORGETS)}",
    ),
}
"""For each effect: the function that checks its value, and a description of valid values for error messages."""

LIST_EFFECTS = frozenset({"hide", "rename", "describe", "forget"})
"""Effects on the agent's list of functions. All other effects apply to calls."""

REPLACING_EFFECTS = frozenset({"error", "stale"})
"""Effects that answer a call in place of its function, which doesn't run."""

NESTED_EFFECTS = frozenset({"error", "lost", "phantom", "delay"})
"""Effects that apply to nested calls, not only to the call that contains them."""


@dataclass(frozen=True)
class Rule:
    """A parsed rule. `value` is the effect's parameter, and `harm` is the goal of an attacker."""

    name: str
    effect: str
    value: Any
    functions: Sequence[str] | None = None
    calls: Sequence[tuple[int, int | None, int | None]] = ()  # ranges: first call, last call, period
    rate: float | None = None
    after: Sequence[str] | None = None
    where: Mapping[str, Any] | None = None
    harm: str | Mapping[str, Any] | None = None  # a task's name, or {"functions", "text"} to recognize harmful calls

    @property
    def harmful_functions(self) -> Sequence[str]:
        """Patterns for the names of the functions that an attacker wants the agent to call."""
        return _patterns(self.harm["functions"]) or () if isinstance(self.harm, Mapping) else ()

    def is_harm(self, function: str) -> bool:
        """Return whether an attacker wants the agent to call this function. `function` is its name in the session."""
        return _match_any(self.harmful_functions, frozenset({function, function.rpartition(".")[2]}))

    def names(self, spellings: frozenset[str]) -> bool:
        """Return whether the rule applies to a function with these names."""
        return _match_any(self.functions, spellings)

    def waits_for(self, spellings: frozenset[str]) -> bool:
        """Return whether a call to a function with these names fulfils the rule's `after`."""
        return self.after is not None and _match_any(self.after, spellings)

    def counts(self, number: int) -> bool:
        """Return whether the rule's `calls` includes the call with this number, counted from 1."""
        return not self.calls or any(_includes(each, number) for each in self.calls)

    def hits(self, seed: str, function: str, number: int | None = None) -> bool:
        """Return True with the probability `rate`. The same seed, rule, function and number always get the same result.

        Args:
            number: The number of the call. None: the rule affects the list of functions, so all calls share a decision.
        """
        return self.rate is None or draw(seed, self.name, function, number) < self.rate

    def fits(self, arguments: Mapping[str, Any]) -> bool:
        """Return whether a call's arguments include the values in the rule's `where`."""
        return self.where is None or all(
            name in arguments and equal_arguments(arguments[name], value) for name, value in self.where.items()
        )


def draw(*about: Any) -> float:
    """Return a pseudorandom number in [0, 1), derived from the arguments with BLAKE2b."""
    digest = hashlib.blake2b(dumps(about), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64


def read_rules(value: Any) -> Sequence[Rule]:
    """Parse and validate rules.

    Raises:
        ValueError: A rule is invalid. The message has no full stop, so that the caller can embed it.
    """
    return read_list(value, _read, _TEXTS)


def _read(index: int, rule: Any) -> Rule:
    """Parse one rule. A rule without a name is named after its index."""
    if not isinstance(rule, Mapping):
        raise ValueError(f"Rule '{index}' must be an object")  # noqa: TRY004 - callers handle only ValueError
    name = rule.get("name", str(index))
    if not is_text(name):
        raise ValueError(f"Rule '{index}': name must be a string")
    about = f"Rule {name[:100]!r}"
    choices = (*WHEN, "harm", *EFFECTS)
    for member in rule:
        if member not in choices:
            raise ValueError(f"{about}: unknown field {str(member)[:100]!r}: choose from {', '.join(choices)}")
    effects = [effect for effect in EFFECTS if effect in rule]
    if len(effects) != 1:
        number = f"{len(effects)} effects" if effects else "no effect"
        raise ValueError(f"{about}: it has {number}: give one of {', '.join(EFFECTS)}")
    (effect,) = effects
    fits, description = EFFECTS[effect]
    if not fits(rule[effect]):
        raise ValueError(f"{about}: {effect} must be {description}")
    if "rate" in rule and not _is_share(rule["rate"]):
        raise ValueError(f"{about}: rate must be a number from 0 to 1")
    _check_members(about, rule, effect)
    return Rule(
        name,
        effect,
        rule[effect],
        _patterns(rule.get("functions")),
        _read_calls(about, rule["calls"]) if "calls" in rule else (),
        rule.get("rate"),
        _patterns(rule.get("after")),
        rule.get("where"),
        rule.get("harm"),
    )


def _check_members(about: str, rule: Mapping[str, Any], effect: str) -> None:
    """Check the fields that each rule can contain, except `calls` and `rate`, which `_read` checks."""
    for member in ("functions", "after"):
        if member in rule and not (is_text(rule[member]) or are_texts(rule[member])):
            raise ValueError(f"{about}: {member} must be a name, a pattern, or a list of them")
    if "where" in rule and not (isinstance(rule["where"], Mapping) and all(map(is_text, rule["where"]))):
        raise ValueError(f"{about}: where must be an object of arguments")
    if "where" in rule and effect in LIST_EFFECTS:
        raise ValueError(
            f"{about}: where selects calls by arguments, but {effect} affects the list of functions: omit it"
        )
    if "harm" in rule and not _is_harm(rule["harm"]):
        raise ValueError(f"{about}: harm must be the name of a task, or an object with functions and text")


def _is_harm(value: Any) -> bool:
    if isinstance(value, Mapping):
        patterns = _patterns(value.get("functions"))
        return value.keys() == {"functions", "text"} and are_texts(patterns) and is_text(value["text"])
    return is_text(value)


def _patterns(value: Any) -> Sequence[str] | None:
    return [value] if isinstance(value, str) else value


def _read_calls(about: str, value: Any) -> list[tuple[int, int | None, int | None]]:
    """Parse `calls`, such as `2, 4-5/5`, into ranges.

    A range consists of a first number, a last number and a period. For example, `4-5/5` selects the calls 4, 5, 9, 10,
    14, 15 and so on.
    """
    if not isinstance(value, str):
        # Callers handle only ValueError.
        raise ValueError(f"{about}: calls must be a string, such as '2', '1-3', '4-' or '4-5/5'")  # noqa: TRY004
    ranges = []
    for item in value.split(","):
        match = _ITEM.fullmatch(item.strip())
        if match is None:
            raise ValueError(f"{about}: calls has {item.strip()[:100]!r}: write '2', '1-3', '4-' or '4-5/5'")
        first, every = int(match[1]), int(match[4]) if match[4] else None
        open_ended = match[2] is not None and match[3] is None
        last = None if open_ended else int(match[3] or first)
        if first < 1 or (last is not None and last < first) or (every is not None and max(first, last or 0) > every):
            raise ValueError(f"{about}: calls has {item.strip()!r}: use numbers from 1, in ascending order")
        ranges.append((first, last, every))
    return ranges


def _includes(calls: tuple[int, int | None, int | None], number: int) -> bool:
    first, last, every = calls
    position = number if every is None else (number - 1) % every + 1
    return first <= position and (last is None or position <= last)


def _match_any(patterns: Sequence[str] | None, spellings: frozenset[str]) -> bool:
    return patterns is None or any(fnmatch.fnmatchcase(name, each) for each in patterns for name in spellings)
