"""Steps of a rollout: the versions between which its calls and its answer lie."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Span:
    """A call or the answer, and the steps before and after it."""

    record: Mapping[str, Any]
    before: int
    after: int


def spans_of(path: Sequence[Mapping[str, Any]], trace: Sequence[Mapping[str, Any]]) -> list[Span]:
    """Return the calls and the answer of a history, with their steps.

    A step is a version that a call created, or that was there before it. A record that changed nothing has the same
    step on both sides.

    Args:
        path: The session's own records of its history.
        trace: All records of the session.
    """
    versions = [0, *(record["version"] for record in trace)]
    changed = {after["index"] for before, after in zip(versions, trace, strict=False) if after["version"] > before}
    spans: list[Span] = []
    step = 0
    for record in path:
        if record["kind"] == "call" and record["index"] in changed:
            step = record["version"]
            spans.append(Span(record, step - 1, step))
        elif record["kind"] in {"call", "answer"}:
            spans.append(Span(record, step, step))
    return spans
