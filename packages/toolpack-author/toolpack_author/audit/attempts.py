"""Attempts: wrong tries at a task, made from its solution.

Pure. The attempts of a task follow from the task, its toolpack's solutions and the seed; what other tasks are
audited makes no difference. Where two are the same calls and answer, there is one.
"""

import calendar
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from toolpack_author.audit.values import (
    KnownValues,
    Path,
    arguments,
    choices_at,
    leaves,
    named_in,
    others,
    replaced,
    respelled,
    spoken_in,
)
from toolpack_server.features.api.core import AGENT
from toolpack_server.features.evaluation.tasks.solutions import PlainCall
from toolpack_server.jsonio.strict import dumps

Calls = tuple[PlainCall, ...]

CANNOT_SAY = "It could not be found out."
AGENTS, CALLS_EACH = 5, 6  # of the agents that call at random
HARMS = 12
VALUES_EACH = 3
LEAVES_EACH = 4  # of one argument that holds several values
SHOWN = 60

_WHOLE_NUMBER = re.compile(r"(?<![\w.,:/-])\d")  # where one begins
_LONG_NUMBER = re.compile(r"(?<![\w.,:/-])[1-9]\d{3,11}(?![\d:/-])(?!\w)")  # its whole part, without separators

GUESS = ", ".join(
    ["yes", "no", "none", *map(str, range(101)), *calendar.day_name, *calendar.month_name[1:], "A", "B", "C", "D"]
)


@dataclass(frozen=True, slots=True)
class Solved:
    """What the attempts at one task are made from.

    Attributes:
        prompt: As one text.
        functions: What the agent's address has, by name: the function's description.
        calls: Its solution's; None if it has none.
        changing: The places of those of them that are the agent's, and have changed a version.
        answer: Its solution's.
        own: The values of its solution.
        pool: Those of the world and of other solutions, without its own.
        answers: Those of other solutions.
        dump: All values of the world.
    """

    prompt: str
    functions: Mapping[str, Mapping[str, Any]]
    calls: Calls | None
    changing: Sequence[int]
    answer: str
    own: KnownValues
    pool: KnownValues
    answers: Sequence[str]
    dump: str


@dataclass(frozen=True, slots=True)
class Attempt:
    """A try at a task.

    Attributes:
        kind: As the table in docs/write/tasks.md names it.
        start: How many calls of the solution come first.
        calls: Those that follow.
        what: Says what was tried, after "passes".
        about: What of the task it is about, such as an argument: a finding's own name within its kind.
        names: The value that the prompt names, if another one stands in its place; else None.
        place: The place of the call that is another one than in the solution.
    """

    kind: str
    start: int
    calls: Calls
    answer: str
    what: str
    about: str = ""
    names: Any = None
    place: int | None = None


def attempts(solved: Solved, seed: str, most: int) -> list[Attempt]:
    """Get the attempts at a task, at most so many."""
    rng = Random(seed)  # noqa: S311 - it is to be repeatable
    found: dict[bytes, Attempt] = {}
    own = solved.calls or ()
    if solved.calls is not None:
        found[_key(own, solved.answer)] = Attempt("solution", len(own), (), solved.answer, "")
    for attempt in _all(solved, rng):
        found.setdefault(_key((*own[: attempt.start], *attempt.calls), attempt.answer), attempt)
    return [attempt for attempt in found.values() if attempt.kind != "solution"][:most]


def _key(calls: Calls, answer: str) -> bytes:
    return dumps([[*calls], answer])


def _all(solved: Solved, rng: Random) -> Iterator[Attempt]:
    yield Attempt("nothing", 0, (), "", "nothing done")
    yield Attempt("echo", 0, (), solved.prompt, "the prompt as the answer")
    descriptions = "\n".join(str(each["description"]) for each in solved.functions.values())
    yield Attempt("tools", 0, (), descriptions, "the descriptions of the functions as the answer")
    yield Attempt("guess", 0, (), GUESS, "an answer that lists yes, no, numbers, days and months")
    if solved.calls is not None:
        yield from _respelled(solved, solved.calls)
        yield from _answers(solved, len(solved.calls), rng)
        yield from _omitted(solved, solved.calls)
    yield from _careless(solved, rng)
    if solved.calls is not None:
        yield from _reordered(solved, solved.calls)
        yield from _harming(solved, len(solved.calls), rng)
        yield from _arguments(solved, solved.calls, rng)
        if solved.answer:
            yield Attempt("dump", len(solved.calls), (), solved.dump, "all values of the world as the answer")


def _respelled(solved: Solved, calls: Calls) -> Iterator[Attempt]:
    """Get the solution with its numbers and times in other spellings that mean the same, which must pass."""
    spelled = []
    for name, kwargs, by in calls:
        schema = solved.functions[name]["parameters"] if name in solved.functions and by == AGENT else {}
        spelled.append((name, respelled(kwargs, schema, schema.get("$defs", {})), by))
    changed = [place for place, call in enumerate(spelled) if dumps(call) != dumps(calls[place])]
    if changed:
        what = "; ".join(f"{spelled[place][0]}({_listed(spelled[place][1])})" for place in changed[:2])
        yield Attempt("respelled", 0, tuple(spelled), solved.answer, f"the solution, spelled {what}", "calls")
    answer = _LONG_NUMBER.sub(lambda number: f"{int(number[0]):,}", solved.answer)
    if answer != solved.answer:
        what = f"the whole solution, with the answer {_shown(answer)}"
        yield Attempt("respelled", len(calls), (), answer, what, "answer")


def _answers(solved: Solved, whole: int, rng: Random) -> Iterator[Attempt]:
    if not solved.answer:
        return
    yield Attempt("empty", whole, (), "", "the whole solution without an answer")
    different = [each for each in solved.answers if not _alike(each, solved.answer)]
    plausible = _wrong(solved.answer) or (rng.choice(different) if different else "Nothing of that.")
    for answer in (plausible, CANNOT_SAY):
        yield Attempt("wrong", whole, (), answer, f"the whole solution, with the answer {_shown(answer)}")
    containing = _containing(solved.answer)
    what = f"the whole solution, with the answer {_shown(containing)}, which contains the right one"
    yield Attempt("containing", whole, (), containing, what)


def _containing(answer: str) -> str:
    """Get a wrong answer that contains the right one: its numbers, or else its words, within longer ones."""
    longer = _WHOLE_NUMBER.sub(r"9\g<0>", answer)
    return longer if longer != answer else re.sub(r"\b(?=[^\W\d_])", "un", answer)


def _wrong(answer: str) -> str:
    """Get an answer that says other numbers, or the contrary; "" if there is neither."""
    opposite = {"yes": "no", "no": "yes", "true": "false", "false": "true"}
    word = answer.strip(" .!").casefold()
    if word in opposite:
        return opposite[word]
    return re.sub(r"\d", lambda digit: str((int(digit[0]) + 3) % 10), answer) if re.search(r"\d", answer) else ""


def _alike(one: str, other: str) -> bool:
    one, other = one.casefold(), other.casefold()
    return one in other or other in one


def _omitted(solved: Solved, calls: Calls) -> Iterator[Attempt]:
    if len(solved.changing) > 1:
        kept = tuple(call for place, call in enumerate(calls) if place not in solved.changing)
        yield Attempt("read only", 0, kept, solved.answer, "without any call that changes something", "all calls")
    for place in solved.changing:
        what = f"without {_call(place, calls)}"
        yield Attempt("omit", place, calls[place + 1 :], solved.answer, what, f"call {place + 1}", place=place)


def _reordered(solved: Solved, calls: Calls) -> Iterator[Attempt]:
    for place in solved.changing:
        what = f"{_call(place, calls)}, twice"
        yield Attempt("repeat", place + 1, calls[place:], solved.answer, what, f"call {place + 1}", place=place)
    for one, other in zip(solved.changing, solved.changing[1:], strict=False):
        swapped = (calls[other], *calls[one + 1 : other], calls[one], *calls[other + 1 :])
        yield Attempt("swap", one, swapped, solved.answer, f"{_call(one, calls)} and {_call(other, calls)} swapped")


def _careless(solved: Solved, rng: Random) -> Iterator[Attempt]:
    """Get those that call without a thought for the task."""
    names = [*solved.functions]
    if not names:
        return

    def drawn(name: str) -> PlainCall:
        return name, arguments(solved.functions[name]["parameters"], [solved.pool], rng), AGENT

    yield Attempt("everything", 0, tuple(map(drawn, names)), "", "every function called once")
    for number in range(AGENTS):
        calls = tuple(drawn(rng.choice(names)) for _ in range(CALLS_EACH))
        yield Attempt("random", 0, calls, "", f"{CALLS_EACH} calls at random (agent {number + 1})")


def _harming(solved: Solved, whole: int, rng: Random) -> Iterator[Attempt]:
    """Get those that change more than asked for: what the task is about, where a function can."""
    names = [name for name, each in solved.functions.items() if not each["read_only"]]
    for name in rng.sample(names, min(HARMS, len(names))):
        kwargs = arguments(solved.functions[name]["parameters"], [solved.own, solved.pool], rng)
        what = f"the whole solution, then {name}({_listed(kwargs)})"
        yield Attempt("harm", whole, ((name, kwargs, AGENT),), solved.answer, what)


def _arguments(solved: Solved, calls: Calls, rng: Random) -> Iterator[Attempt]:
    """Get those with another argument: first one value for each, then a second one."""
    rounds: list[list[Attempt]] = [[] for _ in range(VALUES_EACH)]
    for place in solved.changing:
        name, kwargs, _ = calls[place]
        described = solved.functions.get(name)
        for argument, whole in kwargs.items():
            if isinstance(whole, Mapping) and "$call" in whole:
                continue
            for near, path, value in [*leaves(whole, argument, (argument,))][:LEAVES_EACH]:
                choices = choices_at(described["parameters"], path) if described else ()
                tried = others(value, near, solved.pool, choices, rng, VALUES_EACH)
                for number, other in enumerate(tried):
                    rounds[number].append(_with(solved, calls, place, path, value, other))
    for each in rounds:
        yield from each


def _with(solved: Solved, calls: Calls, place: int, path: Path, value: Any, other: Any) -> Attempt:
    name, kwargs, by = calls[place]
    changed = (name, replaced(kwargs, path, other), by)
    spelled = ".".join(map(str, path))
    return Attempt(
        "argument",
        place,
        (changed, *calls[place + 1 :]),
        solved.answer,
        f"{_call(place, calls)}, with {spelled}={_shown(other)}",
        f"call {place + 1}, {spelled}",
        names=value if _is_named(solved.prompt, path, value) else None,
        place=place,
    )


def _is_named(prompt: str, path: Path, value: Any) -> bool:
    """Whether the prompt says a value; of true and false, whether it says what is to be so."""
    names = [step for step in path if isinstance(step, str)]
    return spoken_in(prompt, names[-1]) if isinstance(value, bool) else named_in(prompt, value)


def _call(place: int, calls: Calls) -> str:
    return f"call {place + 1}, {calls[place][0]}"


def _listed(kwargs: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={_shown(value)}" for name, value in kwargs.items())


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"
