"""OpenEnv graders of the semantic level, which audit the tasks of a package with toolpacks.

A package is a folder that contains an `openenv.yaml`, and toolpacks in the folder `packs`. The types in its
`openenv.yaml` include the tag `toolpack-server`.

Only OpenEnv imports this module, through the entry points `openenv.validation.graders`. A grader follows OpenEnv's
protocol `Grader`, so it reports findings without rating them.
"""

import json
import time
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

from openenv.validation import CheckResult, CheckStatus, Level
from openenv.validation.graders import Subject
from openenv.validation.manifest import NormalizedManifest
from openenv.validation.types import ProviderCapability

from toolpack_author.audit.auditing import AuditOptions
from toolpack_author.audit.processes import Report, audit_tasks, task_names
from toolpack_server import ToolpackServerError
from toolpack_server.base.settings import load_settings

TAG = "toolpack-server"
MUTANTS, SEED = 120, 0  # the defaults of `toolpack-server audit`
MAX_SHOWN, MAX_CHARACTERS = 20, 500  # max lines of evidence, and max characters of each


@lru_cache(maxsize=1)  # shared by all graders
def _audited(root: Path) -> dict[str, Report]:
    """Audit the tasks of a package, without a server, and return the report on each task.

    Raises:
        ToolpackServerError: The toolpacks can't be loaded.
    """
    folder = root / "packs"
    names = [path.stem for path in sorted(folder.glob("[!_]*.py"))]
    settings = load_settings(pack_dir=(folder,), packs=",".join(names))
    return dict(audit_tasks(settings, task_names(settings), AuditOptions(MUTANTS, SEED, ())))


class AuditGrader:
    """A check in OpenEnv's policy, which fails if the audit reports faults of its `kinds`. OpenEnv creates and runs it.

    Attributes:
        kinds: Kinds of findings, as listed in docs/write/tasks.md.
        remedy: The change that the author should make.
    """

    check_id: ClassVar[str]
    kinds: ClassVar[frozenset[str]]
    remedy: ClassVar[str]
    level = Level.SEMANTIC
    requires_capabilities: frozenset[str] = frozenset()
    requires_provider: frozenset[ProviderCapability] = frozenset()
    depends_on: tuple[str, ...] = ()

    def applies_to(self, manifest: NormalizedManifest) -> bool:
        return TAG in manifest.types.tags

    def run(self, subject: Subject) -> CheckResult:
        """Audit the package, unless another grader has audited it before, and return the result of this check."""
        start = time.monotonic()
        try:
            reports = _audited(subject.root.resolve())
        except ToolpackServerError as error:
            return self._result(CheckStatus.ERROR, {}, [str(error)], start)
        if not reports:
            return self._result(CheckStatus.SKIP, {}, ["the folder packs has no toolpack with tasks"], start)
        faults = [
            (name, finding)
            for name, report in reports.items()
            for finding in report["findings"]
            if finding["fault"] and finding["kind"] in self.kinds
        ]
        attempts = sum(tried for report in reports.values() for tried, _ in report["attempts"].values())
        measured = {"tasks": len(reports), "attempts": attempts, "faulty_tasks": len({name for name, _ in faults})}
        evidence = [_shown(name, finding) for name, finding in faults]
        status = CheckStatus.FAIL if faults else CheckStatus.PASS
        return self._result(status, measured, evidence[:MAX_SHOWN] or ["the audit found no fault"], start)

    def _result(self, status: CheckStatus, measured: dict[str, int], evidence: list[str], start: float) -> CheckResult:
        return CheckResult(
            check_id=self.check_id,
            status=status,
            measured=measured,
            evidence=evidence,
            remediation=self.remedy if status is CheckStatus.FAIL else None,
            duration_s=time.monotonic() - start,
        )


def _shown(name: str, finding: Mapping[str, Any]) -> str:
    """Return a line with a finding and the attempt that shows it."""
    text = f"{name}: {finding['kind']}: {finding['text']}: calls {json.dumps(finding['calls'])}"
    text += f", answer {json.dumps(finding['answer'])}" if finding["answer"] else ""
    return text if len(text) <= MAX_CHARACTERS else f"{text[: MAX_CHARACTERS - 1]}…"


class OracleMax(AuditGrader):
    check_id = "semantic.oracle_max"
    kinds = frozenset({"solution-fails", "max-calls", "hidden-function", "session-refused", "evaluator-fails"})
    remedy = "Correct the solution, or the evaluator, so that the solution passes when an agent plays it."


class FloorGap(AuditGrader):
    check_id = "semantic.floor_gap"
    kinds = frozenset(
        {
            *("nothing-passes", "no-work", "call-unneeded", "argument-unchecked"),
            *("answer-unchecked", "answer-guessed"),
        }
    )
    remedy = "Change the evaluator so that it distinguishes the reported attempt from a correct solution."


class NoSolutionLeakage(AuditGrader):
    check_id = "semantic.no_solution_leakage"
    kinds = frozenset({"leak", "answer-in-prompt"})
    remedy = "Remove the answer from the prompt and the functions' descriptions."


class VerifierDeterminism(AuditGrader):
    check_id = "semantic.verifier_determinism"
    kinds = frozenset({"unstable", "reward-fails"})
    remedy = "Let the evaluator depend only on the world and the answer, in a fixed order."
