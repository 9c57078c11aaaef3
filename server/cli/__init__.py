"""The command `toolpack-server`, one module for each group of subcommands.

The rules: every problem is reported in one sentence on standard error, with exit status 1; a traceback is a bug. A
command is imported when it is used, so that each starts as quickly as it can.
"""

import gc
import os
import sys
from pkgutil import resolve_name

import click

from server import included
from server.errors import ToolpackServerError

FIRST_OF_FILES = 3  # the numbers below are those of the standard streams
COMMANDS: dict[str, tuple[str, str]] = {
    "serve": ("server.cli.serve:serve", "Serve toolpacks until interrupted."),
    "new": ("server.cli.new:new", "Write a toolpack called NAME to start from, and a test that passes."),
    "list": ("server.cli.packs:list_toolpacks", "Show toolpacks, where they come from, and their functions."),
    "call": ("server.cli.call:call", "Run a FUNCTION, and those after each `--`, and print each result as JSON."),
    "sessions": ("server.cli.look:sessions", "List sessions, the newest first."),
    "env": ("server.cli.look:env", "Show the environments of a SESSION; the beginning of its id is enough."),
    "trace": ("server.cli.look:trace", "Show the calls and resets of a SESSION; the beginning of its id is enough."),
    "diff": (
        "server.cli.look:diff",
        "Show what has changed in a SESSION since its start, or in what OTHER differs from it.",
    ),
    "schemas": (
        "server.cli.schemas:schemas",
        "Write the JSON Schemas, the OpenRPC document and the client's methods, or check them.",
    ),
    "token": ("server.cli.token:token", "Create a bearer token for NAME, and its line for TOOLPACK_TOKENS_FILE."),
} | included.COMMANDS


class Commands(click.Group):
    """The core's commands and those of the features."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        del ctx
        return sorted(COMMANDS)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands without importing them."""
        del ctx
        width = formatter.width - max(map(len, COMMANDS)) - 6
        with formatter.section("Commands"):
            formatter.write_dl(
                [
                    (name, click.Command(name, help=COMMANDS[name][1]).get_short_help_str(width))
                    for name in sorted(COMMANDS)
                ]
            )

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        del ctx
        gc.disable()  # there is nothing to collect while modules are imported, and looking for it takes a fifth longer
        try:
            command: click.Command | None = resolve_name(COMMANDS[cmd_name][0]) if cmd_name in COMMANDS else None
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
        click.echo(f"toolpack-server: {error.format_message()}", err=True)
        sys.exit(error.exit_code)
    except click.Abort:
        sys.exit(130)
    except ToolpackServerError as error:
        click.echo(f"toolpack-server: {error}", err=True)
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
