"""Nested calls: an argument that is exactly `{"$call": {"function": …, "args": {…}}}` is a call of its own.

Nested calls run one after the other, each after those among its own arguments and before the call that it is
an argument of. They are always listed in that order, so the results of those that have run are the first ones.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from toolpack_server.functions_runtime import MAX_CALL_DEPTH, FunctionCall


class NestedCall(NamedTuple):
    """A call that is an argument of another one.

    Attributes:
        arguments: As they were sent, as JSON values.
        parent: The place, in the list of nested calls, of the one that it is an argument of; None: the outermost call.
    """

    function: str
    arguments: Mapping[str, Any]
    parent: int | None = None


def has_nested(arguments: Mapping[str, Any]) -> bool:
    """Whether there may be nested calls among arguments; brief, as it is asked for every call."""
    for value in arguments.values():  # noqa: SIM110 - a generator would take longer than the look
        if type(value) is dict and "$call" in value:
            return True
    return False


def read_nested(arguments: Mapping[str, Any]) -> tuple[dict[str, Any], list[NestedCall]]:
    """Replace each nested call by a `FunctionCall`, and list those that aren't nested too deeply to run."""
    found: list[NestedCall] = []
    return _replaced(arguments, found, 1), found


def _replaced(arguments: Mapping[str, Any], found: list[NestedCall], depth: int) -> dict[str, Any]:
    return {
        name: _read(value, found, depth) if type(value) is dict and "$call" in value else value
        for name, value in arguments.items()
    }


def _read(value: dict[str, Any], found: list[NestedCall], depth: int) -> Any:
    call = value["$call"]
    if len(value) != 1 or type(call) is not dict or call.keys() != {"function", "args"}:
        return value
    if not isinstance(call["function"], str) or not isinstance(call["args"], dict):
        return value
    first = len(found)
    arguments = _replaced(call["args"], found, depth + 1)
    if depth <= MAX_CALL_DEPTH:
        place = len(found)
        found[first:] = [each if each.parent is not None else each._replace(parent=place) for each in found[first:]]
        found.append(NestedCall(call["function"], call["args"]))
    return FunctionCall.model_construct(function=call["function"], args=arguments)
