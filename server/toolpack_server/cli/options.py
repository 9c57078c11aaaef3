"""Flags that several subcommands share."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click


def packs_options(command: Any) -> Any:
    """Decorator: add the flags that choose toolpacks."""
    command = click.option("--packs", help='Toolpacks to load, comma-separated: names as in Toolpack("NAME").')(command)
    return click.option("--pack-dir", multiple=True, type=Path, help="Folder with toolpacks; may be repeated.")(command)


def server_options(url_help: str) -> Callable[[Any], Any]:
    """Decorator: add the flags that choose a server."""

    def decorate(command: Any) -> Any:
        token_help = "Bearer token for the server; better in the variable TOOLPACK_TOKEN."  # noqa: S105
        command = click.option("--token", envvar="TOOLPACK_TOKEN", help=token_help)(command)
        return click.option("--url", help=url_help)(command)

    return decorate
