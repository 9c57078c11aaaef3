"""Reading what executors answer.

The rule: nothing of an answer is used before it has proved to have the form that it must have. What it says may still
be wrong, and then only its own session is.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import orjson

from server.errors import (
    InternalError,
    InvalidParamsError,
    ResultError,
    SnapshotError,
    StateDamagedError,
    TooLargeError,
)
from server.execution.call import Failure, Outcome
from server.execution.codec import Codec
from server.execution.initial import Built
from server.execution.parts import toolpack_of
from server.execution.runtime import Plan
from server.executors.channel import Frame
from server.snapshots.digest import Entries

log = logging.getLogger("toolpack_server")

T = TypeVar("T")

_REFUSALS: Mapping[str, type[Exception]] = {
    kind.__name__: kind for kind in (InvalidParamsError, SnapshotError, ResultError, TooLargeError, StateDamagedError)
}


class Held(NamedTuple):
    """Where an environment is that equals its bytes.

    Attributes:
        executor: The number of the executor that keeps it.
        tag: By which the executor knows it.
    """

    executor: int
    tag: int


def raise_refusal(answer: Frame) -> None:
    """Raise what an executor has raised instead of doing what it was asked.

    Raises:
        InternalError: It has met a fault of the server.
        ToolpackServerError: What it has raised.
    """
    head = answer.head
    if "fault" in head:
        log.error("A request failed in an executor:\n%s", head["fault"])
        raise InternalError
    if "refused" in head:
        raise _REFUSALS[head["refused"]](str(head["text"]))


def read_outcome(answer: Frame, plan: Plan, parts: Sequence[str], codec: Codec, held: Held) -> Outcome:
    """Read the outcome of a call.

    Args:
        answer: The answer.
        plan: What was to run.
        parts: The parts of the environments that the call could use.
        codec: Seals what has changed.
        held: Where the executor keeps the environments.

    Raises:
        ValueError: It isn't one; or `KeyError`, `TypeError`.
    """
    head, (result, *payloads) = answer.head, answer.pieces
    changed, live = head["blobs"], head["live"]
    check(set(changed) <= set(parts) and set(live) <= set(parts))
    outcome = Outcome(compared_seconds=_member(head, "compared_seconds", float))
    if head["error"] is None:
        check(not changed or not plan.read_only)
        orjson.loads(result)  # it becomes a part of answers and records, which must stay JSON
        outcome.result, outcome.changes = result, not plan.read_only
        sealed = zip(changed, payloads, strict=True)
        outcome.blobs = {part: codec.seal(part, payload) for part, payload in sealed}
        outcome.live = dict.fromkeys(live, held)
        outcome.entries = read_entries(answer, changed) if plan.pin is not None else {}
        return outcome
    outcome.error, outcome.failure = _member(head, "error", str), Failure(head["failure"])
    outcome.errors, outcome.similar = _member(head, "errors", list), _member(head, "similar", list)
    outcome.traceback = _member(head, "traceback", str)
    broken = _member(head, "broken", list)
    if broken is not None:
        toolpack, function, change = broken
        check(toolpack in {plan.toolpack, *plan.footprint} and isinstance(change, str))
        outcome.broken = toolpack, str(function), change
    return outcome


def read_entries(answer: Frame, parts: Iterable[str]) -> dict[str, Entries | None]:
    """Read what the digests of parts are made of; raises as `read_outcome`."""
    found = answer.head["entries"]
    check(isinstance(found, dict) and found.keys() == {*parts})
    for entries in found.values():
        check(entries is None or (isinstance(entries, list) and all(isinstance(entry, str) for entry in entries)))
    return {part: entries if entries is None else tuple(entries) for part, entries in found.items()}


def read_built(answer: Frame, toolpack: str, codec: Codec) -> Built:
    """Read and seal the parts of a toolpack's environment; raises as `read_outcome`."""
    payloads = dict(zip(answer.head["parts"], answer.pieces, strict=True))
    check(payloads and all(toolpack_of(part) == toolpack for part in payloads))
    return {part: codec.seal(part, payload) for part, payload in payloads.items()}


def check(holds: object) -> None:
    """Check something that an answer must fulfil.

    Raises:
        ValueError: It doesn't.
    """
    if not holds:
        raise ValueError("the answer of an executor doesn't fit the request")


def _member(head: Mapping[str, Any], name: str, kind: type[T]) -> T | None:
    """Read a member that has this type or is null."""
    value = head[name]
    check(value is None or isinstance(value, kind))
    return value  # type: ignore[no-any-return]
