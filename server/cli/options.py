"""Flags that several subcommands share.

The rule: a flag that is used twice is defined here.
"""

from pathlib import Path
from typing import Any

import click


def packs_options(command: Any) -> Any:
    """Decorator: add the flags that choose toolpacks."""
    command = click.option("--packs", help="Names of toolpacks to load, comma-separated.")(command)
    return click.option("--pack-dir", multiple=True, type=Path, help="Folder with toolpacks; may be repeated.")(command)
