"""The methods that run a session again, and that move one as a bundle.

Whatever a bundle of a stranger holds goes through the checks of a request.
"""

import base64
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Literal

from pydantic import Field, ValidationError

from toolpack_server.base.errors import InvalidParamsError
from toolpack_server.features.replay.bundle_format import FORMAT, BundleHead
from toolpack_server.features.replay.bundles import PAGE_BYTES, Bundles, ImportRequest, Records
from toolpack_server.features.replay.replays import Replays
from toolpack_server.features.replay.results import Bundle, Replay
from toolpack_server.protocol.parameters import CallId, Labels, SessionId, SessionRequest
from toolpack_server.protocol.results import Session
from toolpack_server.rpc.caller import Caller
from toolpack_server.rpc.in_flight import Reservation
from toolpack_server.rpc.method import App, Method
from toolpack_server.sessions.manager import may_be_created
from toolpack_server.sessions.recipes import Recipe


class ReplaySession(Method, result=Replay):
    """Run a session's records again, in order, in a new session, up to the first that comes out differently."""

    session_id: SessionId
    limit: int = Field(1000, ge=1, le=100_000, description="How many records to run again, at most.")
    labels: Labels | None = Field(None, description="The labels of the new session; default: this session's.")
    call_id: CallId

    async def handle(self, caller: Caller, app: App) -> Replay:
        return await caller.run_while_connected(self._replay(caller, app))

    async def _replay(self, caller: Caller, app: App) -> Replay:
        replays, creation = app.feature(Replays), None
        if self.call_id is not None:
            asked = ["ReplaySession", self.model_dump(exclude={"call_id"})]
            creation = app.context.identities.creation(caller.owner, self.call_id, asked)
        async with replays.turn(caller.owner):
            return await replays.replay(self.session_id, caller.sees, self.limit, self.labels, creation)


class ExportBundle(Method, result=Bundle):
    """Get a session as one file, which `import_bundle` takes here or on another server."""

    session_id: SessionId
    versions: Literal["all", "ends"] = Field(
        "all", description="The versions in it: all that are kept, or the first and the current one."
    )

    async def handle(self, caller: Caller, app: App) -> Bundle:
        bundles = app.feature(Bundles)

        def export() -> tuple[bytes, Sequence[str]]:
            reader, ends = app.sessions.heavy_reader, self.versions == "ends"
            session, _ = reader.find(self.session_id, caller.sees)
            bundle = bundles.export(reader, self.session_id, caller.sees, ends=ends)
            return bundle, Recipe.of(session).toolpacks

        bundle, toolpacks = await app.sessions.compute(export, caller.owner, "bundle")
        encoded, code = base64.b64encode(bundle).decode(), bundles.codes.of(toolpacks)
        return {"format": FORMAT, "size": len(bundle), "bundle": encoded, "code": code}


class ImportBundle(ImportRequest, Method, result=Session | Replay):
    """Create a session from a bundle: exactly the one that was exported, or by running its records again."""

    async def handle(self, caller: Caller, app: App) -> Session | Replay:
        if self.mode == "replay":
            return await caller.run_while_connected(self._repeat(caller, app))
        with Reservation(app.in_flight, caller.owner) as reservation:
            return await app.sessions.compute(
                lambda: app.feature(Bundles).restore(self, caller.owner, reservation),
                *(caller.owner, "bundle", may_be_created(repeatable=self.call_id is not None)),
            )

    async def _repeat(self, caller: Caller, app: App) -> Replay:
        owner = caller.owner

        async def begin(head: BundleHead) -> Session:
            creation = await app.sessions.compute(lambda: app.feature(Bundles).creation(self, owner), owner, "bundle")
            return await app.sessions.create(owner, self._creation(head, app.context.session_request), creation)

        return await run_again(app, owner, self, begin)

    def _creation(self, head: BundleHead, kind: type[SessionRequest]) -> SessionRequest:
        """Get the request that creates a session as the one in the bundle was created."""
        # What features have added to the request, and nothing else: the rest of it isn't the bundle's to say.
        own = kind.model_fields.keys() - SessionRequest.model_fields.keys()
        given = {name: value for name, value in [*head.details.items(), *head.all_kept().items()] if name in own}
        try:
            request = kind.model_validate(
                {
                    **given,
                    "toolpacks": head.toolpacks,
                    "options": head.options,
                    "environment": head.environment,
                    "labels": head.labels if self.labels is None else self.labels,
                    "ttl_seconds": head.ttl_seconds if self.ttl_seconds is None else self.ttl_seconds,
                }
            )
        except ValidationError as error:
            place = ".".join(map(str, error.errors(include_url=False)[0]["loc"]))[:80]
            raise InvalidParamsError(f"The bundle can't be imported: no session can have its {place}.") from None
        return request.as_resolved()


async def run_again(
    app: App, owner: str, request: ImportRequest, begin: Callable[[BundleHead], Awaitable[Session]]
) -> Replay:
    """Run the records of a bundle again, in a session that `begin` makes; raises as `Bundles.to_repeat`."""
    bundles, replays = app.feature(Bundles), app.feature(Replays)
    async with replays.turn(owner):
        with Reservation(app.in_flight, owner) as reservation:
            head, records = await app.sessions.compute(lambda: bundles.to_repeat(request, reservation), owner, "bundle")
            new = await begin(head)
            async with aclosing(_one_by_one(app, records, owner)) as each:
                repeatable = request.call_id is not None
                return await replays.run(
                    *(new, owner, head.details, head.versions, each, request.limit), repeatable=repeatable
                )


async def _one_by_one(app: App, records: Records, owner: str) -> AsyncGenerator[Mapping[str, Any], None]:
    """Unpack some records at a time, in a thread."""

    def page() -> list[Mapping[str, Any]]:
        some, size = [], 0
        for record, more in records:
            some.append(record)
            size += more
            if size > PAGE_BYTES:
                break
        return some

    while some := await app.sessions.compute(page, owner, "bundle"):
        for record in some:
            yield record


METHODS: tuple[type[Method], ...] = (ReplaySession, ExportBundle, ImportBundle)
