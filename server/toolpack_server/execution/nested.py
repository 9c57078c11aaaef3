"""Nested calls: an argument that is exactly `{"$call": {"function": …, "args": {…}}}` is itself a call.

Nested calls run one after the other. Each runs after the calls in its own arguments, and before the call that uses its
result. All lists of nested calls are in this order. So if the outermost call stops early, the results so far belong to
the first nested calls in the list.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from toolpack_server.functions_runtime import MAX_CALL_DEPTH, FunctionCall


class NestedCall(NamedTuple):
    """A call that is an argument of another call.

    Attributes:
        arguments: The arguments as the client sent them, as JSON values.
        parent: Index, in the list of nested calls, of the call that uses the result. None: the outermost call.
    """

    function: str
    arguments: Mapping[str, Any]
    parent: int | None = None


def has_nested(arguments: Mapping[str, Any]) -> bool:
    """Return whether arguments might contain nested calls. This runs for every call, so it must be fast."""
    for value in arguments.values():  # noqa: SIM110 - a generator would take longer than the loop
        if type(value) is dict and "$call" in value:
            return True
    return False


def read_nested(arguments: Mapping[str, Any]) -> tuple[dict[str, Any], list[NestedCall]]:
    """Return the arguments with a `FunctionCall` in place of each nested call, and the list of nested calls.

    The list excludes calls that are nested deeper than `MAX_CALL_DEPTH`, because they will never run.
    """
    calls: list[NestedCall] = []
    return _replace(arguments, calls, 1), calls


def _replace(arguments: Mapping[str, Any], calls: list[NestedCall], depth: int) -> dict[str, Any]:
    return {
        name: _read(value, calls, depth) if type(value) is dict and "$call" in value else value
        for name, value in arguments.items()
    }


def _read(value: dict[str, Any], calls: list[NestedCall], depth: int) -> Any:
    """Return the `FunctionCall` for a nested call, and append it and the calls in its arguments to `calls`.

    Return a value unchanged if it doesn't have the exact form of a nested call.
    """
    call = value["$call"]
    if len(value) != 1 or type(call) is not dict or call.keys() != {"function", "args"}:
        return value
    if not isinstance(call["function"], str) or not isinstance(call["args"], dict):
        return value
    first = len(calls)
    arguments = _replace(call["args"], calls, depth + 1)
    if depth <= MAX_CALL_DEPTH:
        # The calls in the arguments were appended without a parent, because this call's index was still unknown.
        index = len(calls)
        calls[first:] = [inner if inner.parent is not None else inner._replace(parent=index) for inner in calls[first:]]
        calls.append(NestedCall(call["function"], call["args"]))
    return FunctionCall.model_construct(function=call["function"], args=arguments)
