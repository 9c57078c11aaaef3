"""The tool by which an agent whose protocol has only functions submits its answer.

It does what the method does, at an address that may answer.
"""

from collections.abc import Awaitable, Callable
from typing import Any

from pydantic import Field

from toolpack_server.protocol.parameters import Parameters
from toolpack_server.sessions.addresses import Address


class AnswerParameters(Parameters):
    """What an agent hands in."""

    answer: str = Field("", description="The answer.")


class AnswerTool:
    name = "submit_answer"
    description = "Submit the answer, which ends your part: after it, no tool can be called any more."
    parameters: type[Parameters] = AnswerParameters

    def __init__(self, submit: Callable[..., Awaitable[bool]]) -> None:
        self._submit = submit

    def is_offered(self, address: Address) -> bool:
        return address.answers

    async def use(self, session_id: str, owner: str, by: str, arguments: Any, call_id: str | None) -> str:
        await self._submit(session_id, owner, by, arguments.answer, call_id)
        return "The answer has been submitted."
