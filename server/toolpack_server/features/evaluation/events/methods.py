"""Method `get_events`: the simulated time of a session and its coming events."""

from typing import Annotated

from pydantic import Field

from toolpack_server.base.errors import InvalidParamsError, VersionNotRetainedError
from toolpack_server.features.evaluation.event_rules import time_text
from toolpack_server.features.evaluation.events.hook import EventHook
from toolpack_server.features.evaluation.events.operations import TimelineOperation
from toolpack_server.features.evaluation.events.results import EventComing, EventsAhead
from toolpack_server.features.evaluation.events.timeline import Timeline
from toolpack_server.protocol.parameters import SessionId
from toolpack_server.rpc.caller import Caller
from toolpack_server.rpc.method import App, Method
from toolpack_server.sessions.reader import SessionReader
from toolpack_server.stores.base import StoredSession


class GetEvents(Method, result=EventsAhead):
    """Return the time of a session with events, and its coming events."""

    session_id: SessionId
    version: Annotated[int, Field(ge=0, le=2**53)] | None = Field(
        None, description="The version; default: the current one."
    )

    async def handle(self, caller: Caller, app: App) -> EventsAhead:
        """Read the timeline at the version. For the current version, also check due conditions, which adds events."""
        hook = app.feature(EventHook)

        def read(reader: SessionReader) -> tuple[StoredSession, Timeline]:
            session, head = reader.find(self.session_id, caller.sees)
            if not hook.concerns(session):
                raise InvalidParamsError("The session has no events: create a session with event rules.")
            version = head.version if self.version is None else self.version
            if version > head.version:
                raise VersionNotRetainedError(version, 0, head.version)
            return session, hook.timeline_at(session, app.context.paths.end(session.id, version, head.index))

        session, timeline = await app.sessions.read(read, caller.owner)
        if self.version is None:
            look = TimelineOperation(app.context, session.id, session.owner, hook.timeline)
            timeline = await app.sessions.run(look)
        coming: list[EventComing] = [{"event": each.rule, "at": time_text(each.at)} for each in timeline.coming]
        return {"time": time_text(timeline.now), "coming": coming}
