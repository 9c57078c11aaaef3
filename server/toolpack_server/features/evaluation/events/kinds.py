"""Record kind of events that call no function."""

from typing_extensions import override

from toolpack_server.base.terminal import printable
from toolpack_server.features.evaluation.events.results import EventRecord
from toolpack_server.sessions.record_kinds import RecordKind, Shown


class EventKind(RecordKind):
    """Record of an event that calls no function. A replay skips the record, because the event happens again there."""

    name = "event"
    shape = EventRecord
    title = "{event}"

    @override
    def text(self, shown: Shown, width: int) -> str:
        return printable(f"event {shown['event']} at {shown['at']}")
