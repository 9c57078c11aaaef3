"""The command `toolpack-server token`, which creates a bearer token and its hash.

The token is printed once, on standard error, and never stored. The hash is printed on standard output.
"""

import click

from toolpack_server.base.terminal import echo
from toolpack_server.web.auth import new_token


@click.command()
@click.argument("name")
def token(name: str) -> None:
    """Create a bearer token for NAME, and its line for TOOLPACK_TOKENS_FILE."""
    secret, line = new_token(name)
    echo(f"Token, shown only now: {secret}", err=True)
    echo(line)
