"""`toolpack-server user`: plays a participant of a run's sessions, such as the simulated user.

The last line of standard output says how many were played and how they have ended. Exit status 1: a part has
failed, or the program couldn't go on; started again, it goes on where it was.
"""

import asyncio
import sys
from pathlib import Path

import click

from toolpack_server.base.errors import ClientError
from toolpack_server.base.terminal import echo
from toolpack_server.cli.look import label
from toolpack_server.cli.options import server_options

DEFAULT_URL = "http://127.0.0.1:8000"
STOPS = ("###STOP###", "###TRANSFER###", "###OUT-OF-SCOPE###")
_INTERRUPTED = 130


@click.command()
@server_options(f"The server.  [default: {DEFAULT_URL}]")
@click.option("--label", "labels", multiple=True, required=True, metavar="NAME=VALUE", help="The run's sessions.")
@click.option("--participant", default="user", show_default=True, metavar="NAME", help="Whose part to play.")
@click.option("--model", metavar="NAME", help="The model that plays it.")
@click.option("--base-url", help="An OpenAI-compatible endpoint; OPENAI_API_KEY is its key.  [default: OpenAI's]")
@click.option("--script", type=click.Path(path_type=Path), metavar="FILE", help="Play a list of steps, with no model.")
@click.option("--first", is_flag=True, help="Speak where nobody has spoken yet.")
@click.option("--stop", "stops", multiple=True, metavar="TEXT", help=f"What ends it.  [default: {', '.join(STOPS)}]")
@click.option("--sessions", type=click.IntRange(1), metavar="N", help="How many to wait for.  [default: those there]")
@click.option("--max-turns", type=click.IntRange(1), default=100, show_default=True, help="Most turns of a session.")
@click.option("--max-tokens", type=click.IntRange(1), help="Most tokens of a session, read and written.")
@click.option("--timeout", type=click.FloatRange(0.1), default=60, show_default=True, help="Seconds for an answer.")
@click.option("--retries", type=click.IntRange(0), default=8, show_default=True, help="How often to ask again for one.")
def user(
    url: str | None,
    token: str | None,
    labels: tuple[str, ...],
    participant: str,
    model: str | None,
    base_url: str | None,
    script: Path | None,
    stops: tuple[str, ...],
    sessions: int | None,
    max_turns: int,
    max_tokens: int | None,
    timeout: float,
    retries: int,
    *,
    first: bool,
) -> None:
    """Play a participant of a run's sessions with a model, such as the simulated user."""
    wanted = dict(map(label, labels))
    try:
        from toolpack_server.user.run import Run, installed_kinds  # noqa: PLC0415 - an extra, and it takes long
    except ImportError as error:
        raise click.ClickException(str(error)) from None
    from toolpack_server.user.model import ChatModel, Script  # noqa: PLC0415 - as above
    from toolpack_server.user.position import Limits, View  # noqa: PLC0415 - as above

    def ends(text: str) -> bool:
        return any(stop in text for stop in stops or STOPS)

    if (model is None) == (script is None):
        raise click.UsageError("Give either --model or --script.")
    player = Script(script) if script else ChatModel(model or "", base_url, timeout, retries)
    view = View({}, installed_kinds(), Limits(max_turns, max_tokens), ends, first)
    run = Run(wanted, participant, player, view, sessions, tell=lambda text: echo(text, err=True))
    try:
        asyncio.run(run.play(url or DEFAULT_URL, token))
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)
    except (ClientError, ValueError) as error:
        raise click.ClickException(str(error)) from None
    finally:
        echo(run.summary())
    sys.exit(run.is_failed)
