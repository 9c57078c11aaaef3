"""`toolpack-server token`: makes a bearer token and its hash."""

import click

from server.web.auth import new_token


@click.command()
@click.argument("name")
def token(name: str) -> None:
    """Make a bearer token for NAME, and the line for the file of TOOLPACK_TOKENS_FILE."""
    secret, line = new_token(name)
    click.echo(f"Token, shown only now: {secret}", err=True)
    click.echo(line)
