"""Comparison of a session's history with a solution: which calls of the solution were made, equally or similarly."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from toolpack_server.features.evaluation.tasks.results import SolutionCall
from toolpack_server.jsonio.equality import argument_key, equal_arguments

MAX_COMPARED = 100
"""Calls of one function, the latest, that may be similar to a call of the solution."""


def compared_with(history: Sequence[Mapping[str, Any] | None], calls: Sequence[SolutionCall]) -> list[SolutionCall]:
    """Return a solution's calls with the places of the calls in a history that made them: `path_index` or `similar`.

    A call of the history counts once, and only if it succeeded. Who made it doesn't matter. Of the calls that no call
    of the solution equals, those are similar that have the same function. Those with the most equal arguments come
    first.

    Args:
        history: The calls at their places; None where the history has another record.
        calls: The calls of the solution.
    """
    unmatched: dict[str, dict[Any, list[int]]] = defaultdict(lambda: defaultdict(list))
    for path_index, call in enumerate(history):
        if call is not None and call["error"] is None:
            unmatched[call["function"]][argument_key(call["kwargs"])].append(path_index)
    for places in (places for by_key in unmatched.values() for places in by_key.values()):
        places.reverse()  # so that `pop` returns the first one
    compared: list[SolutionCall] = []
    for call in calls:
        places = unmatched[call["function"]][argument_key(call["kwargs"])]
        compared.append({**call, "path_index": places.pop()} if places else {**call})
    others = {
        function: sorted(path_index for places in by_key.values() for path_index in places)[-MAX_COMPARED:]
        for function, by_key in unmatched.items()
    }
    pairs = [
        (-_equal_count(call["kwargs"], (history[path_index] or {})["kwargs"]), number, path_index)
        for number, call in enumerate(compared)
        if not made(call)
        for path_index in others[call["function"]]
    ]
    taken: set[int] = set()
    for _, number, path_index in sorted(pairs):
        if path_index not in taken and "similar" not in compared[number]:
            taken.add(path_index)
            compared[number]["similar"] = path_index
    return compared


def made(call: SolutionCall) -> bool:
    """Return whether the history has a call that equals this one of the solution."""
    return "path_index" in call


def _equal_count(one: Mapping[str, Any], other: Mapping[str, Any]) -> int:
    return sum(name in other and equal_arguments(value, other[name]) for name, value in one.items())
