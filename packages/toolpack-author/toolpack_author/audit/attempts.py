"""Attempts at a task, mostly wrong variations of its solution.

If the task's evaluator accepts a wrong variation, the evaluator is too weak. These functions have no side effects. The
attempts depend only on the task, its toolpack's solutions and the seed, so auditing other tasks doesn't change them.
Attempts with equal calls and answers are merged.
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
    is_named_in,
    is_spoken_in,
    leaves,
    other_values,
    replace_at,
    respell,
)
from toolpack_server.features.api.core import AGENT
from toolpack_server.features.evaluation.tasks.solutions import PlainCall
from toolpack_server.jsonio.strict import dumps

Calls = tuple[PlainCall, ...]

WORLD_PACK = "world"  # the toolpack with the functions to wait
NO_ANSWER = "It could not be found out."
AGENTS, CALLS_EACH = 5, 6  # number of agents that call functions at random, and of calls by each agent
HARMS = 12  # max number of attempts with an additional change
VALUES_EACH = 3  # max number of other values that are tried instead of one value
LEAVES_EACH = 4  # max number of values inside one argument that are varied
MAX_SHOWN = 60  # characters of a value in a description

_WHOLE_NUMBER = re.compile(r"(?<![\w.,:/-])\d")  # the first digit of a number
_LONG_NUMBER = re.compile(r"(?<![\w.,:/-])[1-9]\d{3,11}(?![\d:/-])(?!\w)")  # integer part, without separators

GUESS = ", ".join(
    ["yes", "no", "none", *map(str, range(101)), *calendar.day_name, *calendar.month_name[1:], "A", "B", "C", "D"]
)


@dataclass(frozen=True, slots=True)
class SolvedTask:
    """A task with its solution, from which attempts are derived.

    Attributes:
        prompt: The prompt as one string.
        functions: The descriptions of the agent's functions, by name.
        calls: The solution's calls, or None without a solution.
        changing: Indexes of the agent's calls in the solution that created a version.
        answer: The solution's answer.
        own: The values in the solution. Additional changes use them first, to affect the task's own objects.
        pool: The values in the world and in other solutions that this solution doesn't contain.
        answers: The answers of other solutions.
        dump: All values of the world as one string, which is submitted as an answer.
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

    def is_wait(self, name: str) -> bool:
        """Return whether a function only lets time pass."""
        return name in self.functions and self.functions[name]["toolpack"] == WORLD_PACK


@dataclass(frozen=True, slots=True)
class Attempt:
    """A try at a task.

    Attributes:
        kind: The kind, as listed in docs/write/tasks.md.
        start: Number of the solution's calls with which the attempt begins. They aren't run again, because the state
            after each of the solution's calls is stored.
        calls: The attempt's calls after the first `start` calls.
        what: Description of the attempt. In findings it follows "passes:".
        about: The part of the task that was varied, such as an argument. It identifies a finding within its kind.
        named_value: The solution's value that the attempt replaced, if the prompt names this value. Otherwise None.
        index: Index of the call that differs from the solution.
    """

    kind: str
    start: int
    calls: Calls
    answer: str
    what: str
    about: str = ""
    named_value: Any = None
    index: int | None = None


def attempts(solved: SolvedTask, seed: str, max_attempts: int) -> list[Attempt]:
    """Return the attempts at a task, at most `max_attempts`.

    The solution comes first in the dictionary, so an attempt that equals the solution is dropped.
    """
    rng = Random(seed)  # noqa: S311 - must be repeatable
    by_key: dict[bytes, Attempt] = {}
    own = solved.calls or ()
    if solved.calls is not None:
        by_key[_key(own, solved.answer)] = Attempt("solution", len(own), (), solved.answer, "")
    for attempt in _all(solved, rng):
        by_key.setdefault(_key((*own[: attempt.start], *attempt.calls), attempt.answer), attempt)
    return [attempt for attempt in by_key.values() if attempt.kind != "solution"][:max_attempts]


def _key(calls: Calls, answer: str) -> bytes:
    """Return a key that is equal for attempts with equal calls and answers."""
    return dumps([[*calls], answer])


def _all(solved: SolvedTask, rng: Random) -> Iterator[Attempt]:
    """Yield all attempts, the most important first, because `attempts` drops those beyond its maximum."""
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


def _respelled(solved: SolvedTask, calls: Calls) -> Iterator[Attempt]:
    """Yield the solution with numbers and times in equivalent spellings. These attempts must pass."""
    spelled = []
    for name, kwargs, by in calls:
        schema = solved.functions[name]["parameters"] if name in solved.functions and by == AGENT else {}
        spelled.append((name, respell(kwargs, schema, schema.get("$defs", {})), by))
    changed = [index for index, call in enumerate(spelled) if dumps(call) != dumps(calls[index])]
    if changed:
        what = "; ".join(f"{spelled[index][0]}({_format_arguments(spelled[index][1])})" for index in changed[:2])
        yield Attempt("respelled", 0, tuple(spelled), solved.answer, f"the solution, spelled {what}", "calls")
    answer = _LONG_NUMBER.sub(lambda number: f"{int(number[0]):,}", solved.answer)
    if answer != solved.answer:
        what = f"the whole solution, with the answer {_format_value(answer)}"
        yield Attempt("respelled", len(calls), (), answer, what, "answer")


def _answers(solved: SolvedTask, whole: int, rng: Random) -> Iterator[Attempt]:
    """Yield the solution with other answers: none, wrong ones, and one that contains the right answer.

    Args:
        whole: Number of the solution's calls, which all these attempts begin with.
    """
    if not solved.answer:
        return
    yield Attempt("empty", whole, (), "", "the whole solution without an answer")
    different = [each for each in solved.answers if not _is_similar(each, solved.answer)]
    plausible = _wrong(solved.answer) or (rng.choice(different) if different else "Nothing of that.")
    for answer in (plausible, NO_ANSWER):
        yield Attempt("wrong", whole, (), answer, f"the whole solution, with the answer {_format_value(answer)}")
    containing = _containing(solved.answer)
    what = f"the whole solution, with the answer {_format_value(containing)}, which contains the right one"
    yield Attempt("containing", whole, (), containing, what)


def _containing(answer: str) -> str:
    """Return a wrong answer that contains the right one: with 9 before each number, or else "un" before each word."""
    longer = _WHOLE_NUMBER.sub(r"9\g<0>", answer)
    return longer if longer != answer else re.sub(r"\b(?=[^\W\d_])", "un", answer)


def _wrong(answer: str) -> str:
    """Return an answer in which each digit is another one, or the opposite of yes, no, true or false.

    Return "" if neither is possible.
    """
    opposite = {"yes": "no", "no": "yes", "true": "false", "false": "true"}
    word = answer.strip(" .!").casefold()
    if word in opposite:
        return opposite[word]
    return re.sub(r"\d", lambda digit: str((int(digit[0]) + 3) % 10), answer) if re.search(r"\d", answer) else ""


def _is_similar(one: str, other: str) -> bool:
    """Return whether one answer contains the other. A similar answer might also be right."""
    one, other = one.casefold(), other.casefold()
    return one in other or other in one


def _omitted(solved: SolvedTask, calls: Calls) -> Iterator[Attempt]:
    """Yield the solution without any change, then without each single change."""
    if len(solved.changing) > 1:
        read_calls = tuple(call for index, call in enumerate(calls) if index not in solved.changing)
        yield Attempt("read only", 0, read_calls, solved.answer, "without any call that changes something", "all calls")
    for index in solved.changing:
        what = f"without {_call(index, calls)}"
        yield Attempt("omit", index, calls[index + 1 :], solved.answer, what, f"call {index + 1}", index=index)


def _reordered(solved: SolvedTask, calls: Calls) -> Iterator[Attempt]:
    """Yield the solution with one change repeated, then with two neighbouring changes swapped."""
    for index in solved.changing:
        if solved.is_wait(calls[index][0]):
            continue
        what = f"{_call(index, calls)}, twice"
        yield Attempt("repeat", index + 1, calls[index:], solved.answer, what, f"call {index + 1}", index=index)
    for one, other in zip(solved.changing, solved.changing[1:], strict=False):
        swapped = (calls[other], *calls[one + 1 : other], calls[one], *calls[other + 1 :])
        yield Attempt("swap", one, swapped, solved.answer, f"{_call(one, calls)} and {_call(other, calls)} swapped")


def _careless(solved: SolvedTask, rng: Random) -> Iterator[Attempt]:
    """Yield attempts by agents that ignore the task: all functions once, then calls at random."""
    names = [*solved.functions]
    if not names:
        return

    def draw_call(name: str) -> PlainCall:
        return name, arguments(solved.functions[name]["parameters"], [solved.pool], rng), AGENT

    yield Attempt("everything", 0, tuple(map(draw_call, names)), "", "every function called once")
    for number in range(AGENTS):
        calls = tuple(draw_call(rng.choice(names)) for _ in range(CALLS_EACH))
        yield Attempt("random", 0, calls, "", f"{CALLS_EACH} calls at random (agent {number + 1})")


def _harming(solved: SolvedTask, whole: int, rng: Random) -> Iterator[Attempt]:
    """Yield attempts with an additional change, if possible to the objects that the task is about.

    Args:
        whole: Number of the solution's calls, which all these attempts begin with.
    """
    names = [name for name, each in solved.functions.items() if not each["read_only"] and not solved.is_wait(name)]
    for name in rng.sample(names, min(HARMS, len(names))):
        kwargs = arguments(solved.functions[name]["parameters"], [solved.own, solved.pool], rng)
        what = f"the whole solution, then {name}({_format_arguments(kwargs)})"
        yield Attempt("harm", whole, ((name, kwargs, AGENT),), solved.answer, what)


def _arguments(solved: SolvedTask, calls: Calls, rng: Random) -> Iterator[Attempt]:
    """Yield attempts with another value of one argument: first one per argument, then a second one, and so on."""
    rounds: list[list[Attempt]] = [[] for _ in range(VALUES_EACH)]
    for index in solved.changing:
        name, kwargs, _ = calls[index]
        description = solved.functions.get(name)
        for argument, whole in kwargs.items():
            if isinstance(whole, Mapping) and "$call" in whole:  # the result of a nested call, so it has no value yet
                continue
            for near, path, value in [*leaves(whole, argument, (argument,))][:LEAVES_EACH]:
                choices = choices_at(description["parameters"], path) if description else ()
                values = other_values(value, near, solved.pool, choices, rng, VALUES_EACH)
                for number, other in enumerate(values):
                    rounds[number].append(_with(solved, calls, index, path, value, other))
    for each in rounds:
        yield from each


def _with(solved: SolvedTask, calls: Calls, index: int, path: Path, value: Any, other: Any) -> Attempt:
    """Return the solution with another value at one path in the arguments of one call."""
    name, kwargs, by = calls[index]
    changed = (name, replace_at(kwargs, path, other), by)
    spelled = ".".join(map(str, path))
    return Attempt(
        "argument",
        index,
        (changed, *calls[index + 1 :]),
        solved.answer,
        f"{_call(index, calls)}, with {spelled}={_format_value(other)}",
        f"call {index + 1}, {spelled}",
        named_value=value if _is_named(solved.prompt, path, value) else None,
        index=index,
    )


def _is_named(prompt: str, path: Path, value: Any) -> bool:
    """Return whether the prompt names a value. For a boolean, return whether the prompt names the argument."""
    names = [step for step in path if isinstance(step, str)]
    return is_spoken_in(prompt, names[-1]) if isinstance(value, bool) else is_named_in(prompt, value)


def _call(index: int, calls: Calls) -> str:
    return f"call {index + 1}, {calls[index][0]}"


def _format_arguments(kwargs: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={_format_value(value)}" for name, value in kwargs.items())


def _format_value(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}…"
