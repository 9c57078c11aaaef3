"""Solutions of tasks: their calls in one form, and the evaluator that compares a world with what they make of it.

A solution is one way to do a task. The calls are given as a client would send them, so their arguments are
JSON values.
"""

from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import jsonpointer

from toolpack_server.base.errors import InvalidParamsError, RegistrationError, ResultError, shown
from toolpack_server.features.evaluation.tasks.rollouts import Evaluator, Rollout
from toolpack_server.features.evaluation.tasks.text_search import says
from toolpack_server.jsonio.equality import equal, is_number
from toolpack_server.jsonio.strict import dumps, loads
from toolpack_server.jsonio.view import KEY, hidden_by_json, to_json
from toolpack_server.protocol.senders import AGENT
from toolpack_server.volumes.volume import Volume

MAX_SHOWN = 80
_LENGTHS = (2, 3)  # of a call that is a tuple

PlainCall = tuple[str, dict[str, Any], str]
"""The name of a function, its arguments as JSON values, with `{"$call": …}` for nested calls, and the participant."""


def solution_calls(task: Any, initial: Any) -> list[PlainCall]:
    """Get the calls of a task's solution, from the environment with which a session of it begins."""
    solution = task.solution
    return plain_calls(solution(initial) if callable(solution) else solution or ())


def plain_calls(calls: Sequence[Any]) -> list[PlainCall]:
    """Get calls in one form.

    Each is a `FunctionCall`, ours or AgentDojo's, `(name, arguments)` or `(name, arguments, participant)`.

    Raises:
        TypeError: One of them is neither.
        ResultError: An argument has no JSON form.
    """
    return [_plain(call) for call in calls]


def _plain(call: Any) -> PlainCall:
    by = AGENT
    if _is_function_call(call):
        name, arguments = call.function, call.args
    elif isinstance(call, list | tuple) and len(call) in _LENGTHS:
        name, arguments, by = [*call, AGENT][:3]
    else:
        raise TypeError(f"a call is a {type(call).__name__}: give a FunctionCall or (name, arguments)")
    if not isinstance(name, str) or not isinstance(arguments, Mapping):
        raise TypeError("a call is neither a FunctionCall nor (name, arguments): the name is a string, the rest a dict")
    if not isinstance(by, str):
        raise TypeError(f"the participant of a call of `{name}` is a {type(by).__name__}: give its name")
    nested = {name: _argument(value) for name, value in arguments.items()}
    plain: dict[str, Any] = loads(to_json(nested))
    return name, plain, by


def check_callers(calls: Sequence[PlainCall], participants: Container[str]) -> None:
    """Check that the calls of a solution are those of a task's participants.

    Raises:
        InvalidParamsError: One is nobody's.
    """
    for function, _, by in calls:
        if by != AGENT and by not in participants:
            raise InvalidParamsError(
                f"the call of `{function}` in its solution is that of {shown(by)!r}, who is no participant: "
                "name one of its participants."
            )


def _argument(value: Any) -> Any:
    if not _is_function_call(value):
        return value
    inner = {name: _argument(argument) for name, argument in value.args.items()}
    return {"$call": {"function": value.function, "args": inner}}


def _is_function_call(value: Any) -> bool:
    return isinstance(getattr(value, "function", None), str) and isinstance(getattr(value, "args", None), Mapping)


def answer_texts(answer: str | Sequence[str]) -> list[str]:
    return [text for text in ([answer] if isinstance(answer, str) else answer) if text]


def reached_solution(*ignore: str, raise_on_error: bool = True) -> Evaluator:
    """Make an evaluator that compares the world with what the task's solution makes of the initial one.

    The worlds are compared as JSON, and databases and files as what they hold, however large they are. Numbers are
    compared by their value; see `toolpack_server.jsonio.equality`. The agent's answer must say each text of the task's
    `answer`; see `says`.
    For functions that read a clock or draw ids, use an evaluator of your own.

    Args:
        ignore: JSON Pointers (RFC 6901) to what may differ, such as `/bank/account/transactions`. In a database or
            among files the step `*` stands for any: `/shop/db/orders/*/at` is a column.
        raise_on_error: A call of the solution that fails is a fault; otherwise it changes nothing.
    """
    try:
        pointers = [jsonpointer.JsonPointer(pointer) for pointer in ignore]
    except jsonpointer.JsonPointerException:
        raise RegistrationError(f"reached_solution{ignore}: give JSON Pointers, such as '/bank/log'.") from None

    def reached(rollout: Rollout[Any]) -> None:
        calls = solution_calls(rollout.task, rollout.initial)
        solved, there = rollout.replay_all(calls, raise_on_error), rollout.environments
        with _without_volumes(solved) as expected, _without_volumes(there) as held:
            difference = _difference_of_json(solved, there, pointers, ignore, rollout.plain)
        difference = difference or _difference_of_volumes(expected, held, ignore)
        rollout.check("the environment is as after the solution", difference is None, difference or "")
        for text in answer_texts(rollout.task.answer):
            detail = "" if rollout.answer else "there is no answer"
            rollout.check(f"the answer has {text!r}", says(rollout.answer, text), detail)

    return reached


def _view(environments: Mapping[str, Any], ignore: Sequence[Any], plain: Container[type]) -> Any:
    """Get environments as JSON values, without what is ignored."""
    view = {
        toolpack: loads(to_json(environment, plain, comparable=True)) for toolpack, environment in environments.items()
    }
    for pointer in ignore:
        try:
            holder, last = pointer.to_last(view)
            del holder[last]
        except (jsonpointer.JsonPointerException, LookupError, TypeError):
            continue  # what isn't there differs in nothing
    return view


def _difference_of_json(
    solved: Mapping[str, Any], there: Mapping[str, Any], pointers: Sequence[Any], ignore: Sequence[str], plain: Any
) -> str | None:
    """Describe the first difference that isn't ignored between worlds without volumes, also one that JSON hides."""
    expected = _view(solved, pointers, plain)
    try:
        found = _view(there, pointers, plain)
    except ResultError as error:  # the agent's world alone can't be shown
        return str(error)
    difference = _difference("", expected, found)
    if difference is not None:
        return difference
    wanted, others = (hidden_by_json(world, plain) for world in (solved, there))
    for path in [*wanted, *(path for path in others if path not in wanted)]:
        one, other = wanted.get(path), others.get(path)
        if one != other and not any(_leads_to(pointer, path.removesuffix(KEY)) for pointer in ignore):
            return f"{path} is {other or 'what JSON shows'}, not {one or 'what JSON shows'}"
    return None


@contextmanager
def _without_volumes(environments: Mapping[str, Any]) -> Iterator[dict[str, Volume]]:
    """Have environments without their databases and files for a block, and get those by their JSON Pointers."""
    held = [*_volumes(environments)]
    for holder, name, _, _ in held:
        del holder.__dict__[name]
    try:
        yield {path: volume for _, _, path, volume in held}
    finally:
        for holder, name, _, volume in held:
            holder.__dict__[name] = volume


def _volumes(environments: Mapping[str, Any]) -> Iterator[tuple[Any, str, str, Volume]]:
    """Yield databases and files, each with the object that holds it, its name there, and its JSON Pointer."""
    for toolpack, environment in environments.items():
        pending = [(f"/{toolpack}", environment, 0)]
        while pending:
            path, holder, depth = pending.pop()
            for name, value in getattr(holder, "__dict__", {}).items():
                if isinstance(value, Volume):
                    yield holder, name, f"{path}/{name}", value
                elif not depth:  # an instance of a class
                    pending.append((f"{path}/{name}", value, depth + 1))


def _difference_of_volumes(
    wanted: Mapping[str, Volume], found: Mapping[str, Volume], ignore: Sequence[str]
) -> str | None:
    """Describe the first difference between databases or files that isn't ignored; None if there is none."""
    for path, volume in wanted.items():
        if path not in found:
            return f"{path} is missing"
        try:
            changes = volume.patch(found[path], path, text_diffs=False)
        except ResultError as error:  # a world with too many changes to compare isn't the wanted one
            return f"{path} differs: {error}"
        for change in changes:
            where = change["path"]
            if any(_leads_to(pointer, where) for pointer in ignore):
                continue
            if change["op"] == "remove":
                return f"{where} is missing"
            if _is_equal_number(volume, where.removeprefix(f"{path}/"), change):
                continue
            return f"{where} should not be there" if change["op"] == "add" else f"{where} differs"
    return next((f"{path} should not be there" for path in found if path not in wanted), None)


def _is_equal_number(volume: Volume, where: str, change: Mapping[str, Any]) -> bool:
    """Return whether a change replaces a number by one that is equal to it."""
    if change["op"] != "replace" or not is_number(change["value"]):
        return False
    steps = [jsonpointer.unescape(step) for step in where.split("/")]
    try:
        return equal(volume.at(steps, None, None), change["value"])
    except LookupError:
        return False


def _leads_to(pointer: str, path: str) -> bool:
    """Whether a pointer, in which a step may be `*`, names something or what it is in."""
    steps, others = pointer.split("/"), path.split("/")
    return len(steps) <= len(others) and all(step in ("*", other) for step, other in zip(steps, others, strict=False))


def _difference(path: str, wanted: Any, found: Any) -> str | None:
    """Describe the first difference between two JSON values; None if there is none."""
    if isinstance(wanted, dict) and isinstance(found, dict):
        for name in [*wanted, *(name for name in found if name not in wanted)]:
            step = f"{path}/{jsonpointer.escape(name)}"
            if name not in found:
                return f"{step} is missing"
            if name not in wanted:
                return f"{step} should not be there"
            if (difference := _difference(step, wanted[name], found[name])) is not None:
                return difference
        return None
    if isinstance(wanted, list) and isinstance(found, list):
        for index, (one, other) in enumerate(zip(wanted, found, strict=False)):
            if (difference := _difference(f"{path}/{index}", one, other)) is not None:
                return difference
        return None if len(wanted) == len(found) else f"{path} has {len(found)} elements, not {len(wanted)}"
    return None if equal(wanted, found) else f"{path} is {_shown(found)}, not {_shown(wanted)}"


def _shown(value: Any) -> str:
    text = dumps(value).decode("utf-8", "replace")
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}…"
