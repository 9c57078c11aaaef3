"""The rules of perturbations, in requests and in variants of tasks: what each must be, and when one holds.

Pure. A rule is a JSON object with one effect and with what must hold for it; what it says follows from that,
from a seed and from the agent's calls alone.
"""

import fnmatch
import hashlib
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from toolpack_server.jsonio.equality import equal_arguments
from toolpack_server.jsonio.strict import dumps

MAX_RULES = 50
MAX_BYTES = 16_384
MAX_DELAY = 366 * 86_400.0  # seconds

WHEN = ("name", "functions", "calls", "rate", "after", "where")
FORGETS = ("description", "descriptions", "types", "required", "defaults")
TOO_MANY = f"Perturbations have at most {MAX_RULES} rules and {MAX_BYTES} bytes: give fewer"

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}", re.ASCII)
_ITEM = re.compile(r"(\d{1,9})(-(\d{1,9})?)?(?:/(\d{1,9}))?", re.ASCII)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_share(value: Any) -> bool:
    return _is_number(value) and 0 <= value <= 1


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and value != ""


def _are_texts(value: Any) -> bool:
    return isinstance(value, list | tuple) and len(value) > 0 and all(map(_is_text, value))


def _maps_texts(value: Any) -> bool:
    return (
        isinstance(value, Mapping) and bool(value) and all(_is_text(a) and isinstance(b, str) for a, b in value.items())
    )


def _renames(value: Any) -> bool:
    return _maps_texts(value) and all(_NAME.fullmatch(new) for new in value.values())


def _appends(value: Any) -> bool:
    if isinstance(value, Mapping):
        texts = all(isinstance(each, str) for each in value.values())
        return value.keys() == {"text", "at"} and texts and value["at"][:1] in {"", "/"}
    return _is_text(value)


def _truncates(value: Any) -> bool:
    sizes = value.values() if isinstance(value, Mapping) and value and value.keys() <= {"texts", "items"} else [None]
    return all(type(each) is int and each >= 0 for each in sizes)


EFFECTS: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "error": (_is_text, "text"),
    "stale": (lambda value: value is True, "true"),
    "lost": (_is_text, "text"),
    "delay": (lambda value: _is_number(value) and 0 < value <= MAX_DELAY, f"number of seconds up to {MAX_DELAY:.0f}"),
    "result": (lambda _value: True, "JSON"),
    "replace": (_maps_texts, "object of texts by texts"),
    "append": (_appends, "text, or object with text and at, a JSON Pointer"),
    "truncate": (_truncates, "object with texts or items, numbers"),
    "drop": (
        lambda value: _are_texts(value) or _is_share(value),
        "list of names or JSON Pointers, or share from 0 to 1",
    ),
    "null": (
        lambda value: _are_texts(value) or _is_share(value),
        "list of names or JSON Pointers, or share from 0 to 1",
    ),
    "corrupt": (_is_share, "share from 0 to 1"),
    "hide": (lambda value: value is True, "true"),
    "rename": (lambda value: value is True or _renames(value), "true, or object of new names by old ones"),
    "describe": (lambda value: _is_text(value) or value is True, "text, or true"),
    "forget": (
        lambda value: _are_texts(value) and {*value} <= {*FORGETS},
        f"list of {', '.join(FORGETS)}",
    ),
}
"""Each effect, with what its value must be."""

OF_LISTS = frozenset({"hide", "rename", "describe", "forget"})
"""Effects on how functions are listed. The others are on a call."""

INSTEAD = frozenset({"error", "stale"})
"""Effects by which a call isn't run."""

OF_NESTED = frozenset({"error", "lost", "delay"})
"""Effects on nested calls, too."""


@dataclass(frozen=True)
class Rule:
    """A rule; `value` is that of its effect."""

    name: str
    effect: str
    value: Any
    functions: Sequence[str] | None = None
    calls: Sequence[tuple[int, int | None, int | None]] = ()  # from, to, of every so many
    rate: float | None = None
    after: Sequence[str] | None = None
    where: Mapping[str, Any] | None = None

    def names(self, spellings: frozenset[str]) -> bool:
        """Whether it is about a function with these names."""
        return _named(self.functions, spellings)

    def waits_for(self, spellings: frozenset[str]) -> bool:
        return self.after is not None and _named(self.after, spellings)

    def counts(self, number: int) -> bool:
        """Whether it is about the call of this number, from 1."""
        return not self.calls or any(_holds(each, number) for each in self.calls)

    def hits(self, seed: str, function: str, number: int | None = None) -> bool:
        """Draw whether it happens: for each call anew, or without a number once for the function."""
        return self.rate is None or draw(seed, self.name, function, number) < self.rate

    def fits(self, arguments: Mapping[str, Any]) -> bool:
        return self.where is None or all(
            name in arguments and equal_arguments(arguments[name], value) for name, value in self.where.items()
        )


def draw(*about: Any) -> float:
    """Draw a number from 0 up to 1 that follows from what it is about, by BLAKE2b."""
    digest = hashlib.blake2b(dumps(about), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64


def read_rules(given: Any) -> list[Rule]:
    """Read rules.

    Raises:
        ValueError: One of them isn't a rule; the text is a sentence without its full stop.
    """
    if not isinstance(given, list | tuple):
        raise ValueError("Rules are no list")  # noqa: TRY004 - one kind of error for whoever shows the sentence
    if len(given) > MAX_RULES:
        raise ValueError(TOO_MANY)
    rules = [_read(place, rule) for place, rule in enumerate(given)]
    try:
        size = len(dumps([*given]))
    except (TypeError, ValueError, RecursionError):
        raise ValueError("The rules have no JSON form: use texts, numbers, lists and objects") from None
    if size > MAX_BYTES:
        raise ValueError(TOO_MANY)
    names = [rule.name for rule in rules]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"Two rules are called {name!r}: give each a name of its own")
    return rules


def _read(place: int, given: Any) -> Rule:
    if not isinstance(given, Mapping):
        raise ValueError(f"Rule '{place}' is no object")  # noqa: TRY004 - as above
    name = given.get("name", str(place))
    if not _is_text(name):
        raise ValueError(f"Rule '{place}': name is no text")
    about = f"Rule {name[:100]!r}"
    choices = (*WHEN, *EFFECTS)
    for each in given:
        if each not in choices:
            raise ValueError(f"{about}: there is no {str(each)[:100]!r}: choose from {', '.join(choices)}")
    effects = [each for each in EFFECTS if each in given]
    if len(effects) != 1:
        number = f"{len(effects)} effects" if effects else "no effect"
        raise ValueError(f"{about}: it has {number}: give one of {', '.join(EFFECTS)}")
    (effect,) = effects
    fits, wanted = EFFECTS[effect]
    if not fits(given[effect]):
        raise ValueError(f"{about}: {effect} is no {wanted}")
    if "rate" in given and not _is_share(given["rate"]):
        raise ValueError(f"{about}: rate is no number from 0 to 1")
    for member in ("functions", "after"):
        if member in given and not (_is_text(given[member]) or _are_texts(given[member])):
            raise ValueError(f"{about}: {member} is no name, pattern, or list of them")
    if "where" in given and not (isinstance(given["where"], Mapping) and all(map(_is_text, given["where"]))):
        raise ValueError(f"{about}: where is no object of arguments")
    if "where" in given and effect in OF_LISTS:
        raise ValueError(f"{about}: where is about arguments, which {effect} has not: leave it out")
    return Rule(
        name,
        effect,
        given[effect],
        _patterns(given.get("functions")),
        _read_calls(about, given["calls"]) if "calls" in given else (),
        given.get("rate"),
        _patterns(given.get("after")),
        given.get("where"),
    )


def _patterns(given: Any) -> Sequence[str] | None:
    return [given] if isinstance(given, str) else given


def _read_calls(about: str, given: Any) -> list[tuple[int, int | None, int | None]]:
    if not isinstance(given, str):
        raise ValueError(f"{about}: calls is no text, such as '2', '1-3', '4-' or '4-5/5'")  # noqa: TRY004 - as above
    found = []
    for item in given.split(","):
        match = _ITEM.fullmatch(item.strip())
        if match is None:
            raise ValueError(f"{about}: calls has {item.strip()[:100]!r}: write '2', '1-3', '4-' or '4-5/5'")
        first, every = int(match[1]), int(match[4]) if match[4] else None
        open_ended = match[2] is not None and match[3] is None
        last = None if open_ended else int(match[3] or first)
        if first < 1 or (last is not None and last < first) or (every is not None and max(first, last or 0) > every):
            raise ValueError(f"{about}: calls has {item.strip()!r}: count from 1, upwards")
        found.append((first, last, every))
    return found


def _holds(calls: tuple[int, int | None, int | None], number: int) -> bool:
    first, last, every = calls
    place = number if every is None else (number - 1) % every + 1
    return first <= place and (last is None or place <= last)


def _named(patterns: Sequence[str] | None, spellings: frozenset[str]) -> bool:
    return patterns is None or any(fnmatch.fnmatchcase(name, each) for each in patterns for name in spellings)
