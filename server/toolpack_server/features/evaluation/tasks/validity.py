"""Failures that make a verdict invalid: of the evaluator, the stored environments, the host or a participant.

An invalid verdict doesn't count for or against the agent. After any other error, such as an overloaded server or an
unknown session, the request returns the error instead of a verdict.
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
_HOST_FAILURES = {Failure.DEADLINE: TimeoutError.__name__, Failure.CRASHED: CrashedError.__name__}


def evaluation_failure(error: RequestError) -> VerdictFailure | None:
    """Return the failure for an error that `evaluate` raised, or None if the error concerns only the request."""
    kind = next((_KINDS[each] for each in type(error).__mro__ if each in _KINDS), None)
    if kind is None:
        return None
    return {
        "kind": kind,
        "type": error.kind if isinstance(error, EvaluationError) else type(error).__name__,
        "message": str(error),
    }


def no_reward(task: str, version: int, failure: VerdictFailure | None) -> Verdict:
    """Return an invalid verdict without a reward."""
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
    """Return a failure for the first call by a participant that exceeded its deadline or killed its process.

    Return None if the history contains no such call. If the agent requested a shorter deadline and a call exceeded only
    that deadline, the failure is the agent's own, so the verdict stays valid.

    Args:
        path: The public fields of the records in the history.
        deadline: Returns the deadline of a function in seconds.
    """
    for shown in path:
        failure = shown.get("failure")
        if failure not in _HOST_FAILURES or shown.get("by", CLIENT) == CLIENT:
            continue
        if failure == Failure.DEADLINE and shown["duration_ms"] < round(deadline(shown["function"]) * 1000, 3):
            continue
        return {"kind": "infrastructure", "type": _HOST_FAILURES[Failure(failure)], "message": shown["error"] or ""}
    return None


def unfinished_failure(error: RequestError) -> VerdictFailure:
    """Return the failure for an error of an event or a check that the session's last call has triggered."""
    kind = TimeoutError.__name__ if isinstance(error, DeadlineError) else type(error).__name__
    return {"kind": "infrastructure", "type": kind, "message": str(error)}


def participant_failure(path: Iterable[PathRecord], kinds: RecordKinds) -> VerdictFailure | None:
    """Return the first failure in a history that the program of a simulated participant has reported, or None."""
    for record in path:
        failed = kinds[record.shown["kind"]].failure(record.shown)
        if failed is not None:
            message = f"{failed['by']}: {failed['message']}"
            return {"kind": "participant", "type": failed["reason"], "message": message}
    return None
