"""Command `toolpack-server audit`, which tries to pass tasks without doing them and finds checks that never fail.

Findings go to standard output, progress to standard error. Exit status 1: there are findings. 2: the audit failed.
"""

import fnmatch
import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import jsonpointer

from toolpack_author.audit.auditing import AuditOptions
from toolpack_author.audit.processes import HashSeeds, Report, audit_tasks, task_names
from toolpack_server import ToolpackServerError
from toolpack_server.base.settings import Settings, load_settings
from toolpack_server.features.api.commands import echo, packs_options, progress
from toolpack_server.features.api.stores import shown

FORMAT = "audit-1"
UNSTABLE = "processes with other hash seeds give other verdicts or metrics: the evaluator depends on the order of a set"


class _AuditFailed(click.ClickException):
    """The audit failed. The exit status is 2, because 1 means that there are findings."""

    exit_code = 2


@click.command()
@packs_options
@click.option(
    "--task", "patterns", multiple=True, metavar="PATTERN", help="Audit only tasks that match, such as 'bank/*'."
)
@click.option("--mutants", default=120, show_default=True, type=click.IntRange(1), help="Maximum attempts at a task.")
@click.option("--seed", default=0, show_default=True, help="Seed for the values of attempts.")
@click.option("--ignore", multiple=True, metavar="POINTER", help="Part of the world to ignore, such as /bank/log.")
@click.option(
    "--client", "clients", multiple=True, metavar="FUNCTION", help="Function that only clients call in solutions."
)
@click.option("--hash-seeds/--no-hash-seeds", default=True, help="Also use other hash seeds.  [default: hash-seeds]")
@click.option("--json", "file", type=click.Path(path_type=Path), metavar="FILE", help="Write a report to this file.")
@click.option(
    "--known", type=click.Path(path_type=Path), metavar="FILE", help="Earlier report. Its findings are ignored."
)
@click.option(
    "--fail-on",
    type=click.Choice(["fault", "weakness", "never"]),
    default="fault",
    show_default=True,
    help="Findings that make the exit status 1.",
)
def audit(
    pack_dir: tuple[Path, ...],
    packs: str | None,
    *,
    patterns: tuple[str, ...],
    mutants: int,
    seed: int,
    ignore: tuple[str, ...],
    clients: tuple[str, ...],
    hash_seeds: bool,
    file: Path | None,
    known: Path | None,
    fail_on: str,
) -> None:
    """Try to pass tasks without doing them, and print the findings."""
    try:
        settings = load_settings(pack_dir=pack_dir or None, packs=packs)
        known_findings = _read_known(known) if known else {}
        _check_pointers(ignore)
        names = _select(task_names(settings), patterns)
        began = time.monotonic()
        other_seeds = HashSeeds(settings, names, clients) if hash_seeds else None
        try:
            reports = _audit_all(settings, names, AuditOptions(mutants, seed, ignore, frozenset(clients)))
            unstable = other_seeds.unstable() if other_seeds else []
        finally:
            if other_seeds:
                other_seeds.end()
        for name in unstable:
            _add_unstable(reports[name])
    except ToolpackServerError as error:
        raise _AuditFailed(str(error)) from None
    seconds = time.monotonic() - began
    attempts = sum(tried for each in reports.values() for tried, _ in each["attempts"].values())
    if file:
        _write(
            file, {"format": FORMAT, "seed": seed, "attempts": attempts, "seconds": round(seconds, 3), "tasks": reports}
        )
    new = {
        name: [each for each in report["findings"] if not _is_known(known_findings, name, each)]
        for name, report in reports.items()
    }
    for name, findings in new.items():
        for finding in findings:
            echo(f"{name}: {_level(finding)}: {finding['kind']}: {finding['text']}")
    echo(_last_line(new, attempts, seconds))
    faulty = any(finding["fault"] for findings in new.values() for finding in findings)
    if (faulty and fail_on != "never") or (fail_on == "weakness" and any(new.values())):
        sys.exit(1)


def _level(finding: Mapping[str, Any]) -> str:
    return "fault" if finding["fault"] else "weakness"


def _select(names: Sequence[str], patterns: Sequence[str]) -> list[str]:
    for pattern in patterns:
        if not fnmatch.filter(names, pattern):
            raise _AuditFailed(f"There is no task that matches {shown(pattern)!r}: list_tasks shows all tasks.")
    return [name for name in names if not patterns or any(fnmatch.fnmatchcase(name, each) for each in patterns)]


def _check_pointers(pointers: Sequence[str]) -> None:
    for pointer in pointers:
        try:
            jsonpointer.JsonPointer(pointer)
        except jsonpointer.JsonPointerException:
            raise _AuditFailed(
                f"--ignore {shown(pointer)!r} isn't a JSON Pointer: write one such as /bank/log."
            ) from None


def _audit_all(settings: Settings, names: Sequence[str], options: AuditOptions) -> dict[str, Report]:
    """Audit tasks and show the progress."""
    reports: dict[str, Report] = {}
    with progress("Auditing tasks", len(names)) as advance:
        for name, report in audit_tasks(settings, names, options):
            reports[name] = report
            advance(1)
    return reports


def _add_unstable(report: Report) -> None:
    if not any(finding["kind"] == "unstable" for finding in report["findings"]):
        finding = {"kind": "unstable", "fault": True, "text": UNSTABLE, "calls": [], "answer": "", "about": ""}
        report["findings"].insert(0, finding)


def _read_known(path: Path) -> Mapping[str, Any]:
    """Return the kind, level and subject of all findings in an earlier report, by task."""
    try:
        known = json.loads(path.read_text(encoding="utf-8"))
        if known["format"] != FORMAT:
            raise _AuditFailed(
                f"--known {path} has the format {known['format']}, this version reads {FORMAT}: audit again to get one."
            )
        return {
            name: {(each["kind"], bool(each["fault"]), each.get("about") or "") for each in task["findings"]}
            for name, task in known["tasks"].items()
        }
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        raise _AuditFailed(f"--known {path} isn't a report of audit: give a file that --json wrote.") from None


def _is_known(known: Mapping[str, Any], name: str, finding: Mapping[str, Any]) -> bool:
    return (finding["kind"], finding["fault"], finding["about"]) in known.get(name, ())


def _write(path: Path, report: Mapping[str, Any]) -> None:
    try:
        path.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    except OSError as error:
        raise _AuditFailed(f"The report can't be written to {path}: {error.strerror}.") from None


def _last_line(findings: Mapping[str, Sequence[Mapping[str, Any]]], attempts: int, seconds: float) -> str:
    if not findings:
        return "There is no task to audit: choose toolpacks with --packs or --pack-dir, and tasks with --task."
    faulty = sum(any(finding["fault"] for finding in task_findings) for task_findings in findings.values())
    weak = sum(bool(task_findings) for task_findings in findings.values()) - faulty
    tasks = f"{len(findings)} task{'' if len(findings) == 1 else 's'}"
    rate = f"{attempts / seconds:.0f}/s" if seconds else "0/s"
    return (
        f"{tasks}, {attempts} attempts in {seconds:.1f} s ({rate}): {faulty} with faults, {weak} with weaknesses only."
    )
