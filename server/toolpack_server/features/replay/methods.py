"""Methods `replay_session`, `export_bundle` and `import_bundle`.

A stranger might have written the bundle, so its content is checked like that of a request.
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
    """Run a session's records again, in order, in a new session, up to the first difference."""

    session_id: SessionId
    limit: int = Field(1000, ge=1, le=100_000, description="Maximum number of records to run again.")
    labels: Labels | None = Field(None, description="The labels of the new session; default: the old session's labels.")
    call_id: CallId

    async def handle(self, caller: Caller, app: App) -> Replay:
        return await caller.run_while_connected(self._replay(caller, app))

    async def _replay(self, caller: Caller, app: App) -> Replay:
        replays, creation = app.feature(Replays), None
        if self.call_id is not None:
            request = ["ReplaySession", self.model_dump(exclude={"call_id"})]
            creation = app.context.identities.creation(caller.owner, self.call_id, request)
        async with replays.turn(caller.owner):
            return await replays.replay(self.session_id, caller.sees, self.limit, self.labels, creation)


class ExportBundle(Method, result=Bundle):
    """Return a session as one file, which `import_bundle` reads on this server or another."""

    session_id: SessionId
    versions: Literal["all", "ends"] = Field(
        "all",
        description="The versions in the bundle: all stored ones, or only the first and the current one (`ends`).",
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
    """Create a session from a bundle: an exact copy of the exported session, or a replay of its records."""

    async def handle(self, caller: Caller, app: App) -> Session | Replay:
        if self.mode == "replay":
            return await caller.run_while_connected(self._replay(caller, app))
        with Reservation(app.in_flight, caller.owner) as reservation:
            return await app.sessions.compute(
                lambda: app.feature(Bundles).restore(self, caller.owner, reservation),
                *(caller.owner, "bundle", may_be_created(repeatable=self.call_id is not None)),
            )

    async def _replay(self, caller: Caller, app: App) -> Replay:
        owner = caller.owner

        async def begin(head: BundleHead) -> Session:
            creation = await app.sessions.compute(lambda: app.feature(Bundles).creation(self, owner), owner, "bundle")
            return await app.sessions.create(owner, self._creation(head, app.context.session_request), creation)

        return await replay_bundle(app, owner, self, begin)

    def _creation(self, head: BundleHead, kind: type[SessionRequest]) -> SessionRequest:
        """Return the request that creates a session like the one in the bundle."""
        # A bundle can set only the parameters that features add to the request.
        own = kind.model_fields.keys() - SessionRequest.model_fields.keys()
        params = {
            name: value for name, value in [*head.details.items(), *head.all_feature_options().items()] if name in own
        }
        try:
            request = kind.model_validate(
                {
                    **params,
                    "toolpacks": head.toolpacks,
                    "options": head.options,
                    "environment": head.environment,
                    "labels": head.labels if self.labels is None else self.labels,
                    "ttl_seconds": head.ttl_seconds if self.ttl_seconds is None else self.ttl_seconds,
                }
            )
        except ValidationError as error:
            location = ".".join(map(str, error.errors(include_url=False)[0]["loc"]))[:80]
            raise InvalidParamsError(f"The bundle can't be imported: its {location} is invalid.") from None
        return request.as_resolved()


async def replay_bundle(
    app: App, owner: str, request: ImportRequest, begin: Callable[[BundleHead], Awaitable[Session]]
) -> Replay:
    """Replay the records of a bundle. Raises the errors of `Bundles.read_for_replay` and `Replays.run`.

    Args:
        begin: Creates the replay's session from the head of the bundle.
    """
    bundles, replays = app.feature(Bundles), app.feature(Replays)
    async with replays.turn(owner):
        with Reservation(app.in_flight, owner) as reservation:
            head, records = await app.sessions.compute(
                lambda: bundles.read_for_replay(request, reservation), owner, "bundle"
            )
            new = await begin(head)
            async with aclosing(_unpack_records(app, records, owner)) as unpacked:
                repeatable = request.call_id is not None
                return await replays.run(
                    *(new, owner, head.details, head.versions, unpacked, request.limit), repeatable=repeatable
                )


async def _unpack_records(app: App, records: Records, owner: str) -> AsyncGenerator[Mapping[str, Any], None]:
    """Yield the records. Unpack them in threads, about `PAGE_BYTES` at a time."""

    def unpack_page() -> list[Mapping[str, Any]]:
        page, size = [], 0
        for record, record_bytes in records:
            page.append(record)
            size += record_bytes
            if size > PAGE_BYTES:
                break
        return page

    while page := await app.sessions.compute(unpack_page, owner, "bundle"):
        for record in page:
            yield record


METHODS: tuple[type[Method], ...] = (ReplaySession, ExportBundle, ImportBundle)
