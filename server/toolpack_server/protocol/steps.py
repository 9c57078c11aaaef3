"""Steps of a rollout: the versions before and after each call and before the answer, which show each call's changes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from toolpack_server.protocol.senders import WORLD


@dataclass(frozen=True, slots=True)
class Span:
    """The record of a call or of the answer, and the steps before and after it."""

    record: Mapping[str, Any]
    before: int
    after: int


def spans_of(path: Sequence[Mapping[str, Any]], trace: Sequence[Mapping[str, Any]]) -> list[Span]:
    """Return the calls and the answer of a session's history, with their steps, in order.

    A step is a version of the session. A record that changed nothing has the same step before and after it. Calls that
    the world made by itself (`by` is `WORLD`) have no span. They happened because the next call or answer let time
    pass, so the span of that call or answer begins at the step before them.

    Args:
        path: The session's history (without records undone by a reset), without the records inherited by a fork.
        trace: All records of the session, also those undone by a reset. They show which calls changed the version.
    """
    versions = [0, *(record["version"] for record in trace)]
    changing = {after["index"] for before, after in zip(versions, trace, strict=False) if after["version"] > before}
    spans: list[Span] = []
    step = 0
    moved_at: int | None = None  # the step before the world moved by itself
    for record in path:
        if record["kind"] not in {"call", "answer"}:
            continue
        before = step
        if record["kind"] == "call" and record["index"] in changing:
            step = record["version"]
            before = step - 1
        before = before if moved_at is None else moved_at
        moved_at = before if record.get("by") == WORLD else None
        if moved_at is None:
            spans.append(Span(record, before, step))
    return spans
