"""The commands `toolpack-server judge` and `toolpack-server green-agent`, which judge agents that speak A2A."""

import asyncio
import logging
import sys
import uuid

import click

from toolpack_server import ToolpackServerError
from toolpack_server.features.api.commands import echo

URL = "http://127.0.0.1:8000"


def _server_options(command: "click.decorators.FC") -> "click.decorators.FC":
    token = click.option("--token", envvar="TOOLPACK_TOKEN", help="Token for the server; better in TOOLPACK_TOKEN.")
    url = click.option("--url", default=URL, show_default=True, help="The server that has the tasks.")
    public = click.option("--public-url", help="The server's URL for agents.  [default: --url]")
    return url(token(public(command)))


@click.command()
@click.option("--a2a", "agent_url", required=True, metavar="URL", help="The agent: the URL that has its card.")
@click.option("--task", "names", multiple=True, metavar="TOOLPACK/NAME", help="A task to play; may be repeated.")
@click.option("--toolpack", metavar="NAME", help="Play all tasks of this toolpack.")
@click.option("--split", metavar="NAME", help="Play only the toolpack's tasks in this split.")
@click.option("--attempts", type=click.IntRange(1), default=1, show_default=True, help="Rollouts of each task.")
@click.option(
    "--timeout",
    type=click.FloatRange(0, min_open=True, max=86_400),
    default=600.0,
    show_default=True,
    help="Seconds for a rollout.",
)
@_server_options
def judge(
    agent_url: str,
    names: tuple[str, ...],
    toolpack: str | None,
    split: str | None,
    attempts: int,
    timeout: float,
    url: str,
    public_url: str | None,
    token: str | None,
) -> None:
    """Have an agent that speaks A2A play tasks, and print a verdict for each rollout.

    The exit status is 1 if a rollout has no valid verdict.
    """
    if not (names or toolpack):
        raise click.UsageError("Name the tasks to play: --task bank/save-300, or --toolpack bank.")
    if split and not toolpack:
        raise click.UsageError("--split chooses among the tasks of a toolpack: also give --toolpack.")
    from toolpack_a2a.agent import AgentError, open_agent  # noqa: PLC0415 - imports the SDK
    from toolpack_a2a.judging import LABEL, Judge, JudgeError  # noqa: PLC0415 - likewise
    from toolpack_server.client import AsyncClient  # noqa: PLC0415 - likewise

    logging.getLogger("a2a").setLevel(logging.CRITICAL + 1)  # it logs what strangers sent, with tracebacks
    run = uuid.uuid4().hex[:8]

    async def play() -> bool:
        async with AsyncClient(url, token=token) as client, open_agent(agent_url) as agent:
            task_judge = Judge(client, public_url or url, run)
            rollouts = []
            for task in await task_judge.tasks(names, toolpack, split):
                for _ in range(attempts):
                    rollouts.append(await task_judge.play(agent, task, timeout))
                    echo(rollouts[-1].line())
        passed = sum(rollout.passed for rollout in rollouts)
        echo(f"{passed} of {len(rollouts)} passed.")
        echo(f"For rates and traces: toolpack-server evaluate --url {url} --label {LABEL}={run}")
        return all(rollout.is_valid for rollout in rollouts)

    try:
        valid = asyncio.run(play())
    except (AgentError, JudgeError, ToolpackServerError, ValueError) as error:
        raise click.ClickException(str(error)) from None
    if not valid:
        sys.exit(1)


@click.command("green-agent")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), default=9009, show_default=True, help="Port to listen on.")
@click.option("--card-url", metavar="URL", help="URL of this agent for its card.  [default: from host and port]")
@_server_options
def green_agent(
    host: str, port: int, card_url: str | None, url: str, public_url: str | None, token: str | None
) -> None:
    """Serve a green agent, which AgentBeats asks by A2A to judge other agents with the server's tasks."""
    from toolpack_a2a.green_agent import serve  # noqa: PLC0415 - imports the SDK

    logging.getLogger("a2a").setLevel(logging.CRITICAL + 1)  # it logs what strangers sent, with tracebacks
    serve(host, port, card_url, url, public_url or url, token)
