"""The toolpack of a phone, a model of its user, and its agent."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from chat_endpoint import called, said

from toolpack_server.client import AsyncClient
from toolpack_server.packs.loading import load_catalog

PACKS = Path(__file__).parent / "packs"
CATALOG = load_catalog((PACKS,), ("phone",))
phone: Any = sys.modules["toolpacks.phone"]
SCRIPT = [phone.PROBLEM, {"function": "toggle_roaming"}, {"function": "look", "kwargs": {}}, phone.WORKS, phone.LAST]
GREETING, ASKS, THEN = phone.GREETING, phone.ASKS, phone.THEN
PROBLEM, WORKS, LAST = phone.PROBLEM, phone.WORKS, phone.LAST
PROMPT, CALLS = phone.PROMPT, phone.CALLS


def the_model(messages: list[dict[str, Any]]) -> dict[str, Any]:
    """Return a user's answer, which depends only on the last message."""
    last = messages[-1]
    if last["role"] == "tool":
        return said(WORKS) if "data" in last["content"] else called("look", json.dumps({"times": 1}))
    texts = {GREETING: said(PROBLEM), ASKS: called("toggle_roaming"), THEN: said(LAST)}
    return texts[last["content"]]


async def be_the_agent(client: AsyncClient, session: Any) -> None:
    """Play the agent's part to the end, from any point of the conversation."""
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
