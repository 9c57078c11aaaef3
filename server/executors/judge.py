"""Evaluators and solutions, as an executor runs them.

The rule: as in `work`. An older version of the session is asked for when an evaluator looks at it.
"""

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

from server.errors import EvaluationError, VersionNotRetainedError
from server.execution.codec import PlainCodec
from server.execution.evaluation import Evidence, Means, PathRecord, evaluate, solve
from server.execution.world import Snapshot
from server.executors.channel import Channel, Frame


class Judge:
    """Evaluates and solves, in an executor.

    Args:
        channel: Where older versions are asked for.
        codec: Reads and writes environments.
        max_result_bytes: The largest size of a call's result as JSON.
    """

    def __init__(self, channel: Channel, codec: PlainCodec, max_result_bytes: int) -> None:
        self._channel = channel
        self._means = Means(codec, max_result_bytes, nullcontext())

    def do(self, request: Frame) -> dict[str, Any]:
        """Do a request, and get the head of the answer."""
        head, evidence = request.head, self._evidence(request)
        try:
            if head["do"] == "solve":
                return {"solution": solve(head["task"], evidence, self._means)}
            return {"verdict": evaluate(head["task"], evidence, self._means)}
        except EvaluationError as error:
            return {"failed": str(error), "kind": error.kind}
        except VersionNotRetainedError:
            return {"gone": True}

    def _evidence(self, request: Frame) -> Evidence:
        head, pieces = request.head, iter(request.pieces)
        initial, final = (_snapshot(head[name], pieces) for name in ("initial", "final"))
        return Evidence(
            toolpacks=tuple(head["toolpacks"]),
            options=head["options"],
            initial=initial,
            final=final,
            version=head["version"],
            path=[PathRecord(shown, own=own) for own, shown in head["path"]],
            answer=head["answer"],
            at=self._at,
        )

    def _at(self, version: int) -> Snapshot:
        self._channel.send({"at": version})
        answer = self._channel.receive()
        if answer.head["parts"] is None:
            raise VersionNotRetainedError(version, 0, 0)  # the worker knows why
        return _snapshot(answer.head["parts"], iter(answer.pieces))


def _snapshot(parts: list[str], pieces: Iterator[bytes]) -> Snapshot:
    return Snapshot(dict.fromkeys(parts, ""), {part: next(pieces) for part in parts})
