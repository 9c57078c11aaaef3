"""Reader of sessions: descriptions, environments as JSON, differences, traces and exact snapshots.

The methods block and might run a toolpack's code, so they must run in threads. They read only committed data. Reading a
session extends its expiry.
"""

import base64
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import islice

import jsonpointer

from toolpack_server.base.cache import BoundedCache
from toolpack_server.base.errors import (
    HeavyReadError,
    InvalidParamsError,
    MissingBlobError,
    OverloadedError,
    SessionNotFoundError,
    StateDamagedError,
    shown,
)
from toolpack_server.base.logger import log
from toolpack_server.base.times import expiry
from toolpack_server.engine.session_clock import SessionClock
from toolpack_server.engine.state import SessionState
from toolpack_server.execution.operations import (
    ExportEnvironments,
    ExportVolumes,
    PatchVolumes,
    ViewChanges,
    ViewEnvironments,
    ViewVolume,
    ViewWithoutVolumes,
)
from toolpack_server.execution.parts import toolpack_of
from toolpack_server.execution.snapshot import Snapshot
from toolpack_server.execution.volumes import stored_environments, volume_pointers
from toolpack_server.jsonio.strict import Fragment, dumps, loads
from toolpack_server.protocol.results import Export, Json, Session
from toolpack_server.protocol.senders import AGENT
from toolpack_server.sessions.context import SessionContext
from toolpack_server.sessions.part_bytes import PartBytes
from toolpack_server.sessions.recipes import Recipe
from toolpack_server.sessions.views import json_patch
from toolpack_server.snapshots.seal import FORMAT
from toolpack_server.stores.base import Head, SessionQuery, StoredSession
from toolpack_server.stores.history import fitting
from toolpack_server.volumes.volume import is_piece

__all__ = ["SessionQuery", "SessionReader"]

RECORDS_BATCH = 16  # number of records that one request to the store reads; it is small because records can be large
SESSIONS_BATCH = 100
SESSIONS_FOR_KEY = 20  # number of stored sessions with which a starting server checks its key


def invalid_sessions(invalid: int, stored: int) -> str:
    """Return the message about `invalid` of `stored` sessions that fail their keyed hash."""
    return (
        f"{invalid} of {stored} stored sessions fail their keyed hash, because they were created with another secret "
        "key, or changed in the store: start the server with that key, or close them"
    )


class SessionReader:
    """Reader of an owner's sessions.

    The server itself and the code for agents' addresses pass None as owner, to read any session.

    Args:
        context: The shared services.
        cache: This worker's session states. A read updates their expiry.
        clock: The session clock.
        max_bytes: Maximum size of a snapshot. Reading a larger snapshot raises `HeavyReadError`. None means no limit.
    """

    def __init__(
        self,
        context: SessionContext,
        cache: BoundedCache[str, SessionState],
        clock: SessionClock,
        max_bytes: int | None = None,
    ) -> None:
        self._context = context
        self._store = context.store
        self._runner = context.runner
        self._cache = cache
        self._clock = clock
        self._max_bytes = max_bytes
        self._max_list_bytes = context.settings.max_list_bytes

    def get(self, session_id: str, owner: str | None) -> tuple[StoredSession, Head]:
        """Return a session and its head as they are stored, without checks.

        Raises:
            SessionNotFoundError: The session is unknown, closed or expired, or belongs to another owner.
        """
        entry = self._store.get(session_id)
        if entry is None or owner not in {None, entry[0].owner}:
            raise SessionNotFoundError
        return entry

    def find(self, session_id: str, owner: str | None, *, renew: bool = True) -> tuple[StoredSession, Head]:
        """Check a session, and return it with its head. Also raise the errors that `get` raises.

        Args:
            session_id: The session.
            owner: The owner, or None for any.
            renew: Whether to extend the session's expiry.

        Raises:
            StateDamagedError: The session was changed, or a newer version of the server created it.
        """
        session, head = self.get(session_id, owner)
        self._context.check_session(session)
        now = self._clock.now()
        if renew and session.expires_at < now + session.ttl_seconds:
            session = replace(session, expires_at=expiry(session.ttl_seconds, now))
            # A store can still be read when it can't be written, for example on a full disk.
            with suppress(OverloadedError):
                self._store.renew(session_id, session.expires_at)
            cached = self._cache.get(session_id)
            if cached is not None:
                cached.expires_at = max(cached.expires_at, session.expires_at)
        return session, head

    def parts(self, session_id: str, head: Head, version: int) -> Mapping[str, str]:
        """Return the blob id of each part of a version.

        Args:
            session_id: The session.
            head: The head of the session, which contains the parts of the current version.
            version: The version.

        Raises:
            VersionNotRetainedError: The version was deleted, or doesn't exist yet.
        """
        return head.parts if version == head.version else self._store.parts_at(session_id, version)

    def agent_session(self, agent_key: str) -> tuple[str, str, str]:
        """Return the id and owner of the session that has an address with this key, and the name of the address.

        Raises:
            SessionNotFoundError: No session has this key.
            StateDamagedError: The stored session isn't the session for which the key was created.
        """
        identities = self._context.identities
        is_additional = identities.is_additional_key(agent_key)
        session_id = identities.session_id_in(agent_key) if is_additional else self._store.find_agent(agent_key)
        entry = session_id and self._store.get(session_id)
        if not entry:
            raise SessionNotFoundError
        session, _ = entry
        if not is_additional and session.agent_key != agent_key:
            raise StateDamagedError(
                "The stored session isn't the session for which this agent path was created: restore a backup, or "
                "close the session."
            )
        self._context.check_session(session)
        return session.id, session.owner, identities.name_of(session, agent_key) if is_additional else AGENT

    def describe(
        self, session_id: str, owner: str | None, *, version: int | None = None, as_created: bool = False
    ) -> Session:
        """Return the description of a session.

        Args:
            session_id: The session.
            owner: The owner, or None for any.
            version: The version to show. Default: the current version.
            as_created: Whether to show the expiry that the session had when it was created, so that a repeated request
                gets the same response as the first request.
        """
        session, head = self.find(session_id, owner)
        at = head.version if version is None else version
        called_at = session.created_at if as_created else None
        return self._context.session_views.of(session, at, called_at=called_at)

    def list_sessions(
        self, query: SessionQuery, predicates: Sequence[Callable[[StoredSession], bool]] = ()
    ) -> list[Session]:
        """Return the descriptions of the sessions that match a query and all predicates, in the query's order.

        Sessions that fail their keyed hash are omitted. Fewer sessions than `query.limit` are returned if more wouldn't
        fit into one response.

        Raises:
            InvalidParamsError: The query lists the newest sessions first, and the session `after` doesn't exist.
            StateDamagedError: All sessions fail their keyed hash, so the server probably has another key.
        """
        invalid = valid = 0

        def views() -> Iterator[Session]:
            """Yield descriptions, and count the sessions that pass and the sessions that fail their keyed hash."""
            nonlocal invalid, valid
            page = replace(query, limit=min(query.limit, SESSIONS_BATCH))
            while True:
                try:
                    entries = self._store.list(page)
                except SessionNotFoundError:
                    raise InvalidParamsError(
                        f"after: no session has the id {shown(page.after)!r}; it may have been closed. List the newest "
                        "sessions again."
                    ) from None
                for session, version in entries:
                    is_intact = self._context.identities.is_intact(session)
                    invalid, valid = invalid + (not is_intact), valid + is_intact
                    if is_intact and all(predicate(session) for predicate in predicates):
                        # Compute the time of the last call from the stored expiry, because listing a session doesn't
                        # extend its expiry.
                        called_at = session.expires_at - expiry(session.ttl_seconds, 0) + self._clock.uncounted
                        # The session was never used; its first expiry is earlier than its TTL.
                        if called_at < session.created_at - 1:
                            called_at = session.expires_at - session.ttl_seconds + self._clock.uncounted
                        yield self._context.session_views.of(session, version, called_at=called_at)
                if len(entries) < page.limit:
                    return
                page = replace(page, after=entries[-1][0].id)

        shown_views = fitting(islice(views(), query.limit), lambda view: len(dumps(view)), self._max_list_bytes)
        if invalid and not valid and not query.after:
            raise StateDamagedError(f"{invalid_sessions(invalid, invalid)}.")
        return shown_views

    def check_key(self) -> None:
        """Log an error if stored sessions were created with a secret key other than this server's."""
        entries = self._store.list(SessionQuery(None, {}, "", SESSIONS_FOR_KEY))
        invalid = sum(not self._context.identities.is_intact(session) for session, _ in entries)
        if invalid:
            log.error("%s.", invalid_sessions(invalid, len(entries)))

    def environment(
        self,
        session_id: str,
        owner: str | None,
        version: int | None,
        pointer: str,
        after: str | None = None,
        limit: int | None = None,
    ) -> Fragment:
        """Return the JSON of a version's environments, or of one value in them.

        Args:
            session_id: The session.
            owner: The owner, or None for any.
            version: The version. None means the current version.
            pointer: JSON Pointer (RFC 6901) to the value. "" means all environments.
            after: If the value is a table, return only rows after the row with this key.
            limit: Maximum number of rows of a table.

        Raises:
            InvalidParamsError: No value has this pointer, or the value isn't a table although `after` or `limit` is
                set.
        """
        snapshot = self._at(session_id, owner, version)
        volume_json = self._in_volume(snapshot, pointer, after, limit)
        if volume_json is not None:
            return Fragment(volume_json)
        if any(map(is_piece, snapshot.parts)):
            self._require_heavy()
        steps = [jsonpointer.unescape(step) for step in pointer.split("/")[1:]]
        text = self._view(snapshot, session_id, owner, version, steps)
        if not pointer:
            return Fragment(text)
        try:
            value = jsonpointer.resolve_pointer(loads(text), pointer)
        except jsonpointer.JsonPointerException:
            raise InvalidParamsError(f"This environment has no value at the pointer {shown(pointer)!r}.") from None
        if isinstance(value, jsonpointer.EndOfList):
            raise InvalidParamsError(
                f"The pointer {shown(pointer)!r} stands for the position after the last element, which has no value."
            )
        return Fragment(dumps(value))

    def _in_volume(self, snapshot: Snapshot, pointer: str, after: str | None, limit: int | None) -> bytes | None:
        """Return the JSON of the value with this pointer, or None if the value isn't in a volume.

        Raise the same errors as `environment`.
        """
        for name, path in volume_pointers(snapshot.parts).items():
            if pointer == path or pointer.startswith(f"{path}/"):
                self._require_heavy()
                steps = [jsonpointer.unescape(step) for step in pointer.removeprefix(path).split("/")[1:]]
                volume_json = self._runner.run(ViewVolume(snapshot, name, steps, after, limit))
                if volume_json:
                    return volume_json
                if after is None and limit is None:
                    raise InvalidParamsError(f"This environment has no value at the pointer {shown(pointer)!r}.")
        if after is not None or limit is not None:
            raise InvalidParamsError(
                "after, limit: use them only with a pointer to a table of a database, such as /shop/db/orders, not "
                f"with {shown(pointer)!r}."
            )
        return None

    def diff(
        self,
        session_id: str,
        owner: str | None,
        from_version: int | None,
        to_version: int | None,
        to_session_id: str | None = None,
        *,
        text_diffs: bool = False,
    ) -> list[dict[str, Json]]:
        """Return the JSON Patch between two versions of one session, or of two sessions.

        `DiffEnvironment` documents the parameters.

        Volumes are compared separately, so that only their changes must be read.
        """
        if from_version is None and to_session_id is None:
            from_version = 0
        to_session_id = session_id if to_session_id is None else to_session_id
        sources = (session_id, owner, from_version), (to_session_id, owner, to_version)
        before, after = (self._at(*source) for source in sources)
        olds, news = volume_pointers(before.parts), volume_pointers(after.parts)
        if any(map(is_piece, (*before.parts, *after.parts))):
            self._require_heavy()
        patch = self._changes(before, after)
        if not olds and not news:
            if patch is None:
                snapshots = zip((before, after), sources, strict=True)
                patch = json_patch(*(loads(self._view(snapshot, *source)) for snapshot, source in snapshots))
            return patch
        if patch is None:
            patch = json_patch(*(loads(self._runner.run(ViewWithoutVolumes(each))) for each in (before, after)))
        if any(not change["path"] for change in patch):
            return [{"op": "replace", "path": "", "value": loads(self._runner.run(ViewEnvironments(after)))}]
        toolpacks = {*map(toolpack_of, after.parts)}
        paths = {name: path for name, path in {**olds, **news}.items() if toolpack_of(name) in toolpacks}
        return patch + self._runner.run(PatchVolumes(before, after, paths, text_diffs))

    def _changes(self, before: Snapshot, after: Snapshot) -> list[dict[str, Json]] | None:
        """Return the JSON Patch between environments that are stored in pieces, without volumes.

        Only the changed objects are read. Return None if the environments aren't stored in pieces, or if the changed
        objects alone don't determine the patch.
        """
        if not all(stored_environments(tuple(snapshot.parts)) for snapshot in (before, after)):
            return None
        changes = self._runner.run(ViewChanges(before, after))
        # A change with an empty path replaces everything, so the caller must compare the whole environments.
        patch = json_patch(*loads(changes)) if changes else [{"path": ""}]
        return patch if all(change["path"] for change in patch) else None

    def trace(self, session_id: str, owner: str | None, after: int, limit: int) -> list[Fragment]:
        """Return up to `limit` records after an index: as many as fit into one response, but at least one record."""
        self.find(session_id, owner)
        return [*map(Fragment, fitting(self._lines(session_id, after, limit), len, self._max_list_bytes))]

    def _lines(self, session_id: str, after: int, limit: int) -> Iterator[bytes]:
        """Yield up to `limit` records after an index, as the JSON that clients see."""
        while limit > 0:
            page = min(limit, RECORDS_BATCH)
            records = self._store.records(session_id, after, page)
            for record in records:
                yield self._context.records.read(session_id, record)[0]
                after = record.index
            limit = limit - page if len(records) == page else 0

    def path(self, session_id: str, owner: str | None, after: int, limit: int) -> list[Fragment]:
        """Return up to `limit` records after a position on the current path: as many as fit into one response.

        Each record also contains its `path_index`, and the `session_id` of its session.
        """
        session, head = self.find(session_id, owner)
        lines = self._context.paths.lines(session, head.version, after + 1, limit)
        page = fitting(lines, lambda line: len(line[1]), self._max_list_bytes)
        return [
            Fragment(b'%b,"path_index":%d,"session_id":%b}' % (text[:-1], path_index, dumps(origin)))
            for path_index, (origin, text) in enumerate(page, after + 1)
        ]

    def export(self, session_id: str, owner: str | None, version: int | None) -> Export:
        """Return a version's exact environments as bytes, for a client with the same classes."""
        session, head = self.find(session_id, owner)
        toolpacks = Recipe.of(session).toolpacks
        at = head.version if version is None else version
        snapshot = self.snapshot(session_id, head, at)
        if any(map(is_piece, snapshot.parts)):
            self._require_heavy()
        exported = self._runner.run(ExportEnvironments(snapshot))
        contents: dict[str, str] = {}
        if volume_pointers(snapshot.parts):
            contents = self._runner.run(ExportVolumes(snapshot))
        return {
            "format": FORMAT,
            "toolpacks": [*toolpacks],
            "fingerprints": {name: self._context.catalog.fingerprints[name] for name in toolpacks},
            "version": at,
            "snapshot": base64.b64encode(exported).decode(),
            "contents": contents,
        }

    def snapshot(self, session_id: str, head: Head, version: int) -> Snapshot:
        """Return a version's environments as bytes.

        Args:
            session_id: The session.
            head: The head of the session.
            version: The version.

        Raises:
            VersionNotRetainedError: The version was deleted, or doesn't exist yet.
            HeavyReadError: The version exceeds the size limit of this reader.
            SessionNotFoundError: The session was closed meanwhile.
            OverloadedError: The session has changed meanwhile.
            MissingBlobError: A part is not in the store.
        """
        parts = self.parts(session_id, head, version)
        try:
            return self.read_parts(session_id, parts)
        except MissingBlobError:
            self.check_unchanged(session_id, head, version, parts)
            raise

    def check_unchanged(self, session_id: str, head: Head, version: int, parts: Mapping[str, str]) -> None:
        """Check whether a blob is missing because the session has changed since `head` was read.

        If the session has changed, raise one of the errors of `snapshot`, because the version might have been deleted
        since.
        """
        _, current = self.get(session_id, None)
        if (version == head.version and current.last != head.last) or self.parts(session_id, current, version) != parts:
            raise OverloadedError("The session has changed meanwhile. Send the request again.")

    def read_parts(self, session_id: str, parts: Mapping[str, str]) -> Snapshot:
        """Return environments as bytes. Pieces of volumes aren't read until they are used.

        Args:
            session_id: The session.
            parts: Blob ids by part, of the session or of an ancestor.

        Raises:
            HeavyReadError: The parts exceed the size limit of this reader.
            SessionNotFoundError: The session was closed meanwhile.
            MissingBlobError: A part is not in the store.
        """
        whole_parts = [part for part in parts if not is_piece(part)]
        try:
            blobs = self._store.blobs([parts[part] for part in whole_parts])
        except MissingBlobError:
            self.get(session_id, None)
            raise
        if self._max_bytes is not None and sum(map(len, blobs.values())) > self._max_bytes:
            raise HeavyReadError
        return Snapshot(parts, PartBytes(self._store, parts, {part: blobs[parts[part]] for part in whole_parts}))

    def _view(
        self, snapshot: Snapshot, session_id: str, owner: str | None, version: int | None, steps: Sequence[str] = ()
    ) -> bytes:
        """Return the JSON of a snapshot's environments.

        Args:
            snapshot: The result of `_at` for the session, owner and version.
            session_id: The session.
            owner: The owner, or None for any.
            version: The version. None means the current version.
            steps: Steps of a JSON Pointer. Values that aren't on the way of this pointer can be omitted.

        Raises:
            SessionNotFoundError: The session was closed meanwhile.
            OverloadedError: The session has changed meanwhile.
            MissingBlobError: A part or a piece is not in the store.
        """
        try:
            return self._runner.run(ViewEnvironments(snapshot, steps))
        except MissingBlobError:  # a piece of a volume was deleted before it was read
            if self._at(session_id, owner, version).parts != snapshot.parts:
                raise OverloadedError("The session has changed meanwhile. Send the request again.") from None
            raise

    def _at(self, session_id: str, owner: str | None, version: int | None) -> Snapshot:
        """Return the environments of a version, or of the current version, as bytes."""
        _, head = self.find(session_id, owner)
        return self.snapshot(session_id, head, head.version if version is None else version)

    def _require_heavy(self) -> None:
        """Raise `HeavyReadError` if this reader has a size limit, because the size of a volume isn't known."""
        if self._max_bytes is not None:
            raise HeavyReadError
