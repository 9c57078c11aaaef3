"""`toolpack-server check` and `list`: toolpacks without a server.

The rule: `check` prints every problem; `list` stops at the first, as `serve` does.
"""

import sys
from pathlib import Path

import click

from server.cli.options import packs_options
from server.cli.shadowing import shadowing_files
from server.packs.checks import falsely_read_only
from server.packs.loading import inspect_toolpacks, load_catalog
from server.settings import load_settings


@click.command()
@packs_options
def check(pack_dir: tuple[Path, ...], packs: str | None) -> None:
    """Load every toolpack and print every problem."""
    settings = load_settings(pack_dir=pack_dir or None, packs=packs)
    catalog, problems = inspect_toolpacks(settings.pack_dir, settings.packs)
    for notice in shadowing_files([Path.cwd(), *settings.pack_dir]):
        click.echo(f"note: {notice}")
    found = [str(problem) for problem in problems]
    if catalog is not None:
        found += falsely_read_only(catalog) if not found else []
        for notice in catalog.notices:
            click.echo(f"note: {notice}")
    for problem in found:
        click.echo(problem, err=True)
    if found:
        sys.exit(1)
    if catalog is not None:
        functions = sum(len(pack.functions) for pack in catalog.toolpacks.values())
        packs_found = f"{len(catalog.toolpacks)} toolpack{'' if len(catalog.toolpacks) == 1 else 's'}"
        click.echo(f"{packs_found} with {functions} functions: no problems.")


@click.command("list")
@packs_options
def list_toolpacks(pack_dir: tuple[Path, ...], packs: str | None) -> None:
    """Show toolpacks and their functions."""
    settings = load_settings(pack_dir=pack_dir or None, packs=packs)
    catalog = load_catalog(settings.pack_dir, settings.packs)
    for pack in catalog.toolpacks.values():
        click.echo(f"{pack.name}{' (opt-in)' if pack.opt_in else ''}")
        for function in pack.functions.values():
            parameters = ", ".join(function.function.parameters.model_fields)
            summary = function.function.description.partition("\n")[0]
            click.echo(f"  {function.name}({parameters}){' [read-only]' if function.read_only else ''}: {summary}")
    for notice in catalog.notices:
        click.echo(f"note: {notice}")
