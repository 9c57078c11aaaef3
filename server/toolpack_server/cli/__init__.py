"""The command `toolpack-server`, one module for each group of subcommands.

The rules: every problem is reported in one sentence on standard error, with exit status 1; a traceback is a bug. A
command is imported when it is used, so that each starts as quickly as it can.
"""

import ast
import gc
import os
import sys
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import click

from toolpack_server.base.errors import ToolpackServerError
from toolpack_server.base.terminal import echo

FIRST_OF_FILES = 3  # the numbers below are those of the standard streams
GROUP = "toolpack_server.commands"
"""The group of entry points by which a distribution names its subcommands, also `session NAME`: objects of click."""

COMMANDS = {
    "serve": "toolpack_server.cli.serve:serve",
    "new": "toolpack_server.cli.new:new",
    "list": "toolpack_server.cli.packs:list_toolpacks",
    "call": "toolpack_server.cli.call:call",
    "session list": "toolpack_server.cli.look:list_sessions",
    "session env": "toolpack_server.cli.look:env",
    "session trace": "toolpack_server.cli.look:trace",
    "session diff": "toolpack_server.cli.look:diff",
    "token": "toolpack_server.cli.token:token",
    "features": "toolpack_server.cli.features:features",
}
GROUPS = {"session": "Look at sessions, and write them into files."}
"""Commands that have subcommands, and what these do: `session trace` is the subcommand `trace` of `session`."""

ELSEWHERE = "toolpack_server.elsewhere"
"""The group of entry points that name commands of other distributions, for whoever looks for them without these."""


def all_commands() -> dict[str, str]:
    """Get the import paths of the core's commands, and of those that distributions name."""
    return {point.name: point.value for point in entry_points(group=GROUP)} | COMMANDS


def elsewhere() -> dict[str, str]:
    """Get the distributions of commands that this one hasn't, by the names of the commands."""
    return {point.name: point.value.replace("_", "-") for point in entry_points(group=ELSEWHERE)}


def first_sentence(path: str) -> str:
    """Get what a command does from its docstring, without importing it, as that takes long."""
    module, _, name = path.partition(":")
    spec = find_spec(module)
    source = Path(spec.origin).read_text(encoding="utf-8") if spec and spec.origin else ""
    functions = {each.name: each for each in ast.parse(source).body if isinstance(each, ast.FunctionDef)}
    text = ast.get_docstring(functions[name]) if name in functions else resolve_name(path).help
    return " ".join((text or "").partition("\n\n")[0].split())


class Commands(click.Group):
    """The core's commands, and those that distributions name: all whose names begin with this group's `prefix`."""

    def __init__(self, *args: Any, prefix: str = "", **more: Any) -> None:
        super().__init__(*args, **more)
        self._prefix = prefix

    def _paths(self) -> dict[str, str]:
        """Get the import paths of this group's commands; a group among them has none."""
        begins = len(self._prefix)
        names = {name[begins:]: path for name, path in all_commands().items() if name.startswith(self._prefix)}
        return {name.partition(" ")[0]: "" if " " in name else path for name, path in names.items()}

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return sorted(self._paths())

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Write the list of commands without importing them."""
        found = sorted(self._paths().items())
        width = formatter.width - max(len(name) for name, _ in found) - 6
        with formatter.section("Commands"):
            texts = {name: first_sentence(path) if path else GROUPS[name] for name, path in found}
            short = {name: click.Command(name, help=text) for name, text in texts.items()}
            formatter.write_dl([(name, command.get_short_help_str(width)) for name, command in short.items()])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        gc.disable()  # there is nothing to collect while modules are imported, and looking for it takes a fifth longer
        try:
            if not self._prefix and cmd_name in GROUPS:
                return Commands(cmd_name, prefix=f"{cmd_name} ", help=GROUPS[cmd_name])
            name = f"{self._prefix}{cmd_name}"
            path = COMMANDS.get(name) or all_commands().get(name)
            command: click.Command | None = resolve_name(path) if path else None
        finally:
            gc.enable()
        if command is None and (package := elsewhere().get(name)):
            raise click.ClickException(
                f"{name} comes with {package}, which isn't installed: install the wheel of this version, or, in a "
                f"clone of the repository, ./packages/{package}."
            )
        return command


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="toolpack-server")
def cli() -> None:
    """Serve functions, and the worlds they change, to agents."""


def main() -> None:
    """Run the command; report errors as the module's rule says."""
    _open_closed_streams()
    try:
        cli(standalone_mode=False)
    except click.ClickException as error:
        echo(f"toolpack-server: {error.format_message()}", err=True)
        sys.exit(error.exit_code)
    except click.Abort:
        sys.exit(130)
    except ToolpackServerError as error:
        echo(f"toolpack-server: {error}", err=True)
        sys.exit(1)
    except OSError as error:  # of a file that the user has named, or of what is printed
        place = f"{error.filename}: " if error.filename else ""
        echo(f"toolpack-server: {place}{error.strerror or error}.", err=True)
        sys.exit(1)
    finally:
        try:
            sys.stderr.flush()
        except OSError:  # closed, or its disk is full: what can't be logged is no failure of the command
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)


def _open_closed_streams() -> None:
    """Open the standard streams with which the command was started closed, on the null device.

    Otherwise a connection or a database would get the number of one, and what is printed.
    """
    while (opened := os.open(os.devnull, os.O_RDWR)) < FIRST_OF_FILES:
        pass
    os.close(opened)
    for number, (name, mode) in enumerate({"stdin": "r", "stdout": "w", "stderr": "w"}.items()):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, mode, closefd=False))
