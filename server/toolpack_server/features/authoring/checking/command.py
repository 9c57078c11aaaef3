"""The command `toolpack-server check`: find mistakes in toolpacks.

The command prints problems to standard error; if it finds any, it exits with status 1. It prints notes to standard
output, because a note points to code that might be intentional. The checks in this package load toolpacks and read
their code. Other distributions add checks that run the code, as entry points.
"""

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import astuple
from functools import partial
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, NamedTuple

import click
from click.core import ParameterSource

from toolpack_server.base.settings import Settings, load_settings, unknown_variables
from toolpack_server.base.terminal import echo
from toolpack_server.cli.options import packs_options
from toolpack_server.features.authoring.checking.findings import CheckedFunction, Finding
from toolpack_server.features.authoring.checking.warnings import notes_on
from toolpack_server.features.authoring.checking.writes import writes
from toolpack_server.features.evaluation.tasks.checks import check_tasks
from toolpack_server.packs.catalog import Catalog
from toolpack_server.packs.loading import catalog_of, inspect_toolpacks
from toolpack_server.packs.registration import location_of, qualified_name
from toolpack_server.processes.isolated_call import run_isolated
from toolpack_server.wiring.installed import feature_variables

GROUP = "toolpack_server.checks"
"""The entry point group of checks that run the toolpacks' code.

Each entry point is a function that returns `Finding` objects. It accepts a function that loads the toolpacks, and a
list of `CheckedFunction`.
"""
NOT_CALLED = (
    "No function was called: this needs toolpack-author. To install it, run `pip install ./packages/toolpack-author` "
    "in a clone of the repository."
)
IN_MEMORY = {"store": "memory:", "log_calls": "off", "log_level": "error", "isolation": "thread", "workers": 1}


@click.command()
@packs_options
@click.option(
    "--calls/--no-calls",
    default=True,
    help="Call every function in a separate process, if toolpack-author is installed.  [default: calls]",
)
@click.option("--tasks", is_flag=True, help="Also check every task and its solution. This can take long.")
@click.option("--task", "names", multiple=True, metavar="NAME", help="Check this task, toolpack/name; can be repeated.")
@click.option("--strict", is_flag=True, help="Exit with status 1 if there are notes.")
def check(
    pack_dir: tuple[Path, ...], packs: str | None, *, calls: bool, tasks: bool, names: tuple[str, ...], strict: bool
) -> None:
    """Load every toolpack, call its functions, and print every problem."""
    settings = load_settings(pack_dir=pack_dir or None, packs=packs)
    call_checks = entry_points(group=GROUP)
    if (
        calls
        and not call_checks
        and click.get_current_context().get_parameter_source("calls") is ParameterSource.COMMANDLINE
    ):
        raise click.UsageError(NOT_CALLED)
    load = partial(catalog_of, settings, build=False)
    inspection = _Inspection(**run_isolated(lambda: _inspect(settings)._asdict()))
    problems = inspection.problems
    notes = [*unknown_variables(feature_variables()), *inspection.notes]
    findings = [Finding(*finding) for finding in inspection.findings]
    if calls and not problems:
        # A write that was found in the code isn't reported again after a call.
        from_code = {(finding.function, finding.subject) for finding in findings}
        functions = [CheckedFunction(*function) for function in inspection.functions]
        from_calls = [finding for point in call_checks for finding in point.load()(load, functions)]
        findings += [each for each in from_calls if (each.function, each.subject) not in from_code]
    notes += [str(finding) for finding in findings if not finding.is_problem]
    problems += [str(finding) for finding in findings if finding.is_problem]
    checked = ""
    if (tasks or names) and not problems:
        number, problems = run_isolated(
            lambda: asyncio.run(check_tasks(settings.model_copy(update=IN_MEMORY), load(), names))
        )
        checked = f" and {number} task{'' if number == 1 else 's'}"
    for note in notes:
        echo(*f"note: {note}".split("\n"))
    for problem in problems:
        echo(*problem.split("\n"), err=True)
    if not problems:
        number = len(inspection.functions)
        toolpacks = f"{inspection.toolpacks} toolpack{'' if inspection.toolpacks == 1 else 's'}"
        echo(f"{toolpacks} with {number} function{'' if number == 1 else 's'}{checked}: no problems.")
        if calls and not call_checks:
            echo(NOT_CALLED, err=True)
    if problems or (strict and notes):
        sys.exit(1)


class _Inspection(NamedTuple):
    """Results of loading the toolpacks and reading their code.

    A child process computes these results and sends them to this process. So they contain only strings, numbers, lists
    and tuples.
    """

    notes: list[str]
    problems: list[str]
    findings: list[tuple[Any, ...]]
    functions: Sequence[tuple[str, str, str]]
    toolpacks: int


def _inspect(settings: Settings) -> _Inspection:
    """Load the toolpacks and read their code. This runs in a child process, because loading runs author code."""
    catalog, errors = inspect_toolpacks(settings.pack_dir, settings.packs)
    notes, problems = list[str](), [str(error) for error in errors]
    if catalog is None:
        return _Inspection(notes, problems, [], [], 0)
    (notes if catalog.toolpacks else problems).extend(catalog.notices)
    notes += [] if errors else notes_on(catalog.toolpacks.values())
    functions = [
        CheckedFunction(pack.name, function.name, location_of(function.function))
        for pack in catalog.toolpacks.values()
        for function in pack.functions.values()
    ]
    findings = [astuple(finding) for finding in _shared_writes(catalog)]
    return _Inspection(notes, problems, findings, functions, len(catalog.toolpacks))


def _shared_writes(catalog: Catalog) -> list[Finding]:
    """Return a note for each place where a toolpack's function writes to shared state."""
    findings: dict[tuple[str, str], Finding] = {}
    for pack in catalog.toolpacks.values():
        for function in pack.functions.values():
            name = qualified_name(function.function)
            for write in writes(function.function.run):
                what = (
                    f"it changes the state of the process with `{write.name}`, which all sessions share"
                    if write.of_process
                    else f"it changes `{write.name}`, which all sessions share and no reset restores"
                )
                finding = Finding(
                    f"{write.location}: {name}",
                    what,
                    "keep it in the environment.",
                    subject=write.subject,
                    function=name,
                )
                findings.setdefault((write.location, write.name), finding)
    return [*findings.values()]
