"""What participants add to the server."""

from server.features.api import CreateSession, Feature, Session
from server.features.participants.creation_hook import ParticipantsCreationHook, ParticipantsRequest
from server.features.participants.methods import METHODS, ListenTool, SayTool
from server.features.participants.played import FailureKind, TurnKind
from server.features.participants.results import SessionParticipants
from server.features.participants.talking import Talking


class ParticipantsFeature(Feature):
    name = "participants"
    needs = ("episodes",)
    after = ("tasks", "replay")
    services = (Talking, SayTool, ListenTool)
    methods = METHODS
    record_kinds = (TurnKind, FailureKind)
    creation_hooks = (ParticipantsCreationHook,)
    parameters = {CreateSession: ParticipantsRequest}
    results = {Session: SessionParticipants}
