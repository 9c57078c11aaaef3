"""What participants add to the server."""

from server.features.api import Feature
from server.features.participants.beginning import ParticipantsBeginning, ParticipantsRequest
from server.features.participants.methods import METHODS, ListenTool, SayTool
from server.features.participants.talking import Talking
from server.rpc.methods import CreateSession


class ParticipantsFeature(Feature):
    name = "participants"
    needs = ("episodes",)
    after = ("tasks", "replay")
    services = (Talking, SayTool, ListenTool)
    methods = METHODS
    beginnings = (ParticipantsBeginning,)
    parameters = {CreateSession: ParticipantsRequest}
