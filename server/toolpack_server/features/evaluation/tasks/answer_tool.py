"""The tool `submit_answer`, for agents whose protocol offers only tools, such as MCP.

The tool does the same as the JSON-RPC method `submit_answer`.
"""

from typing import Any

from pydantic import Field
from typing_extensions import override

from toolpack_server.features.evaluation.tasks.service import Tasks
from toolpack_server.protocol.parameters import Parameters
from toolpack_server.rpc.method import App
from toolpack_server.sessions.addresses import Address, AddressTool


class AnswerParameters(Parameters):
    """Arguments of the tool."""

    answer: str = Field("", description="The answer.")


class AnswerTool(AddressTool):
    """Submits an agent's answer. Only participants with the right to answer are offered this tool."""

    name = "submit_answer"
    description = "Submit the answer. It ends your part: you can't call tools after it."
    parameters = AnswerParameters

    def __init__(self, app: App) -> None:
        self._tasks = app.feature(Tasks)

    @override
    def is_offered(self, address: Address) -> bool:
        return address.answers

    @override
    async def use(self, session_id: str, owner: str, by: str, arguments: Any, call_id: str | None) -> str:
        await self._tasks.submit_answer(session_id, owner, by, arguments.answer, call_id)
        return "The answer has been submitted."
