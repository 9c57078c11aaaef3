"""What participants add to the server."""

from toolpack_server.features.evaluation.participants.addresses import ParticipantAddresses
from toolpack_server.features.evaluation.participants.creation_hook import ParticipantsCreationHook, ParticipantsRequest
from toolpack_server.features.evaluation.participants.methods import METHODS, ListenTool, SayTool
from toolpack_server.features.evaluation.participants.played import FailureKind, TurnKind
from toolpack_server.features.evaluation.participants.results import SessionParticipants
from toolpack_server.features.evaluation.participants.talking import Talking
from toolpack_server.features.evaluation.participants.waiting import Waits
from toolpack_server.protocol.results import Session
from toolpack_server.rpc.methods import CreateSession
from toolpack_server.wiring.feature import Feature


class ParticipantsFeature(Feature):
    name = "participants"
    needs = ("episodes",)
    after = ("tasks", "replay")
    services = (Talking,)
    methods = METHODS
    record_kinds = (TurnKind, FailureKind)
    creation_hooks = (ParticipantsCreationHook,)
    parameters = {CreateSession: ParticipantsRequest}
    results = {Session: SessionParticipants}
    named_addresses = ParticipantAddresses
    address_tools = (SayTool, ListenTool)
    watchers = (Waits,)
