"""Whether a verdict says anything of the agent, or only of the evaluator or the machine.

A verdict is invalid for one of a few reasons, each of which has a name. What isn't known yet, as the server
has too much to do, or never will be, as there is no such session, is an error and no verdict.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

from toolpack_server.base.errors import (
    ClassesChangedError,
    CrashedError,
    DeadlineError,
    EvaluationError,
    RequestError,
    StateDamagedError,
    VersionNotRetainedError,
)
from toolpack_server.execution.failure import Failure
from toolpack_server.features.evaluation.tasks.results import Verdict, VerdictFailure
from toolpack_server.protocol.omission import if_set
from toolpack_server.protocol.senders import CLIENT
from toolpack_server.sessions.paths import PathRecord
from toolpack_server.sessions.record_kinds import RecordKinds

Kind = Literal["evaluator", "deadline", "world"]

_KINDS: Mapping[type[RequestError], Kind] = {
    EvaluationError: "evaluator",
    DeadlineError: "deadline",
    ClassesChangedError: "world",
    VersionNotRetainedError: "world",
    StateDamagedError: "world",
}
_MACHINE = {Failure.DEADLINE: TimeoutError.__name__, Failure.CRASHED: CrashedError.__name__}


def evaluation_failure(error: RequestError) -> VerdictFailure | None:
    """Say why no reward could be had; None if the error says nothing of that."""
    kind = next((_KINDS[each] for each in type(error).__mro__ if each in _KINDS), None)
    if kind is None:
        return None
    return {
        "kind": kind,
        "type": error.kind if isinstance(error, EvaluationError) else type(error).__name__,
        "message": str(error),
    }


def no_reward(task: str, version: int, failure: VerdictFailure | None) -> Verdict:
    return {
        "task": task,
        "version": version,
        "reward": None,
        "passed": False,
        "checks": [],
        "metrics": {},
        "valid": False,
        "failure": if_set(failure),
        "perturbed": {},
    }


def machine_failure(path: Iterable[Mapping[str, Any]], deadline: Callable[[str], float]) -> VerdictFailure | None:
    """Find the first call of the agent's, or of another participant's, on a path that the machine has ended.

    Args:
        path: What is shown of the records.
        deadline: Gets a function's own deadline in seconds. An agent that asks for a shorter one has itself to blame.
    """
    for shown in path:
        why = shown.get("failure")
        if why not in _MACHINE or shown.get("by", CLIENT) == CLIENT:
            continue
        if why == Failure.DEADLINE and shown["duration_ms"] < round(deadline(shown["function"]) * 1000, 3):
            continue
        return {"kind": "infrastructure", "type": _MACHINE[Failure(why)], "message": shown["error"] or ""}
    return None


def participant_failure(path: Iterable[PathRecord], kinds: RecordKinds) -> VerdictFailure | None:
    """Find the participant on a path that has failed, as whoever plays it has said."""
    for record in path:
        failed = kinds[record.shown["kind"]].failure(record.shown)
        if failed is not None:
            message = f"{failed['by']}: {failed['message']}"
            return {"kind": "participant", "type": failed["reason"], "message": message}
    return None
