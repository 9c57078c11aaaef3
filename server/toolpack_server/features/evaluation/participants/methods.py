"""The methods by which participants talk, at their addresses, and the same as tools of MCP.

Both ways do the same, with the same parameters. A client at `/rpc` is no participant, and has none of them;
what it has to record of one that it plays, it alone records.
"""

from typing import Annotated, Any, Literal

from pydantic import Field
from typing_extensions import override

from toolpack_server.features.evaluation.participants.conversation import Conversation
from toolpack_server.features.evaluation.participants.results import HeardMessages
from toolpack_server.features.evaluation.participants.simulated_user_records import FailureOperation, TurnOperation
from toolpack_server.protocol.parameters import MAX_COUNT, CallId, Parameters, SessionId
from toolpack_server.rpc.caller import Caller
from toolpack_server.rpc.method import App, Method
from toolpack_server.sessions.addresses import Address, AddressTool

MAX_WAIT_SECONDS = 30.0

ParticipantName = Annotated[str, Field(min_length=1, max_length=64, description="Whose part it is.")]


class SayParameters(Parameters):
    """What a participant says."""

    text: str = Field(description="What is said.")
    to: str | None = Field(None, description="The participant to whom it is said; default: all others.")


class ListenParameters(Parameters):
    """What a participant wants to hear."""

    after: int = Field(
        -1, ge=-1, le=MAX_COUNT, description="The index of the last message that you have; default: you have none."
    )
    wait_seconds: Annotated[float, Field(ge=0, le=MAX_WAIT_SECONDS, allow_inf_nan=False)] = Field(
        0, description="For how long to wait until another participant says something."
    )


class Say(SayParameters, Method, result=Literal[True], agents_only="is for participants, and says something to others"):
    """Say something to another participant, or to all others."""

    call_id: CallId

    async def handle(self, caller: Caller, app: App) -> bool:
        talking, session_id = app.feature(Conversation), caller.session_id or ""
        return await talking.say(session_id, caller.owner, caller.address, self.text, self.to, self.call_id)


class Listen(
    ListenParameters,
    Method,
    result=HeardMessages,
    agents_only="is for participants, and gets what they have said and heard",
):
    """Get what you have said and were told, in order; wait until another participant says something."""

    async def handle(self, caller: Caller, app: App) -> HeardMessages:
        return await caller.run_while_connected(
            app.feature(Conversation).listen(
                caller.session_id or "", caller.owner, caller.address, self.after, self.wait_seconds
            )
        )


class AddTurn(Method, result=Literal[True]):
    """Record that a model has answered for a participant: what it has used, or why nothing was made of it."""

    session_id: SessionId
    participant: ParticipantName
    metadata: dict[str, Any] = Field(
        default_factory=dict, description="What is known of it, such as model_name, prompt_tokens, completion_tokens."
    )
    problem: str | None = Field(None, description="Why nothing was made of the answer; default: something was.")
    call_id: CallId

    async def handle(self, caller: Caller, app: App) -> bool:
        members = {"participant": self.participant, "metadata": self.metadata}
        members |= {} if self.problem is None else {"problem": self.problem}
        asked = app.context, self.session_id, caller.owner, members, self.call_id
        return bool(await app.sessions.run(TurnOperation(*asked)))


class FailParticipant(Method, result=Literal[True]):
    """Record that a participant has failed: the session is over for all, and its verdicts aren't valid."""

    session_id: SessionId
    participant: ParticipantName
    reason: Annotated[str, Field(min_length=1, max_length=64, description="The name of the reason.")]
    message: str = Field("", description="What has happened.")
    call_id: CallId

    async def handle(self, caller: Caller, app: App) -> bool:
        members = {"participant": self.participant, "reason": self.reason, "message": self.message}
        asked = app.context, self.session_id, caller.owner, members, self.call_id
        return bool(await app.sessions.run(FailureOperation(*asked)))


METHODS: tuple[type[Method], ...] = (Say, Listen, AddTurn, FailParticipant)


class _Tool(AddressTool):
    """A tool of those who have others to talk with."""

    def __init__(self, app: App) -> None:
        self._app = app

    @override
    def is_offered(self, address: Address) -> bool:
        return bool(address.others)


class SayTool(_Tool):
    name = "say"
    description = "Say something to another participant, or to all others."
    parameters = SayParameters

    @override
    async def use(self, session_id: str, owner: str, by: str, arguments: Any, call_id: str | None) -> bool:
        talking, said = self._app.feature(Conversation), arguments
        return await talking.say(session_id, owner, by, said.text, said.to, call_id)


class ListenTool(_Tool):
    name = "listen"
    description = (
        "Get what you have said and were told, in order. Give `after`, the index of the last message that you have, "
        "and `wait_seconds`, to wait until another participant says something. `done` says that nothing more comes."
    )
    parameters = ListenParameters

    @override
    async def use(self, session_id: str, owner: str, by: str, arguments: Any, call_id: str | None) -> HeardMessages:
        asked = arguments
        return await self._app.feature(Conversation).listen(session_id, owner, by, asked.after, asked.wait_seconds)
