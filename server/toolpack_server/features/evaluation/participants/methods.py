"""Methods for participants, `say` and `listen`, and for clients that run a simulated user.

Participants call `say` and `listen` at their own address, as JSON-RPC methods or as MCP tools with the same parameters.
Clients call `add_turn` and `fail_participant` at `/rpc`.
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

ParticipantName = Annotated[str, Field(min_length=1, max_length=64, description="The participant's name.")]


class SayParameters(Parameters):
    """Parameters of `say`."""

    text: str = Field(description="The message.")
    to: str | None = Field(None, description="The recipient's name; default: all other participants.")


class ListenParameters(Parameters):
    """Parameters of `listen`."""

    after: int = Field(
        -1, ge=-1, le=MAX_COUNT, description="The index of the last message that you have; default: all messages."
    )
    wait_seconds: Annotated[float, Field(ge=0, le=MAX_WAIT_SECONDS, allow_inf_nan=False)] = Field(
        0, description="How long to wait for a message of another participant."
    )


class Say(
    SayParameters, Method, result=Literal[True], agents_only="is for participants, and sends a message to others"
):
    """Send a message to another participant, or to all others."""

    call_id: CallId

    async def handle(self, caller: Caller, app: App) -> bool:
        conversation, session_id = app.feature(Conversation), caller.session_id or ""
        return await conversation.say(session_id, caller.owner, caller.address, self.text, self.to, self.call_id)


class Listen(
    ListenParameters,
    Method,
    result=HeardMessages,
    agents_only="is for participants, and returns the messages that they sent and received",
):
    """Return the messages that you sent and received, in order; wait for a message of another participant."""

    async def handle(self, caller: Caller, app: App) -> HeardMessages:
        return await caller.run_while_connected(
            app.feature(Conversation).listen(
                caller.session_id or "", caller.owner, caller.address, self.after, self.wait_seconds
            )
        )


class AddTurn(Method, result=Literal[True]):
    """Record a turn of a model that plays a participant, with its token counts, and the reason if it was discarded."""

    session_id: SessionId
    participant: ParticipantName
    metadata: dict[str, Any] = Field(
        default_factory=dict,
        description="Facts about the turn: model_name, prompt_tokens, completion_tokens and so on.",
    )
    problem: str | None = Field(None, description="Why the turn was discarded; default: it was used.")
    call_id: CallId

    async def handle(self, caller: Caller, app: App) -> bool:
        members = {"participant": self.participant, "metadata": self.metadata}
        members |= {} if self.problem is None else {"problem": self.problem}
        operation = TurnOperation(app.context, self.session_id, caller.owner, members, self.call_id)
        return bool(await app.sessions.run(operation))


class FailParticipant(Method, result=Literal[True]):
    """Record that a participant failed. This ends the session for all participants, and its verdicts are invalid."""

    session_id: SessionId
    participant: ParticipantName
    reason: Annotated[str, Field(min_length=1, max_length=64, description="A short name for the cause.")]
    message: str = Field("", description="Details for a reader.")
    call_id: CallId

    async def handle(self, caller: Caller, app: App) -> bool:
        members = {"participant": self.participant, "reason": self.reason, "message": self.message}
        operation = FailureOperation(app.context, self.session_id, caller.owner, members, self.call_id)
        return bool(await app.sessions.run(operation))


METHODS: tuple[type[Method], ...] = (Say, Listen, AddTurn, FailParticipant)


class _Tool(AddressTool):
    """An MCP tool that addresses offer if their session has several participants."""

    def __init__(self, app: App) -> None:
        self._app = app

    @override
    def is_offered(self, address: Address) -> bool:
        return bool(address.others)


class SayTool(_Tool):
    name = "say"
    description = "Send a message to another participant, or to all others."
    parameters = SayParameters

    @override
    async def use(self, session_id: str, owner: str, by: str, arguments: Any, call_id: str | None) -> bool:
        conversation = self._app.feature(Conversation)
        return await conversation.say(session_id, owner, by, arguments.text, arguments.to, call_id)


class ListenTool(_Tool):
    name = "listen"
    description = (
        "Return the messages that you sent and received, in order. Give `after`, the index of the last message that "
        "you have, and `wait_seconds`, to wait for a message of another participant. `done` is true when no further "
        "message can come."
    )
    parameters = ListenParameters

    @override
    async def use(self, session_id: str, owner: str, by: str, arguments: Any, call_id: str | None) -> HeardMessages:
        conversation = self._app.feature(Conversation)
        return await conversation.listen(session_id, owner, by, arguments.after, arguments.wait_seconds)
