"""Audit of one task: its trials and its findings.

The findings depend only on the task's toolpack, the seed and the number of attempts.
"""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, lru_cache
from typing import Any, NamedTuple

from toolpack_author.audit.attempts import Calls, SolvedTask, attempts
from toolpack_author.audit.findings import AuditedTask, AuditFinding, findings, first_finding, never_failing
from toolpack_author.audit.trials import Announce, RefusedError, Trials, in_session
from toolpack_author.audit.values import KnownValues
from toolpack_server import Task
from toolpack_server.base.errors import Interrupted
from toolpack_server.execution.snapshot import Snapshot
from toolpack_server.execution.views import thawed
from toolpack_server.features.api.core import RequestError
from toolpack_server.features.evaluation.tasks.finding import find_task, tasks_of
from toolpack_server.features.evaluation.tasks.solutions import solution_calls
from toolpack_server.jsonio.strict import dumps, loads
from toolpack_server.packs.formats import native
from toolpack_server.packs.pack_function import PackFunction
from toolpack_server.packs.toolpack import Toolpack, as_made
from toolpack_server.wiring.service import Service


class AuditOptions(NamedTuple):
    """Options of an audit.

    Attributes:
        mutants: Maximum number of attempts at a task.
        seed: Seed of the attempts.
        ignore: JSON Pointers to parts of the world that are ignored in comparisons.
        clients: Functions that the client calls in solutions, not an agent.
    """

    mutants: int
    seed: int
    ignore: Sequence[str]
    clients: frozenset[str] = frozenset()


class Auditor:
    """Audits tasks in this process, on its main thread.

    Args:
        announce: Called with a description of the code that runs next.
        run_coroutine: Runs a coroutine on the service's event loop, and returns its result.
    """

    def __init__(
        self, service: Service, options: AuditOptions, announce: Announce, run_coroutine: Callable[[Any], Any]
    ) -> None:
        self._service, self._options, self._announce, self._run_coroutine = service, options, announce, run_coroutine
        self._cached_list = cache(self._list)
        # Successive tasks often have the same initial world, so the last dump is cached.
        self._dump = lru_cache(maxsize=1)(lambda world: "\n".join(KnownValues([loads(world)], ()).texts()))
        self._solutions: dict[str, Mapping[str, tuple[Calls, str]]] = {}

    def audit(self, name: str) -> dict[str, Any]:
        """Audit a task and return its part of the report. A task that can't be tried gets a finding that says so."""
        try:
            pack, task = find_task(self._service.context.catalog, name)
            options, callbacks = self._options, (self._announce, self._run_coroutine, self._cached_list)
            return self._report(pack, Trials(self._service, name, task, options.ignore, options.clients, *callbacks))
        except RefusedError as error:
            return report([AuditFinding(error.kind, True, str(error))])
        except (RequestError, Interrupted) as error:
            return report([AuditFinding("evaluator-fails", True, str(error) or "it took too long")])

    def verdicts(self, name: str) -> list[Any]:
        """Return the verdicts on doing nothing and on the solution. They must not depend on the hash seed."""
        try:
            _, task = find_task(self._service.context.catalog, name)
            callbacks = self._options.clients, self._announce, self._run_coroutine
            return in_session(self._service, name, task, *callbacks, evaluations=1).stable_parts()
        except (RefusedError, RequestError, Interrupted):  # the audit itself reports this
            return []

    def _report(self, pack: Toolpack, trials: Trials) -> dict[str, Any]:
        """Return a task's part of the report. Skip the attempts if a basic fault makes them pointless."""
        task = trials.task
        audited = AuditedTask(
            trials.calls,
            trials.changing,
            bool(trials.answer),
            task.nop_passes,
            trials.nop_verdict,
            trials.solution_verdict,
            (),
        )
        if trials.unstable:
            return report([AuditFinding("unstable", True, trials.unstable)])
        first = first_finding(audited)
        if first is not None:
            return report([first])
        seed = f"{self._options.seed} {trials.name}"
        results = [*trials.attempts(attempts(self._solved(pack, trials), seed, self._options.mutants))]
        audited = replace(audited, results=results)
        if never_failing(audited):  # otherwise the guards, which take time to find, aren't needed
            audited = replace(audited, guards=trials.guards())
        counts: dict[str, list[int]] = {}  # by kind: the number of attempts, and of those that passed
        for result in audited.results:
            count = counts.setdefault(result.attempt.kind, [0, 0])
            count[0] += 1
            count[1] += result.passed
        minimal = trials.minimal(results) if trials.calls else []
        return report(findings(audited), counts, minimal)

    def _list(self, toolpacks: tuple[str, ...]) -> list[tuple[PackFunction, Mapping[str, Any]]]:
        """Return the functions in toolpacks with their descriptions.

        The descriptions are cached, because creating them is slow.
        """
        return [(each, native(each)) for each in self._service.context.catalog.listed(toolpacks)]

    def _solved(self, pack: Toolpack, trials: Trials) -> SolvedTask:
        """Collect the data from which attempts at a task are made."""
        others = [solution for name, solution in self._others(pack).items() if name != trials.task.name]
        arguments = [kwargs for calls, _ in others for _, kwargs, _ in calls]
        own = [[kwargs for _, kwargs, _ in trials.calls or ()], trials.answer]
        return SolvedTask(
            prompt=trials.prompt,
            functions=trials.functions,
            calls=trials.calls,
            changing=trials.changing,
            answer=trials.answer,
            own=KnownValues([dict(kwargs) for _, kwargs, _ in trials.calls or ()], ()),
            pool=KnownValues([trials.initial, *arguments], own),
            answers=sorted({answer for _, answer in others if answer}),
            dump=self._dump(dumps(trials.initial)) if trials.answer else "",
        )

    def _others(self, pack: Toolpack) -> Mapping[str, tuple[Calls, str]]:
        """Return the calls and the answer of each task's solution in a toolpack. Solutions that fail are left out."""
        if pack.name not in self._solutions:
            solutions = {}
            for task in tasks_of(pack).all().values():
                with contextlib.suppress(Exception):  # the task's own audit reports the problem
                    if task.solution is not None:
                        solutions[task.name] = self._solution(pack, task)
            self._solutions[pack.name] = solutions
        return self._solutions[pack.name]

    def _solution(self, pack: Toolpack, task: Task) -> tuple[Calls, str]:
        """Return the calls and the answer of a task's solution.

        If the author wrote the solution as a function, call it with the initial environment.
        """
        initial = None
        self._announce(f"the solution of {task.name!r}", self._service.settings.timeout_seconds)
        if callable(task.solution):
            context = self._service.context
            parts, blobs = context.initial_parts((pack.name,), {pack.name: dict(task.options)}, {})
            snapshot = Snapshot(parts, {part: blobs[blob_id] for part, blob_id in parts.items()})
            initial = as_made(thawed(context.codec, snapshot))[pack.name]
        answer = task.answer if isinstance(task.answer, str) else "\n".join(task.answer)
        return tuple(solution_calls(task, initial)), answer


def report(
    task_findings: Sequence[AuditFinding],
    counts: Mapping[str, list[int]] | None = None,
    minimal: Sequence[int] = (),
) -> dict[str, Any]:
    """Return a task's part of the report."""
    return {
        "attempts": counts or {},
        "minimal": [*minimal],
        "findings": [finding.to_json() for finding in task_findings],
    }
