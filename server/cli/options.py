"""Flags that several subcommands share."""

from pathlib import Path
from typing import Any

import click


def packs_options(command: Any) -> Any:
    """Add the flags that choose toolpacks."""
    command = click.option("--packs", help="Toolpacks to load, by name, separated by commas.")(command)
    return click.option("--pack-dir", multiple=True, type=Path, help="Folder with toolpacks; may be repeated.")(command)
