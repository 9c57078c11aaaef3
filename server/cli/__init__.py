"""The command `toolpack-server`, one module for each group of subcommands.

The rule: every problem is reported in one sentence on standard error, with exit status 1; a traceback is a bug.
"""

import sys

import click

from server.cli.call import call
from server.cli.check import check
from server.cli.evaluate import evaluate
from server.cli.look import diff, env, sessions, trace
from server.cli.mcp import mcp
from server.cli.new import new
from server.cli.packs import list_toolpacks
from server.cli.replay import bundle, replay
from server.cli.schemas import schemas
from server.cli.serve import serve
from server.cli.token import token
from server.errors import ToolpackServerError


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="toolpack-server")
def cli() -> None:
    """Serve functions, and the worlds they change, to agents."""


COMMANDS = (
    *(serve, mcp),
    *(new, check, list_toolpacks, call),
    *(sessions, env, trace, diff, evaluate),
    *(replay, bundle),
    *(schemas, token),
)

for command in COMMANDS:
    cli.add_command(command)


def main() -> None:
    """Run the command; report errors as the module's rule says."""
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
