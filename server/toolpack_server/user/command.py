"""The command `toolpack-server user`, which plays a participant of a run's sessions, such as the simulated user.

A run is all sessions with the labels of `--label`. The last line of standard output is a summary. Exit status 1 means
that a participant failed, or that the program had to stop. When you start it again, it continues where it stopped.
"""

import asyncio
import sys
from pathlib import Path

import click

from toolpack_server.base.errors import ClientError
from toolpack_server.base.terminal import echo
from toolpack_server.cli.options import server_options
from toolpack_server.cli.session_commands import label

DEFAULT_URL = "http://127.0.0.1:8000"
STOPS = ("###STOP###", "###TRANSFER###", "###OUT-OF-SCOPE###")  # texts that end the part, from tau2
_INTERRUPTED = 130


@click.command()
@server_options(f"URL of the server.  [default: {DEFAULT_URL}]")
@click.option(
    "--label", "labels", multiple=True, required=True, metavar="NAME=VALUE", help="Label of the run's sessions."
)
@click.option("--participant", default="user", show_default=True, metavar="NAME", help="Participant to play.")
@click.option("--model", metavar="NAME", help="Model that plays the participant.")
@click.option("--base-url", help="OpenAI-compatible endpoint; its key is OPENAI_API_KEY.  [default: OpenAI's]")
@click.option(
    "--script", type=click.Path(path_type=Path), metavar="FILE", help="Play the steps in this file, without a model."
)
@click.option("--first", is_flag=True, help="Speak first in an empty conversation.")
@click.option(
    "--stop", "stops", multiple=True, metavar="TEXT", help=f"Text that ends the part.  [default: {', '.join(STOPS)}]"
)
@click.option("--sessions", type=click.IntRange(1), metavar="N", help="Number to play.  [default: all existing ones]")
@click.option("--max-turns", type=click.IntRange(1), default=100, show_default=True, help="Maximum turns per session.")
@click.option("--max-tokens", type=click.IntRange(1), help="Maximum tokens per session, read and written.")
@click.option(
    "--timeout", type=click.FloatRange(0.1), default=60, show_default=True, help="Time limit of an answer, in seconds."
)
@click.option(
    "--retries", type=click.IntRange(0), default=8, show_default=True, help="Maximum retries of a model request."
)
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
    run_labels = dict(map(label, labels))
    try:
        from toolpack_server.user.run import Run, installed_kinds  # noqa: PLC0415 - in an extra, and slow to import
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
    run = Run(run_labels, participant, player, view, sessions, report=lambda text: echo(text, err=True))
    try:
        asyncio.run(run.play(url or DEFAULT_URL, token))
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)
    except (ClientError, ValueError) as error:
        raise click.ClickException(str(error)) from None
    finally:
        echo(run.summary())
    sys.exit(run.is_failed)
