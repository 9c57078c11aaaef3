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

import click

from server.base.errors import ToolpackServerError
from server.base.terminal import echo

FIRST_OF_FILES = 3  # the numbers below are those of the standard streams
GROUP = "toolpack_server.commands"
"""The group of entry points by which a distribution names its subcommands: objects of click."""

COMMANDS = {
    "serve": "server.cli.serve:serve",
    "new": "server.cli.new:new",
    "list": "server.cli.packs:list_toolpacks",
    "call": "server.cli.call:call",
    "sessions": "server.cli.look:sessions",
    "env": "server.cli.look:env",
    "trace": "server.cli.look:trace",
    "diff": "server.cli.look:diff",
    "schemas": "server.cli.schemas:schemas",
    "token": "server.cli.token:token",
    "features": "server.cli.features:features",
}


def all_commands() -> dict[str, str]:
    """Get the import paths of the core's commands, and of those that distributions name."""
    return {point.name: point.value for point in entry_points(group=GROUP)} | COMMANDS


def first_sentence(path: str) -> str:
    """Get what a command does from its docstring, without importing it, as that takes long."""
    module, _, name = path.partition(":")
    spec = find_spec(module)
    source = Path(spec.origin).read_text(encoding="utf-8") if spec and spec.origin else ""
    functions = {each.name: each for each in ast.parse(source).body if isinstance(each, ast.FunctionDef)}
    text = ast.get_docstring(functions[name]) if name in functions else resolve_name(path).help
    return " ".join((text or "").partition("\n\n")[0].split())


class Commands(click.Group):
    """The core's commands, and those that distributions name."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        del ctx
        return sorted(all_commands())

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands without importing them."""
        del ctx
        found = sorted(all_commands().items())
        width = formatter.width - max(len(name) for name, _ in found) - 6
        with formatter.section("Commands"):
            short = {name: click.Command(name, help=first_sentence(path)) for name, path in found}
            formatter.write_dl([(name, command.get_short_help_str(width)) for name, command in short.items()])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        del ctx
        gc.disable()  # there is nothing to collect while modules are imported, and looking for it takes a fifth longer
        try:
            path = COMMANDS.get(cmd_name) or all_commands().get(cmd_name)
            command: click.Command | None = resolve_name(path) if path else None
        finally:
            gc.enable()
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
