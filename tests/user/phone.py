"""A phone without data abroad: a toolpack with a task for an agent and a user, a model of the user, and an agent."""

import asyncio
import json
from typing import Annotated, Any

from chat_endpoint import called, said

from server import Depends, Rollout, TaskEnvironment, Toolpack
from server.packs.catalog import Catalog
from toolpack_server.client import AsyncClient

GREETING, ASKS, THEN = "Hello, how can I help?", "Please toggle roaming, and look.", "Is there anything else?"
PROBLEM, WORKS, LAST = "I have no data abroad.", "It works now.", "No, thank you. ###STOP###"
PROMPT = "You have no data abroad. If it works, say ###STOP###."
SAID = [GREETING, PROBLEM, ASKS, WORKS, THEN]
SCRIPT = [PROBLEM, {"function": "toggle_roaming"}, {"function": "look", "kwargs": {}}, WORKS, LAST]
CALLS = ["enable_line", "toggle_roaming", "look"]


class Phone(TaskEnvironment):
    line: bool = False
    roaming: bool = False


toolpack: Any = Toolpack("phone", Phone)
Whole = Annotated[Phone, Depends(lambda phone: phone)]


@toolpack.function
def enable_line(phone: Whole) -> bool:
    """Let the line roam."""
    phone.line = True
    return True


@toolpack.function
def toggle_roaming(phone: Whole) -> bool:
    """Switch roaming on or off."""
    phone.roaming = not phone.roaming
    return phone.roaming


@toolpack.function(read_only=True)
def look(phone: Whole, times: int = 1) -> str:
    """See whether there is data.

    :param times: How often.
    """
    return "data " * times if phone.line and phone.roaming else "no data"


@toolpack.task(
    "roam",
    "Help.",
    participants={
        "agent": {"functions": ["enable_line"], "answers": False},
        "user": {
            "functions": ["toggle_roaming", "look"],
            "prompt": PROMPT,
            "answers": True,
        },
    },
)
def roam(rollout: Rollout[Phone]) -> None:
    rollout.check("data", rollout.environment.line and rollout.environment.roaming)
    rollout.check("each call once", [call.function for call in rollout.calls] == CALLS)
    rollout.check("each word once", [message.content for message in rollout.messages] == SAID)
    rollout.check("the last word", rollout.answer == LAST)


CATALOG = Catalog({"phone": toolpack})


def the_model(messages: list[dict[str, Any]]) -> dict[str, Any]:
    """Answer as a user does, by the last message alone."""
    last = messages[-1]
    if last["role"] == "tool":
        return said(WORKS) if "data" in last["content"] else called("look", json.dumps({"times": 1}))
    texts = {GREETING: said(PROBLEM), ASKS: called("toggle_roaming"), THEN: said(LAST)}
    return texts[last["content"]]


async def be_the_agent(client: AsyncClient, session: Any) -> None:
    """Play the agent's part to the end, from wherever the conversation is."""
    agent = client.agent(session)
    last, done, said_so_far = -1, False, 0
    while not done:
        mine = [GREETING, ASKS, THEN][said_so_far:][:1]
        if said_so_far == 1:
            await agent.run_function("enable_line", call_id="line")
        for text in mine:
            await agent.say(text, call_id=text)
            said_so_far += 1
        answered = False
        while not (answered or done):
            heard = await agent.listen(after=last, wait_seconds=30)
            last = max([last, *(message["index"] for message in heard["messages"])])
            answered, done = any(message["by"] == "user" for message in heard["messages"]), heard["done"]


async def be_all_agents(url: str, sessions: list[Any]) -> None:
    async with AsyncClient(url) as client:
        await asyncio.gather(*(be_the_agent(client, session) for session in sessions))
