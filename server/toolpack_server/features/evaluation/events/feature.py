"""Declaration of the feature `events`."""

from toolpack_server.features.evaluation.episodes.results import MessageRecord
from toolpack_server.features.evaluation.events.addresses import EventAddresses
from toolpack_server.features.evaluation.events.creation_hook import EventCreationHook, EventParameters, ForkEvents
from toolpack_server.features.evaluation.events.hook import EventHook
from toolpack_server.features.evaluation.events.kinds import EventKind
from toolpack_server.features.evaluation.events.methods import GetEvents
from toolpack_server.features.evaluation.events.results import (
    CallEventMembers,
    MessageEventMembers,
    SessionEventMembers,
)
from toolpack_server.protocol.results import CallRecord, Session
from toolpack_server.rpc.methods import CreateSession, ForkSession
from toolpack_server.wiring.feature import Feature


class EventsFeature(Feature):
    name = "events"
    needs = ("tasks",)
    after = ("episodes", "participants", "perturbations", "replay")
    methods = (GetEvents,)
    record_kinds = (EventKind,)
    creation_hooks = (EventCreationHook,)
    parameters = {CreateSession: EventParameters, ForkSession: ForkEvents}
    results = {Session: SessionEventMembers, CallRecord: CallEventMembers, MessageRecord: MessageEventMembers}
    operation_hooks = (EventHook,)
    address_hooks = (EventAddresses,)
