"""Method `get_events`: the time of a session and what is coming."""

from typing import Annotated

from pydantic import Field

from toolpack_server.base.errors import InvalidParamsError, VersionNotRetainedError
from toolpack_server.features.evaluation.event_rules import time_text
from toolpack_server.features.evaluation.events.hook import EventHook
from toolpack_server.features.evaluation.events.results import EventsAhead
from toolpack_server.protocol.parameters import SessionId
from toolpack_server.rpc.caller import Caller
from toolpack_server.rpc.method import App, Method
from toolpack_server.sessions.reader import SessionReader


class GetEvents(Method, result=EventsAhead):
    """Return the time of a session with events, and what is coming."""

    session_id: SessionId
    version: Annotated[int, Field(ge=0, le=2**53)] | None = Field(
        None, description="The version; default: the current one."
    )

    async def handle(self, caller: Caller, app: App) -> EventsAhead:
        return await app.sessions.read(lambda reader: self._read(reader, caller, app), caller.owner)

    def _read(self, reader: SessionReader, caller: Caller, app: App) -> EventsAhead:
        session, head = reader.find(self.session_id, caller.sees)
        hook = app.feature(EventHook)
        if not hook.concerns(session):
            raise InvalidParamsError("The session has no events: its world is at rest.")
        version = head.version if self.version is None else self.version
        if version > head.version:
            raise VersionNotRetainedError(version, 0, head.version)
        timeline = hook.timeline_at(session, app.context.paths.end(session.id, version, head.index))
        coming = [{"event": event.rule, "at": time_text(event.at)} for event in timeline.coming]
        return {"time": time_text(timeline.now), "coming": coming}  # type: ignore[typeddict-item]
