"""Steps of a rollout: the versions between which its calls and its answer lie."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from toolpack_server.protocol.senders import WORLD


@dataclass(frozen=True, slots=True)
class Span:
    """A call or the answer, and the steps before and after it."""

    record: Mapping[str, Any]
    before: int
    after: int


def spans_of(path: Sequence[Mapping[str, Any]], trace: Sequence[Mapping[str, Any]]) -> list[Span]:
    """Return the calls and the answer of a history, with their steps.

    A step is a version that a call created, or that was there before it. A record that changed nothing has the same
    step on both sides. What a world did by itself isn't a span: the call or the answer after it begins at the step
    before it, because that call let it happen, such as one that waited.

    Args:
        path: The session's own records of its history.
        trace: All records of the session.
    """
    versions = [0, *(record["version"] for record in trace)]
    changed = {after["index"] for before, after in zip(versions, trace, strict=False) if after["version"] > before}
    spans: list[Span] = []
    step = 0
    moved_at: int | None = None  # the step before the world moved by itself
    for record in path:
        if record["kind"] not in {"call", "answer"}:
            continue
        before = step
        if record["kind"] == "call" and record["index"] in changed:
            step = record["version"]
            before = step - 1
        before = before if moved_at is None else moved_at
        moved_at = before if record.get("by") == WORLD else None
        if moved_at is None:
            spans.append(Span(record, before, step))
    return spans
