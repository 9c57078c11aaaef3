"""Event rules of toolpacks, tasks and requests: validation, matching of calls, and random times of events.

An *event* is an action that a session's world takes by itself, such as calling a function. A *rule* is a JSON object
that says when an event happens and what the event does. Times are whole microseconds since the epoch, and durations are
whole microseconds. All functions here are pure.
"""

import fnmatch
import hashlib
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Context, Decimal
from functools import lru_cache
from typing import Annotated, Any

import jsonpointer
from pydantic import Field, TypeAdapter, ValidationError
from pydantic.errors import PydanticSchemaGenerationError
from pydantic_core import SchemaError

from toolpack_server.features.evaluation.rule_lists import MAX_BYTES, MAX_RULES, Texts, are_texts, is_text, read_list
from toolpack_server.jsonio.equality import equal_arguments, is_number
from toolpack_server.jsonio.strict import dumps

MAX_SECONDS = 366 * 86_400
SECOND = 10**6
DEFAULT_BEGINS = "2026-01-01T00:00:00Z"

WHENS = ("at", "every", "after", "call", "when")
MODIFIERS = ("delay", "spread", "count", "until", "where", "by")
EFFECTS = ("do", "say", "offer", "withdraw")
MEMBERS = ("name", *WHENS, *MODIFIERS, *EFFECTS, "args", "as", "to", "notice")
FACTS = ("function", "kwargs", "result", "error", "by", "at")
TESTS = ("matches", "below", "above", "exists")
EXPONENTIAL = "exponential"

_TEXTS = Texts(
    "The events must be a list of rules",
    f"A session can have at most {MAX_RULES} event rules, of {MAX_BYTES} bytes together; give fewer",
    "The event rules can't be converted to JSON; use strings, numbers, lists and objects",
    "Two events have the name {name!r}; give each a different one",
)
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}", re.ASCII)
_DURATION = re.compile(r"(?:(\d{1,5})d)?\s*(?:(\d{1,7})h)?\s*(?:(\d{1,8})m)?\s*(?:(\d{1,9}(?:\.\d{1,6})?)s)?", re.ASCII)
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,6})?(Z|[+-]\d\d:\d\d)", re.ASCII)
_UNITS = (86_400, 3600, 60, 1)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MISSING = object()
_DECIMAL = Context(prec=30)  # Decimal rounds logarithms correctly, so all machines compute the same random times


@dataclass(frozen=True)
class EventRule:
    """A parsed rule. `at` and `until` are times; `every`, `delay` and `spread` are durations.

    Attributes:
        shown: The rule as a JSON object, including its name.
        when: The condition that makes the event happen: a call to a read-only function (`call`, `kwargs`), and the
            result that the function must return (`where`).
        do: The name of the function that the event calls.
        say: The text of the message that the event sends.
        sender: The participant that sends the message. None: the world sends it.
        to: The participant that receives the message. None: all participants receive it.
    """

    name: str
    shown: Mapping[str, Any]
    at: int | None = None
    every: int | None = None
    after: Sequence[str] = ()
    call: str | None = None
    when: Mapping[str, Any] | None = None
    delay: int = 0
    spread: int | str = 0
    count: int | None = None
    until: int | None = None
    where: Mapping[str, Any] | None = None
    by: str | None = None
    do: str | None = None
    args: Mapping[str, Any] | None = None
    say: str | None = None
    sender: str | None = None
    to: str | None = None
    offer: Sequence[str] = ()
    withdraw: Sequence[str] = ()
    notice: str | None = None

    def is_set_off_by(self, names: Iterable[str], facts: Mapping[str, Any], *, run: bool, by_world: bool) -> bool:
        """Return whether a call triggers this rule.

        Args:
            names: All names of the called function.
            facts: The call as an object with the fields `FACTS`.
            run: Whether the function ran. If it didn't run or failed, only rules with `/error` in `where` match.
            by_world: Whether an event made the call. Such calls match only rules with `by`.
        """
        if self.call is None or not any(fnmatch.fnmatchcase(name, self.call) for name in names):
            return False
        # A rule without `by` matches the calls of all callers but the world, so that events don't trigger themselves.
        if by_world if self.by is None else facts["by"] != self.by:
            return False
        about_error = any(pointer == "/error" for pointer in self.where or ())
        return (about_error or (run and facts["error"] is None)) and fits(self.where, facts)

    def draw(self, seed: str, number: int) -> int:
        """Return the random part of an event's time: a delay up to `spread`, or an exponential interval.

        Args:
            number: How many events this rule has scheduled before.
        """
        if not self.spread:
            return 0
        digest = hashlib.blake2b(dumps([seed, self.name, number]), digest_size=16).digest()
        random_bits = int.from_bytes(digest, "big")
        if self.spread == EXPONENTIAL:
            uniform = _DECIMAL.divide(Decimal(random_bits + 1), Decimal(2**128))  # above 0, because ln(0) is infinite
            return max(int(_DECIMAL.multiply(-_DECIMAL.ln(uniform), Decimal(self.every or 0))), 1)
        return random_bits * (int(self.spread) + 1) >> 128  # uniform from 0 to `spread`


def fits(where: Mapping[str, Any] | None, facts: Mapping[str, Any]) -> bool:
    """Return whether the facts of a call match a rule's `where`."""
    return all(_fits(expected, lookup(facts, pointer)) for pointer, expected in (where or {}).items())


def lookup(facts: Mapping[str, Any], pointer: str) -> Any:
    """Return the value at a JSON Pointer. If nothing exists there, return an object that `is_missing` recognizes."""
    return jsonpointer.resolve_pointer(facts, pointer, _MISSING)


def is_missing(value: Any) -> bool:
    return value is _MISSING


def _fits(expected: Any, value: Any) -> bool:
    """Return whether a value equals `expected`, or passes the test in `expected`, such as `{"below": 5}`."""
    test = next(iter(expected)) if isinstance(expected, Mapping) and len(expected) == 1 else None
    if test not in TESTS:
        return value is not _MISSING and equal_arguments(value, expected)
    bound = expected[test]
    if test == "exists":
        return (value is not _MISSING and value is not None) is bound
    if test == "matches":
        return isinstance(value, str) and _matches(bound, value)
    return is_number(value) and (value < bound if test == "below" else value > bound)


def _matches(pattern: str, text: str) -> bool:
    """Return whether a text contains a match of a pattern.

    Pydantic's regex engine is used, because it runs in linear time whatever the pattern is.
    """
    try:
        _searcher(pattern).validate_python(text)
    except ValidationError:
        return False
    return True


@lru_cache(maxsize=256)  # compiling a pattern takes longer than a search
def _searcher(pattern: str) -> TypeAdapter[str]:
    return TypeAdapter(Annotated[str, Field(pattern=pattern)])


# Times


def microseconds(text: str) -> int:
    """Convert an RFC 3339 time with an offset to microseconds since the epoch.

    Raises:
        ValueError: The text isn't an RFC 3339 time with an offset.
    """
    if not _TIME.fullmatch(text):
        raise ValueError
    return (datetime.fromisoformat(text) - _EPOCH) // timedelta(microseconds=1)


def time_text(at: int) -> str:
    """Convert a time to RFC 3339 in UTC. Whole seconds are written without a fraction."""
    time = _EPOCH + timedelta(microseconds=at)
    return time.isoformat(timespec="microseconds" if at % SECOND else "seconds").replace("+00:00", "Z")


def _duration(value: Any) -> int | None:
    """Convert a number of seconds or a string such as `1h 30m` to microseconds. Return None for any other value."""
    if is_number(value) and math.isfinite(value) and 0 <= value <= MAX_SECONDS:
        rounded: int = round(value * SECOND)
        return rounded
    match = _DURATION.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None or not any(match.groups()):
        return None
    seconds: Decimal | int = sum(
        Decimal(part) * unit for part, unit in zip(match.groups(), _UNITS, strict=True) if part
    )
    return int(seconds * SECOND) if seconds <= MAX_SECONDS else None


# Validation


def read_event_rules(value: Any, begins: int = 0, *, complete: bool = True) -> Sequence[EventRule]:
    """Parse and validate rules.

    Args:
        begins: The time when the session begins. A duration in `at` or `until` counts from this time.
        complete: Whether `value` contains all rules of a session. Each name in `after` must then be the name of a rule
            in `value`.

    Raises:
        ValueError: A rule is invalid. The message has no full stop, so that the caller can embed it.
    """
    rules = read_list(value, lambda index, rule: _read(index, rule, begins), _TEXTS)
    names = {rule.name for rule in rules}
    for rule in rules if complete else ():
        for name in rule.after:
            if name not in names:
                raise ValueError(f"Event {rule.name!r}: after names {name[:100]!r}, but there is no such event")
    return rules


def _read(index: int, rule: Any, begins: int) -> EventRule:
    """Parse one rule. A rule without a name is named after its index."""
    if not isinstance(rule, Mapping):
        raise ValueError(f"Event '{index}' must be an object")  # noqa: TRY004 - callers handle only ValueError
    name = rule.get("name", str(index))
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ValueError(f"Event '{str(name)[:100]}': its name must have 1-64 letters, digits or `_.-`")
    about = f"Event {name!r}"
    for member in rule:
        if member not in MEMBERS:
            raise ValueError(f"{about}: unknown field {str(member)[:100]!r}; choose from {', '.join(MEMBERS)}")
    whens = [when for when in WHENS if when in rule]
    if len(whens) != 1 and whens != ["at", "every"]:  # these two together: first at this time, then at intervals
        raise ValueError(f"{about}: it has {len(whens) or 'none'} of {', '.join(WHENS)}; give one")
    effects = [effect for effect in EFFECTS if effect in rule]
    if len(effects) > 1:
        raise ValueError(f"{about}: it has {len(effects)} of {', '.join(EFFECTS)}; give one, or none")
    _check_members(about, rule)
    times = {each: _read_time(about, each, rule[each], begins) for each in ("at", "until") if each in rule}
    spread = rule.get("spread", 0)
    return EventRule(
        name,
        {"name": name, **rule},
        at=times.get("at"),
        every=_duration(rule["every"]) if "every" in rule else None,
        after=_list(rule.get("after", ())),
        call=rule.get("call"),
        when=_read_condition(about, rule["when"]) if "when" in rule else None,
        delay=_duration(rule.get("delay", 0)) or 0,
        spread=spread if spread == EXPONENTIAL else _duration(spread) or 0,
        count=rule.get("count"),
        until=times.get("until"),
        where=rule.get("where"),
        by=rule.get("by"),
        do=rule.get("do"),
        args=rule.get("args"),
        say=rule.get("say"),
        sender=rule.get("as"),
        to=rule.get("to"),
        offer=_list(rule.get("offer", ())),
        withdraw=_list(rule.get("withdraw", ())),
        notice=rule.get("notice"),
    )


def _check_members(about: str, rule: Mapping[str, Any]) -> None:
    """Check the types and values of a rule's fields."""
    for member in ("call", "by", "do", "say", "as", "to", "notice"):
        if member in rule and not is_text(rule[member]):
            raise ValueError(f"{about}: {member} must be a string")
    for member in ("after", "offer", "withdraw"):
        if member in rule and not (is_text(rule[member]) or are_texts(rule[member])):
            raise ValueError(f"{about}: {member} must be a name, or a list of names")
    for member in ("every", "delay", "spread"):
        exponential = member == "spread" and rule.get(member) == EXPONENTIAL and "every" in rule
        if member in rule and not exponential and _duration(rule[member]) is None:
            raise ValueError(f"{about}: {member} must be a duration of at most 366 days, such as 90 or '1h 30m'")
    if "every" in rule and (_duration(rule["every"]) or 0) < SECOND:
        raise ValueError(f"{about}: every must be at least 1 second")
    count = rule.get("count", 1)
    if type(count) is not int or not 1 <= count <= 2**31:
        raise ValueError(f"{about}: count must be a number from 1")
    _check_selection(about, rule)


def _check_selection(about: str, rule: Mapping[str, Any]) -> None:
    """Check that fields which need `call`, `say` or `do` are given only with them."""
    for member in ("where", "by"):
        if member in rule and "call" not in rule:
            raise ValueError(f"{about}: {member} selects calls; give it with call")
    for member in ("as", "to"):
        if member in rule and "say" not in rule:
            raise ValueError(f"{about}: {member} names a participant of a message; give it with say")
    if "where" in rule:
        _check_where(about, rule["where"])
    if "args" in rule and not ("do" in rule and isinstance(rule["args"], Mapping)):
        raise ValueError(f"{about}: args must be an object of arguments, with do")


def _check_where(about: str, where: Any) -> None:
    """Check that each key of `where` is a JSON Pointer into the facts of a call, and that each test is valid."""
    if not isinstance(where, Mapping):
        raise ValueError(f"{about}: where must be an object of values by JSON Pointer")  # noqa: TRY004 - as above
    for pointer, expected in where.items():
        first = str(pointer).split("/")[1] if str(pointer).startswith("/") else None
        if first not in FACTS:
            raise ValueError(f"{about}: where has {str(pointer)[:100]!r}; begin with /{', /'.join(FACTS)}")
        try:
            jsonpointer.JsonPointer(pointer)
        except jsonpointer.JsonPointerException:
            raise ValueError(f"{about}: where has {pointer[:100]!r}, which isn't a JSON Pointer") from None
        if isinstance(expected, Mapping) and len(expected) == 1 and next(iter(expected)) in TESTS:
            _check_test(about, *next(iter(expected.items())))


def _check_test(about: str, test: str, bound: Any) -> None:
    """Check that the value `bound` of a test, such as `{"below": 5}`, has the type that the test needs."""
    if test == "exists" and not isinstance(bound, bool):
        raise ValueError(f"{about}: exists must be true or false")
    if test in {"below", "above"} and not (is_number(bound) and math.isfinite(bound)):
        raise ValueError(f"{about}: {test} must be a number")
    if test == "matches":
        try:
            _searcher(bound)
        except (SchemaError, PydanticSchemaGenerationError, TypeError, ValueError):
            raise ValueError(f"{about}: matches must be a regular expression, without look-arounds") from None


def _read_time(about: str, member: str, value: Any, begins: int) -> int:
    """Parse a time. Convert a duration to a time by adding it to the session's beginning."""
    duration = _duration(value)
    if duration is not None:
        return begins + duration
    try:
        return microseconds(value)
    except (TypeError, ValueError, OverflowError):
        raise ValueError(
            f"{about}: {member} must be a time like 2026-03-02T09:30:00Z, or a duration like '1h 30m'"
        ) from None


def _read_condition(about: str, when: Any) -> Mapping[str, Any]:
    """Convert `when` to an object. In its short form, it is the name of a function that must return True."""
    if is_text(when):
        return {"call": when, "kwargs": {}, "where": {"/result": True}}
    valid = isinstance(when, Mapping) and {"call"} <= when.keys() <= {"call", "kwargs", "where"}
    if not valid or not is_text(when["call"]) or not isinstance(when.get("kwargs", {}), Mapping):
        raise ValueError(f"{about}: when must be the name of a condition, or an object with call, kwargs and where")
    where = when.get("where", {"/result": True})
    _check_where(about, where)
    return {"call": when["call"], "kwargs": when.get("kwargs", {}), "where": where}


def _list(value: Any) -> Sequence[str]:
    return [value] if isinstance(value, str) else value
