"""`toolpack-server check`: finds the mistakes in toolpacks.

Every problem is printed, not only the first. Problems go to standard error and make the exit status 1; notes
are about what may be meant so. Toolpacks are loaded and their code is read here; what runs it comes with other
distributions, which name functions for that.
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
from toolpack_server.features.authoring.checking.findings import Finding, TrialOutcome
from toolpack_server.features.authoring.checking.warnings import notes_on
from toolpack_server.features.authoring.checking.writes import writes
from toolpack_server.features.evaluation.tasks.checks import check_tasks
from toolpack_server.packs.catalog import Catalog
from toolpack_server.packs.loading import catalog_of, inspect_toolpacks
from toolpack_server.packs.registration import place, qualified_name
from toolpack_server.processes.isolated_call import run_isolated
from toolpack_server.wiring.installed import feature_variables

GROUP = "toolpack_server.checks"
"""The group of entry points by which a distribution names functions that look at toolpacks by running their code.

Each takes a function that loads the toolpacks and functions as `TrialOutcome`, and returns a `Finding` each.
"""
NOT_CALLED = "No function was called: that takes toolpack-author, in a clone `pip install ./packages/toolpack-author`."
IN_MEMORY = {"store": "memory:", "log_calls": "off", "log_level": "error", "isolation": "thread", "workers": 1}


@click.command()
@packs_options
@click.option(
    "--calls/--no-calls",
    default=True,
    help="Call every function in a process of its own, where toolpack-author is installed.  [default: calls]",
)
@click.option("--tasks", is_flag=True, help="Check every task and its solution, too; may take long.")
@click.option("--task", "names", multiple=True, metavar="NAME", help="Check this task, toolpack/name; may be repeated.")
@click.option("--strict", is_flag=True, help="Exit with status 1 for notes, too.")
def check(
    pack_dir: tuple[Path, ...], packs: str | None, *, calls: bool, tasks: bool, names: tuple[str, ...], strict: bool
) -> None:
    """Load every toolpack, call its functions, and print every problem."""
    settings = load_settings(pack_dir=pack_dir or None, packs=packs)
    deeper = entry_points(group=GROUP)
    if (
        calls
        and not deeper
        and click.get_current_context().get_parameter_source("calls") is ParameterSource.COMMANDLINE
    ):
        raise click.UsageError(NOT_CALLED)
    load = partial(catalog_of, settings, build=False)
    looked = _Looked(**run_isolated(lambda: _look(settings)._asdict()))
    problems = looked.problems
    notes = [*unknown_variables(feature_variables()), *looked.notes]
    found = [Finding(*finding) for finding in looked.findings]
    if calls and not problems:
        written = {(finding.function, finding.subject) for finding in found}
        functions = [TrialOutcome(*function) for function in looked.functions]
        tried = [finding for point in deeper for finding in point.load()(load, functions)]
        found += [each for each in tried if (each.function, each.subject) not in written]
    notes += [str(finding) for finding in found if not finding.is_problem]
    problems += [str(finding) for finding in found if finding.is_problem]
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
        number = len(looked.functions)
        packs_found = f"{looked.toolpacks} toolpack{'' if looked.toolpacks == 1 else 's'}"
        echo(f"{packs_found} with {number} function{'' if number == 1 else 's'}{checked}: no problems.")
        if calls and not deeper:
            echo(NOT_CALLED, err=True)
    if problems or (strict and notes):
        sys.exit(1)


class _Looked(NamedTuple):
    """What a look at the toolpacks has found, as plain values: it comes from another process."""

    notes: list[str]
    problems: list[str]
    findings: list[tuple[Any, ...]]
    functions: Sequence[tuple[str, str, str]]
    toolpacks: int


def _look(settings: Settings) -> _Looked:
    catalog, errors = inspect_toolpacks(settings.pack_dir, settings.packs)
    notes, problems = list[str](), [str(error) for error in errors]
    if catalog is None:
        return _Looked(notes, problems, [], [], 0)
    (notes if catalog.toolpacks else problems).extend(catalog.notices)
    notes += [] if errors else notes_on(catalog.toolpacks.values())
    functions = [
        TrialOutcome(pack.name, function.name, place(function.function))
        for pack in catalog.toolpacks.values()
        for function in pack.functions.values()
    ]
    findings = [astuple(finding) for finding in _look_at(catalog)]
    return _Looked(notes, problems, findings, functions, len(catalog.toolpacks))


def _look_at(catalog: Catalog) -> list[Finding]:
    found: dict[tuple[str, str], Finding] = {}
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
                    f"{write.place}: {name}", what, "keep it in the environment.", subject=write.subject, function=name
                )
                found.setdefault((write.place, write.name), finding)
    return [*found.values()]
