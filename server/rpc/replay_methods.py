"""The JSON-RPC methods that run a session again, and that move one as a bundle.

The rule: as in `methods`: every operation gets the caller's owner, which must own the session. Whatever a bundle of a
stranger holds goes through the checks of a request.
"""

import base64
import binascii
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from typing import Any

from pydantic import ValidationError

from server.errors import InvalidParamsError
from server.jsonio.strict import loads
from server.rpc.limits import has_more_values, is_deeper
from server.rpc.method import Caller, Method
from server.rpc.parameters import CreateSession, ExportBundle, ImportBundle, ReplaySession
from server.sessions.bundle_format import FORMAT, Head
from server.sessions.bundles import Bundles
from server.sessions.manager import SessionManager
from server.sessions.replay import Replays
from server.settings import Settings

BYTES_AT_ONCE = 2**18  # of records that are unpacked before they are run


class ReplayMethods:
    """The methods that run a session again, and that move one as a bundle.

    Args:
        sessions: The sessions.
        replays: Runs them again.
        bundles: Writes and reads them.
        settings: The limits.
        create_session: Answers `create_session`.
    """

    def __init__(
        self,
        sessions: SessionManager,
        replays: Replays,
        bundles: Bundles,
        settings: Settings,
        create_session: Callable[[Caller, CreateSession], Awaitable[Any]],
    ) -> None:
        self._sessions = sessions
        self._replays = replays
        self._bundles = bundles
        self._settings = settings
        self._create_session = create_session

    def all(self) -> list[Method]:
        """Get the methods of `/rpc`."""
        return [
            Method("replay_session", ReplaySession, self.replay_session),
            Method("export_bundle", ExportBundle, self.export_bundle),
            Method("import_bundle", ImportBundle, self.import_bundle),
        ]

    async def replay_session(self, caller: Caller, params: ReplaySession) -> Any:
        """See `ReplaySession`."""
        return await self._replays.replay(params.session_id, caller.owner, params.limit, params.labels)

    async def export_bundle(self, caller: Caller, params: ExportBundle) -> Any:
        """See `ExportBundle`."""

        def export() -> bytes:
            ends = params.versions == "ends"
            return self._bundles.export(self._sessions.heavy_reader, params.session_id, caller.owner, ends=ends)

        bundle = await self._sessions.compute(export, caller.owner, "bundle")
        return {"format": FORMAT, "size": len(bundle), "bundle": base64.b64encode(bundle).decode()}

    async def import_bundle(self, caller: Caller, params: ImportBundle) -> Any:
        """See `ImportBundle`."""
        try:
            bundle = base64.b64decode(params.bundle, validate=True)
        except (binascii.Error, ValueError):
            raise InvalidParamsError("The bundle isn't written in base64.") from None
        if params.mode == "replay":
            return await self._repeat(caller, params, bundle)
        return await self._sessions.compute(
            lambda: self._bundles.restore(bundle, caller.owner, params.labels, params.ttl_seconds),
            caller.owner,
            "bundle",
        )

    async def _repeat(self, caller: Caller, params: ImportBundle, bundle: bytes) -> Any:
        head, records = await self._sessions.compute(
            lambda: self._bundles.to_repeat(bundle, self._read), caller.owner, "bundle"
        )
        new = await self._create_session(caller, _creation(head, params))
        return await self._replays.run(new, caller.owner, self._pages(records, caller.owner), complete=True)

    def _read(self, text: bytes) -> Any:
        """Read JSON, within the limits of a request."""
        limits = self._settings
        if len(text) > limits.max_body_bytes:
            raise InvalidParamsError(f"A line of the bundle has more than {limits.max_body_bytes} bytes.")
        if has_more_values(text, limits.max_json_values):
            raise InvalidParamsError(f"A line of the bundle has more than {limits.max_json_values} values.")
        value = loads(text)
        if is_deeper(text, value, limits.max_json_depth):
            raise InvalidParamsError(f"A line of the bundle is nested more than {limits.max_json_depth} deep.")
        return value

    async def _pages(
        self, records: Iterator[tuple[Mapping[str, Any], int]], owner: str
    ) -> AsyncIterator[Mapping[str, Any]]:
        """Unpack some records at a time, in a thread."""

        def page() -> list[Mapping[str, Any]]:
            some, size = [], 0
            for record, more in records:
                some.append(record)
                size += more
                if size > BYTES_AT_ONCE:
                    break
            return some

        while some := await self._sessions.compute(page, owner, "bundle"):
            for record in some:
                yield record


def _creation(head: Head, params: ImportBundle) -> CreateSession:
    """Get the request that creates a session as the one in the bundle was created."""
    given = {name: value for name, value in head.details.items() if name in CreateSession.model_fields}
    try:
        return CreateSession.model_validate(
            {
                **given,
                "task": head.task,
                "toolpacks": head.toolpacks,
                "options": head.options,
                "environment": head.environment,
                "labels": head.labels if params.labels is None else params.labels,
                "ttl_seconds": head.ttl_seconds if params.ttl_seconds is None else params.ttl_seconds,
            }
        )
    except ValidationError as error:
        place = ".".join(map(str, error.errors(include_url=False)[0]["loc"]))[:80]
        raise InvalidParamsError(f"The bundle can't be imported: no session can have its {place}.") from None
