"""The command `toolpack-server`, with one module per group of subcommands.

Every problem is reported in one sentence on standard error, with exit status 1; a traceback is a bug. A subcommand is
imported only when it is used, so that each starts fast.
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

from toolpack_server.base.companions import COMMANDS as COMPANION_COMMANDS
from toolpack_server.base.companions import advice, companions
from toolpack_server.base.errors import ToolpackServerError
from toolpack_server.base.terminal import echo

FIRST_FREE_DESCRIPTOR = 3  # first file descriptor after the standard streams
GROUP = "toolpack_server.commands"
"""Entry point group where a distribution registers click commands as subcommands `NAME` or `session NAME`."""

COMMANDS = {
    "serve": "toolpack_server.cli.serve:serve",
    "new": "toolpack_server.cli.new:new",
    "list": "toolpack_server.cli.packs:list_toolpacks",
    "call": "toolpack_server.cli.call:call",
    "session list": "toolpack_server.cli.session_commands:list_sessions",
    "session env": "toolpack_server.cli.session_commands:env",
    "session trace": "toolpack_server.cli.session_commands:trace",
    "session diff": "toolpack_server.cli.session_commands:diff",
    "token": "toolpack_server.cli.token:token",
    "features": "toolpack_server.cli.features:features",
}
GROUPS = {"session": "Look at sessions, and write them into files."}
"""Commands with subcommands, and their help: `session trace` is the subcommand `trace` of `session`."""


def all_commands() -> dict[str, str]:
    """Return the import paths of all commands of the core and of installed distributions, by name."""
    return {point.name: point.value for point in entry_points(group=GROUP)} | COMMANDS


def first_sentence(path: str) -> str:
    """Return the first sentence of a command's docstring, read from the source of its module.

    Importing all modules for a list of commands would be slow. Only a command that isn't a function is imported.
    """
    module, _, name = path.partition(":")
    spec = find_spec(module)
    source = Path(spec.origin).read_text(encoding="utf-8") if spec and spec.origin else ""
    functions = {each.name: each for each in ast.parse(source).body if isinstance(each, ast.FunctionDef)}
    text = ast.get_docstring(functions[name]) if name in functions else resolve_name(path).help
    return " ".join((text or "").partition("\n\n")[0].split())


class Commands(click.Group):
    """Group of the commands whose names begin with `prefix`, from the core and from other distributions."""

    def __init__(self, *args: Any, prefix: str = "", **more: Any) -> None:
        super().__init__(*args, **more)
        self._prefix = prefix

    def _paths(self) -> dict[str, str]:
        """Return the import paths of this group's commands by name; a subgroup's path is empty."""
        start = len(self._prefix)
        names = {name[start:]: path for name, path in all_commands().items() if name.startswith(self._prefix)}
        return {name.partition(" ")[0]: "" if " " in name else path for name, path in names.items()}

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return sorted(self._paths())

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Write the list of commands without importing them."""
        paths = sorted(self._paths().items())
        width = formatter.width - max(len(name) for name, _ in paths) - 6
        with formatter.section("Commands"):
            texts = {name: first_sentence(path) if path else GROUPS[name] for name, path in paths}
            short = {name: click.Command(name, help=text) for name, text in texts.items()}
            formatter.write_dl([(name, command.get_short_help_str(width)) for name, command in short.items()])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Import and return a command, or return None if it doesn't exist.

        If a package that isn't installed contains the command, raise a `ClickException` that names the package.
        """
        gc.disable()  # imports create no garbage, and garbage collection would make them a fifth slower
        try:
            if not self._prefix and cmd_name in GROUPS:
                return Commands(cmd_name, prefix=f"{cmd_name} ", help=GROUPS[cmd_name])
            name = f"{self._prefix}{cmd_name}"
            path = COMMANDS.get(name) or all_commands().get(name)
            command: click.Command | None = resolve_name(path) if path else None
        finally:
            gc.enable()
        if command is None and (package := companions(COMPANION_COMMANDS).get(name)):
            raise click.ClickException(advice(f"{name} comes", package))
        return command


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="toolpack-server")
def cli() -> None:
    """Serve functions, and the worlds they change, to agents."""


def main() -> None:
    """Run the command, and report an error in one sentence."""
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
    except OSError as error:  # about a file that the user named, or about standard output
        file = f"{error.filename}: " if error.filename else ""
        echo(f"toolpack-server: {file}{error.strerror or error}.", err=True)
        sys.exit(1)
    finally:
        try:
            sys.stderr.flush()
        except OSError:  # closed, or the disk is full; a lost message must not make the command fail at exit
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)


def _open_closed_streams() -> None:
    """Open standard streams that are closed on the null device.

    Otherwise a connection or a database could get the descriptor of a standard stream, and the output would be written
    to it.
    """
    # `open` returns the lowest free descriptor.
    while (descriptor := os.open(os.devnull, os.O_RDWR)) < FIRST_FREE_DESCRIPTOR:
        pass
    os.close(descriptor)
    for number, (name, mode) in enumerate({"stdin": "r", "stdout": "w", "stderr": "w"}.items()):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, mode, closefd=False))
