"""The toolpack `phone`, a model that plays the phone's user, and an agent."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from chat_endpoint import text_message, tool_call_message

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
    """Return the user's answer. It depends only on the last message."""
    last = messages[-1]
    if last["role"] == "tool":
        return text_message(WORKS) if "data" in last["content"] else tool_call_message("look", json.dumps({"times": 1}))
    texts = {GREETING: text_message(PROBLEM), ASKS: tool_call_message("toggle_roaming"), THEN: text_message(LAST)}
    return texts[last["content"]]


async def be_the_agent(client: AsyncClient, session: Any) -> None:
    """Play the agent's part to the end, from any point of the conversation."""
    agent = client.agent(session)
    last, is_done, said_so_far = -1, False, 0
    while not is_done:
        mine = [GREETING, ASKS, THEN][said_so_far:][:1]
        if said_so_far == 1:
            await agent.run_function("enable_line", call_id="line")
        for text in mine:
            await agent.say(text, call_id=text)
            said_so_far += 1
        is_answered = False
        while not (is_answered or is_done):
            reply = await agent.listen(after=last, wait_seconds=30)
            last = max([last, *(message["index"] for message in reply["messages"])])
            is_answered, is_done = any(message["by"] == "user" for message in reply["messages"]), reply["done"]


async def be_all_agents(url: str, sessions: list[Any]) -> None:
    async with AsyncClient(url) as client:
        await asyncio.gather(*(be_the_agent(client, session) for session in sessions))
