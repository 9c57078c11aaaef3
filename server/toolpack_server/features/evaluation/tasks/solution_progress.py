"""Comparison of a session's history with a solution: which of the solution's calls were made, exactly or similarly."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from toolpack_server.features.evaluation.tasks.results import SolutionCall
from toolpack_server.jsonio.equality import argument_key, equal_arguments

MAX_COMPARED = 100
"""Only the latest calls to each function, at most this many, are searched for similar calls."""


def match_solution(history: Sequence[Mapping[str, Any] | None], calls: Sequence[SolutionCall]) -> list[SolutionCall]:
    """Match a solution's calls with the calls of a history. Return the solution's calls with the matches.

    If the history contains an equal call, `path_index` is set to its index in the history. Otherwise `similar` is set
    to the index of a call to the same function with other arguments. If several calls are similar, the call with the
    most equal arguments is chosen. Only calls that succeeded are matched, each at most once, whoever made them.

    Args:
        history: The records of the history, with None for each record that isn't a call.
        calls: The calls of the solution.
    """
    unmatched: dict[str, dict[Any, list[int]]] = defaultdict(lambda: defaultdict(list))
    for path_index, call in enumerate(history):
        if call is not None and call["error"] is None:
            unmatched[call["function"]][argument_key(call["kwargs"])].append(path_index)
    for indices in (indices for by_key in unmatched.values() for indices in by_key.values()):
        indices.reverse()  # `pop` then returns the earliest index
    compared: list[SolutionCall] = []
    for call in calls:
        indices = unmatched[call["function"]][argument_key(call["kwargs"])]
        compared.append({**call, "path_index": indices.pop()} if indices else {**call})
    others = {
        function: sorted(path_index for indices in by_key.values() for path_index in indices)[-MAX_COMPARED:]
        for function, by_key in unmatched.items()
    }
    pairs = [
        (-_equal_count(call["kwargs"], (history[path_index] or {})["kwargs"]), number, path_index)
        for number, call in enumerate(compared)
        if not is_made(call)
        for path_index in others[call["function"]]
    ]
    taken: set[int] = set()
    for _, number, path_index in sorted(pairs):  # pairs with the most equal arguments choose first
        if path_index not in taken and "similar" not in compared[number]:
            taken.add(path_index)
            compared[number]["similar"] = path_index
    return compared


def is_made(call: SolutionCall) -> bool:
    """Return whether `match_solution` found an equal call in the history."""
    return "path_index" in call


def _equal_count(one: Mapping[str, Any], other: Mapping[str, Any]) -> int:
    return sum(name in other and equal_arguments(value, other[name]) for name, value in one.items())
