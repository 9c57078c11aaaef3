"""Solutions of tasks: normalization of their calls, and the evaluator `reached_solution`.

A solution is one way to do a task. Its calls are converted to the form that a client sends, so their arguments are JSON
values.
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

MAX_SHOWN = 80  # max characters of a value in a message
_LENGTHS = (2, 3)  # allowed lengths of a tuple; the third item, the participant, is optional

PlainCall = tuple[str, dict[str, Any], str]
"""A call: the function's name, the arguments as JSON values (a nested call is `{"$call": …}`), and the participant."""


def solution_calls(task: Any, initial: Any) -> list[PlainCall]:
    """Return a task's solution as calls. If the solution is a function, call it with the initial environment."""
    solution = task.solution
    return plain_calls(solution(initial) if callable(solution) else solution or ())


def plain_calls(calls: Sequence[Any]) -> list[PlainCall]:
    """Return calls in the form of `PlainCall`.

    A call can be a `FunctionCall` (of this package or AgentDojo), `(name, arguments)` or
    `(name, arguments, participant)`.

    Raises:
        TypeError: A call has none of these forms.
        ResultError: An argument can't be converted to JSON.
    """
    return [_plain(call) for call in calls]


def _plain(call: Any) -> PlainCall:
    """Convert one call to the form of `PlainCall`."""
    by = AGENT
    if _is_function_call(call):
        name, arguments = call.function, call.args
    elif isinstance(call, list | tuple) and len(call) in _LENGTHS:
        name, arguments, by = [*call, AGENT][:3]
    else:
        raise TypeError(f"a call is a {type(call).__name__}: give a FunctionCall or (name, arguments)")
    if not isinstance(name, str) or not isinstance(arguments, Mapping):
        raise TypeError("a call must be a FunctionCall, or (name, arguments) with a string and a dict")
    if not isinstance(by, str):
        raise TypeError(f"the participant of a call of `{name}` is a {type(by).__name__}: give its name as a string")
    nested = {name: _argument(value) for name, value in arguments.items()}
    plain: dict[str, Any] = loads(to_json(nested))
    return name, plain, by


def check_callers(calls: Sequence[PlainCall], participants: Container[str]) -> None:
    """Check that each call of a solution is made by the agent or another participant of the task.

    Raises:
        InvalidParamsError: A call names an unknown participant.
    """
    for function, _, by in calls:
        if by != AGENT and by not in participants:
            raise InvalidParamsError(
                f"the call of `{function}` in its solution is made by {shown(by)!r}, which isn't a participant of the "
                "task: name one of its participants."
            )


def _argument(value: Any) -> Any:
    if not _is_function_call(value):
        return value
    inner = {name: _argument(argument) for name, argument in value.args.items()}
    return {"$call": {"function": value.function, "args": inner}}


def _is_function_call(value: Any) -> bool:
    return isinstance(getattr(value, "function", None), str) and isinstance(getattr(value, "args", None), Mapping)


def answer_texts(answer: str | Sequence[str]) -> list[str]:
    """Return the strings of a task's `answer` that aren't empty."""
    return [text for text in ([answer] if isinstance(answer, str) else answer) if text]


def reached_solution(*ignore: str, raise_on_error: bool = True) -> Evaluator:
    """Return an evaluator that compares the agent's environments with the environments after the task's solution.

    The evaluator runs the solution on the initial environments. It compares environments as JSON. Databases and files
    are compared by their content, whatever their size. Numbers are compared by value; see
    `toolpack_server.jsonio.equality`. The agent's answer must contain each string of the task's `answer`; see `says`.

    If functions read a clock or create random ids, the environments always differ. In this case, use `ignore`, or write
    your own evaluator.

    Args:
        ignore: JSON Pointers (RFC 6901) to values that are allowed to differ, such as `/bank/account/transactions`. In
            a database or a file tree, `*` matches any single step, so `/shop/db/orders/*/at` is a column.
        raise_on_error: Whether a failed call of the solution makes the evaluation fail. If False, the failed call
            changes nothing, and the next call runs.
    """
    try:
        pointers = [jsonpointer.JsonPointer(pointer) for pointer in ignore]
    except jsonpointer.JsonPointerException:
        raise RegistrationError(f"reached_solution{ignore}: give JSON Pointers, such as '/bank/log'.") from None

    def reached(rollout: Rollout[Any]) -> None:
        """Add a check of the environments, and a check for each expected string of the answer."""
        calls = solution_calls(rollout.task, rollout.initial)
        expected, actual = rollout.replay_all(calls, raise_on_error), rollout.environments
        with _without_volumes(expected) as expected_volumes, _without_volumes(actual) as actual_volumes:
            difference = _difference_of_json(expected, actual, pointers, ignore, rollout.plain)
        difference = difference or _difference_of_volumes(expected_volumes, actual_volumes, ignore)
        rollout.check("the environment is as after the solution", difference is None, difference or "")
        for text in answer_texts(rollout.task.answer):
            detail = "" if rollout.answer else "there is no answer"
            rollout.check(f"the answer has {text!r}", says(rollout.answer, text), detail)

    return reached


def _view(environments: Mapping[str, Any], ignore: Sequence[Any], plain: Container[type]) -> Any:
    """Return environments as JSON, without the values at the pointers in `ignore`."""
    view = {
        toolpack: loads(to_json(environment, plain, comparable=True)) for toolpack, environment in environments.items()
    }
    for pointer in ignore:
        try:
            holder, last = pointer.to_last(view)
            del holder[last]
        except (jsonpointer.JsonPointerException, LookupError, TypeError):
            continue  # nothing exists at the pointer in these environments
    return view


def _difference_of_json(
    expected: Mapping[str, Any], actual: Mapping[str, Any], pointers: Sequence[Any], ignore: Sequence[str], plain: Any
) -> str | None:
    """Describe the first difference between environments without volumes, or return None.

    Different values can have the same JSON, because JSON supports neither NaN nor infinity, and its keys are always
    strings. So these details are compared separately.
    """
    expected_view = _view(expected, pointers, plain)
    try:
        actual_view = _view(actual, pointers, plain)
    except ResultError as error:  # the expected environments could be converted, so the failure is a difference
        return str(error)
    difference = _difference("", expected_view, actual_view)
    if difference is not None:
        return difference
    # Both map JSON Pointers to the details that JSON hides: a NaN, an infinity or a key's type.
    expected_hidden, actual_hidden = (hidden_by_json(environments, plain) for environments in (expected, actual))
    for path in [*expected_hidden, *(path for path in actual_hidden if path not in expected_hidden)]:
        one, other = expected_hidden.get(path), actual_hidden.get(path)
        if one != other and not any(_leads_to(pointer, path.removesuffix(KEY)) for pointer in ignore):
            return f"{path} is {other or 'what JSON shows'}, not {one or 'what JSON shows'}"
    return None


@contextmanager
def _without_volumes(environments: Mapping[str, Any]) -> Iterator[dict[str, Volume]]:
    """Remove databases and files from environments for a `with` block. Yield the removed volumes by JSON Pointer."""
    volumes = [*_volumes(environments)]
    for holder, name, _, _ in volumes:
        del holder.__dict__[name]
    try:
        yield {path: volume for _, _, path, volume in volumes}
    finally:
        for holder, name, _, volume in volumes:
            holder.__dict__[name] = volume


def _volumes(environments: Mapping[str, Any]) -> Iterator[tuple[Any, str, str, Volume]]:
    """Yield each database and file tree with its place: the object, the attribute's name, the JSON Pointer, the volume.

    A volume is an attribute of an environment, or of an object in an attribute of the environment.
    """
    for toolpack, environment in environments.items():
        pending = [(f"/{toolpack}", environment, 0)]
        while pending:
            path, holder, depth = pending.pop()
            for name, value in getattr(holder, "__dict__", {}).items():
                if isinstance(value, Volume):
                    yield holder, name, f"{path}/{name}", value
                elif not depth:  # with `Toolpack.from_class`, an object in the environment holds the volume
                    pending.append((f"{path}/{name}", value, depth + 1))


def _difference_of_volumes(
    expected: Mapping[str, Volume], actual: Mapping[str, Volume], ignore: Sequence[str]
) -> str | None:
    """Describe the first difference between databases or files that isn't ignored, or return None."""
    for path, volume in expected.items():
        if path not in actual:
            return f"{path} is missing"
        try:
            changes = volume.patch(actual[path], path, text_diffs=False)
        except ResultError as error:  # the changes are too many to list, so the volumes differ
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
    return next((f"{path} should not be there" for path in actual if path not in expected), None)


def _is_equal_number(volume: Volume, where: str, change: Mapping[str, Any]) -> bool:
    """Return whether a change replaces a number by an equal number, such as 1 by 1.0."""
    if change["op"] != "replace" or not is_number(change["value"]):
        return False
    steps = [jsonpointer.unescape(step) for step in where.split("/")]
    try:
        return equal(volume.at(steps, None, None), change["value"])
    except LookupError:
        return False


def _leads_to(pointer: str, path: str) -> bool:
    """Return whether a pointer, in which `*` matches any step, equals a path or leads to its ancestor."""
    steps, others = pointer.split("/"), path.split("/")
    return len(steps) <= len(others) and all(step in ("*", other) for step, other in zip(steps, others, strict=False))


def _difference(path: str, expected: Any, actual: Any) -> str | None:
    """Describe the first difference between two JSON values, or return None."""
    if isinstance(expected, dict) and isinstance(actual, dict):
        for name in [*expected, *(name for name in actual if name not in expected)]:
            step = f"{path}/{jsonpointer.escape(name)}"
            if name not in actual:
                return f"{step} is missing"
            if name not in expected:
                return f"{step} should not be there"
            if (difference := _difference(step, expected[name], actual[name])) is not None:
                return difference
        return None
    if isinstance(expected, list) and isinstance(actual, list):
        for index, (one, other) in enumerate(zip(expected, actual, strict=False)):
            if (difference := _difference(f"{path}/{index}", one, other)) is not None:
                return difference
        return None if len(expected) == len(actual) else f"{path} has {len(actual)} elements, not {len(expected)}"
    return None if equal(expected, actual) else f"{path} is {_shown(actual)}, not {_shown(expected)}"


def _shown(value: Any) -> str:
    text = dumps(value).decode("utf-8", "replace")
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}…"
