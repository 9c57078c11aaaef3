"""`toolpack-server session export`: writes the trajectory of a session, in a format that others read.

It says what an agent has seen and done, and judges nothing; `evaluate` adds the verdict.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import click

from toolpack_server.base.terminal import echo
from toolpack_server.cli.local import look_at, look_options
from toolpack_server.cli.options import packs_options
from toolpack_server.cli.requests import Send
from toolpack_server.cli.session_commands import whole_id, whole_trace
from toolpack_server.features.evaluation.tasks.atif import atif
from toolpack_server.features.evaluation.tasks.trajectories import (
    Messages,
    messages,
    offered_tools,
    participants_messages,
)
from toolpack_server.protocol.senders import AGENT
from toolpack_server.wiring.installed import load_features
from toolpack_server.wiring.service import all_record_kinds

FORMATS = ("openai", "atif")


class ParticipantView(NamedTuple):
    """What a participant of a session has seen."""

    session: Mapping[str, Any]  # as `get_session` describes it
    messages: Messages
    tools: Sequence[Mapping[str, Any]]  # in OpenAI's format


async def told_to(send: Send, session_id: str, whose: str, task: str | None = None) -> ParticipantView | None:
    """Get what a participant has seen of a session with its task, or another one; None if there is no such participant.

    Raises:
        click.ClickException: The server has refused that.
    """
    session = await send("get_session", {"session_id": session_id})
    kinds, paths, task = all_record_kinds(load_features()), session.get("participants"), task or session.get("task")
    if whose not in (paths or {AGENT}):
        return None
    path = await whole_trace(send, session_id, path=True)
    if paths is not None:
        address = paths[whose]["agent_path"]
        told = await send("get_task", {}, address)
        tools = await send("list_functions", {"format": "openai"}, address)
        return ParticipantView(session, participants_messages(told, path, kinds), tools["result"])
    tools = await send("list_functions", {"session_id": session_id, "format": "openai"})
    if task is None:
        return ParticipantView(session, messages([], path, kinds), tools["result"])
    described = await send("get_task", {"task": task})
    offered = offered_tools(tools["result"], described.get("functions"))
    return ParticipantView(session, messages(described["prompt"], path, kinds), offered)


@click.command()
@look_options
@packs_options
@click.option(
    "--format", "form", type=click.Choice(FORMATS), default="atif", show_default=True, help="How to write it."
)
@click.option("--participant", default=AGENT, metavar="NAME", show_default=True, help="Whose trajectory to write.")
@click.argument("session")
def export(session: str, form: str, participant: str, **where: Any) -> None:
    """Write the trajectory of a SESSION to standard output, as JSON; the beginning of its id is enough."""

    async def write(send: Send) -> None:
        session_id = await whole_id(send, session)
        told = await told_to(send, session_id, participant)
        if told is None:
            raise click.ClickException(f"The session has no participant {participant!r}.")
        task = told.session.get("task")
        if form == "atif":
            found = atif(told.session, told.messages, told.tools, {"task": task})
        else:
            found = {
                "task": task,
                "session_id": session_id,
                "labels": told.session["labels"],
                "messages": told.messages,
                "tools": told.tools,
            }
        echo(json.dumps(found, ensure_ascii=False))

    look_at(write, **where)
