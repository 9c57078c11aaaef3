"""The command `toolpack-server session export`: write the trajectory of a session in a common format.

A trajectory contains the messages and calls that an agent saw, but no verdict. `toolpack-server evaluate
--trajectories` writes trajectories with verdicts.
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
    """A session as one of its participants saw it: the content of a trajectory. `participant_view` requests it."""

    session: Mapping[str, Any]  # the result of `get_session`
    messages: Messages
    tools: Sequence[Mapping[str, Any]]  # the functions, in OpenAI's format


async def participant_view(
    send: Send, session_id: str, participant: str, task: str | None = None
) -> ParticipantView | None:
    """Return a session as a participant saw it, or None if the session lacks the participant.

    Args:
        task: The task whose prompt and functions are used. Default: the session's own task.

    Raises:
        click.ClickException: The server returned an error.
    """
    session = await send("get_session", {"session_id": session_id})
    kinds, paths, task = all_record_kinds(load_features()), session.get("participants"), task or session.get("task")
    if participant not in (paths or {AGENT}):
        return None
    path = await whole_trace(send, session_id, path=True)
    if paths is not None:
        address = paths[participant]["agent_path"]
        agent_task = await send("get_task", {}, address)
        tools = await send("list_functions", {"format": "openai"}, address)
        return ParticipantView(session, participants_messages(agent_task, path, kinds), tools["result"])
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
    "--format", "form", type=click.Choice(FORMATS), default="atif", show_default=True, help="Format of the trajectory."
)
@click.option(
    "--participant", default=AGENT, metavar="NAME", show_default=True, help="Write the trajectory of this participant."
)
@click.argument("session")
def export(session: str, form: str, participant: str, **where: Any) -> None:
    """Write the trajectory of a SESSION to standard output, as JSON. A unique prefix of its id is enough."""

    async def write(send: Send) -> None:
        """Write the trajectory to standard output, in the chosen format."""
        session_id = await whole_id(send, session)
        view = await participant_view(send, session_id, participant)
        if view is None:
            raise click.ClickException(f"The session has no participant {participant!r}.")
        task = view.session.get("task")
        if form == "atif":
            exported = atif(view.session, view.messages, view.tools, {"task": task})
        else:
            exported = {
                "task": task,
                "session_id": session_id,
                "labels": view.session["labels"],
                "messages": view.messages,
                "tools": view.tools,
            }
        echo(json.dumps(exported, ensure_ascii=False))

    look_at(write, **where)
