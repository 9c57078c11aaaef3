"""Declaration of the feature `participants`."""

from toolpack_server.features.evaluation.participants.addresses import ParticipantAddresses
from toolpack_server.features.evaluation.participants.conversation import Conversation
from toolpack_server.features.evaluation.participants.creation_hook import ParticipantsCreationHook, ParticipantsRequest
from toolpack_server.features.evaluation.participants.message_waiters import MessageWaiters
from toolpack_server.features.evaluation.participants.methods import METHODS, ListenTool, SayTool
from toolpack_server.features.evaluation.participants.results import SessionParticipants
from toolpack_server.features.evaluation.participants.simulated_user_records import FailureKind, TurnKind
from toolpack_server.protocol.results import Session
from toolpack_server.rpc.methods import CreateSession
from toolpack_server.wiring.feature import Feature


class ParticipantsFeature(Feature):
    name = "participants"
    needs = ("episodes",)
    after = ("tasks", "replay")
    services = (Conversation,)
    methods = METHODS
    record_kinds = (TurnKind, FailureKind)
    creation_hooks = (ParticipantsCreationHook,)
    parameters = {CreateSession: ParticipantsRequest}
    results = {Session: SessionParticipants}
    named_addresses = ParticipantAddresses
    address_tools = (SayTool, ListenTool)
    watchers = (MessageWaiters,)
