"""Reading sessions: descriptions, environments as JSON, differences, traces, exact snapshots.

All of this blocks and may run a toolpack's code, so it is called in threads only. What is read is what is
committed. Whoever reads a session renews it.
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
    ViewEnvironments,
    ViewVolume,
    ViewWithoutVolumes,
)
from toolpack_server.execution.parts import toolpack_of
from toolpack_server.execution.snapshot import Snapshot
from toolpack_server.execution.volumes import volume_pointers
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

RECORDS_AT_ONCE = 16  # read from the store; each can be large
SESSIONS_AT_ONCE = 100
SESSIONS_FOR_KEY = 20  # that a starting server looks at


def foreign(left_out: int, stored: int) -> str:
    """Return what to say of stored sessions that fail their keyed hash."""
    return (
        f"{left_out} of {stored} stored sessions fail their keyed hash, because they were created with another secret "
        "key, or changed in the store: start the server with that key, or close them"
    )


class SessionReader:
    """Reads sessions for their owner; None, for the server itself and an agent's address, reads anybody's.

    Args:
        cache: What this worker knows of sessions; it learns of renewals.
        max_bytes: The most bytes of snapshots that it reads; None for any number.
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
        """Get a session and its head, as they are stored.

        Raises:
            SessionNotFoundError: It is unknown, closed, expired and deleted, or another's.
        """
        found = self._store.get(session_id)
        if found is None or owner not in {None, found[0].owner}:
            raise SessionNotFoundError
        return found

    def find(self, session_id: str, owner: str | None) -> tuple[StoredSession, Head]:
        """Get a session and its head, and renew it; raises as `get`.

        Raises:
            StateDamagedError: It isn't as it was created, or this server doesn't know everything about it.
        """
        session, head = self.get(session_id, owner)
        self._context.check_session(session)
        now = self._clock.now()
        if session.expires_at < now + session.ttl_seconds:
            session = replace(session, expires_at=expiry(session.ttl_seconds, now))
            with suppress(OverloadedError):  # what can't be written, as on a full disk, can still be read
                self._store.renew(session_id, session.expires_at)
            cached = self._cache.get(session_id)
            if cached is not None:
                cached.expires_at = max(cached.expires_at, session.expires_at)
        return session, head

    def parts(self, session_id: str, head: Head, version: int) -> Mapping[str, str]:
        """Get the blob id of each part of a version.

        Raises:
            VersionNotRetainedError: The version is gone, or hasn't come yet.
        """
        return head.parts if version == head.version else self._store.parts_at(session_id, version)

    def agent_session(self, agent_key: str) -> tuple[str, str, str]:
        """Get the id and the owner of the session that the key of an address opens, and whose address it is.

        Raises:
            SessionNotFoundError: No session has this key.
            StateDamagedError: The session isn't the one for which the key was made.
        """
        others = self._context.identities.is_others(agent_key)
        session_id = self._context.identities.opened(agent_key) if others else self._store.find_agent(agent_key)
        found = session_id and self._store.get(session_id)
        if not found:
            raise SessionNotFoundError
        session, _ = found
        if not others and session.agent_key != agent_key:
            raise StateDamagedError(
                "The stored session isn't the one for which this agent path was made: restore a backup, or close it."
            )
        self._context.check_session(session)
        return session.id, session.owner, self._context.identities.name_of(session, agent_key) if others else AGENT

    def describe(
        self, session_id: str, owner: str | None, *, version: int | None = None, as_created: bool = False
    ) -> Session:
        """Describe a session; `as_created`: as if nobody had used it since, so that a repeated answer is the same."""
        session, head = self.find(session_id, owner)
        at = head.version if version is None else version
        called_at = session.created_at if as_created else None
        return self._context.session_views.of(session, at, called_at=called_at)

    def list_sessions(
        self, query: SessionQuery, wanted: Sequence[Callable[[StoredSession], bool]] = ()
    ) -> list[Session]:
        """Describe the sessions that a query asks for and all of `wanted` say yes to, in its order.

        Sessions that aren't as they were created are left out.

        Raises:
            InvalidParamsError: Newest first, and there is no session `after`.
            StateDamagedError: None of them is as it was created: the server has another key.
        """
        left_out = kept = 0

        def views() -> Iterator[Session]:
            nonlocal left_out, kept
            page = replace(query, limit=min(query.limit, SESSIONS_AT_ONCE))
            while True:
                try:
                    found = self._store.list(page)
                except SessionNotFoundError:
                    raise InvalidParamsError(
                        f"after: no session has the id {shown(page.after)!r}, or no longer: list the newest ones again."
                    ) from None
                for session, version in found:
                    fits = self._context.identities.fits(session)
                    left_out, kept = left_out + (not fits), kept + fits
                    if fits and all(each(session) for each in wanted):
                        # Listing a session doesn't renew it: it was called last when its expiry was written.
                        called_at = session.expires_at - expiry(session.ttl_seconds, 0) + self._clock.uncounted
                        yield self._context.session_views.of(session, version, called_at=called_at)
                if len(found) < page.limit:
                    return
                page = replace(page, after=found[-1][0].id)

        shown_views = fitting(islice(views(), query.limit), lambda view: len(dumps(view)), self._max_list_bytes)
        if left_out and not kept and not query.after:
            raise StateDamagedError(f"{foreign(left_out, left_out)}.")
        return shown_views

    def check_key(self) -> None:
        """Log it if stored sessions were created with another secret key than this server's."""
        found = self._store.list(SessionQuery(None, {}, "", SESSIONS_FOR_KEY))
        left_out = sum(not self._context.identities.fits(session) for session, _ in found)
        if left_out:
            log.error("%s.", foreign(left_out, len(found)))

    def environment(
        self,
        session_id: str,
        owner: str | None,
        version: int | None,
        pointer: str,
        after: str | None = None,
        limit: int | None = None,
    ) -> Fragment:
        """Get the JSON of a version's environments, or of what a JSON Pointer (RFC 6901) names in it.

        Args:
            after: Begin after this key of a table.
            limit: Get so many of its rows.

        Raises:
            InvalidParamsError: The pointer names nothing, or a page is wanted of something that has none.
        """
        snapshot = self._at(session_id, owner, version)
        found = self._in_volume(snapshot, pointer, after, limit)
        if found is not None:
            return Fragment(found)
        if volume_pointers(snapshot.parts):
            self._check_is_heavy()
        text = self._runner.run(ViewEnvironments(snapshot))
        if not pointer:
            return Fragment(text)
        try:
            found = jsonpointer.resolve_pointer(loads(text), pointer)
        except jsonpointer.JsonPointerException:
            raise InvalidParamsError(f"The pointer {shown(pointer)!r} names nothing in this environment.") from None
        if isinstance(found, jsonpointer.EndOfList):
            raise InvalidParamsError(f"The pointer {shown(pointer)!r} names the place after the last element.")
        return Fragment(dumps(found))

    def _in_volume(self, snapshot: Snapshot, pointer: str, after: str | None, limit: int | None) -> bytes | None:
        """Get what a pointer names in a volume; None if it doesn't lead into one."""
        for name, path in volume_pointers(snapshot.parts).items():
            if pointer == path or pointer.startswith(f"{path}/"):
                self._check_is_heavy()
                steps = [jsonpointer.unescape(step) for step in pointer.removeprefix(path).split("/")[1:]]
                found = self._runner.run(ViewVolume(snapshot, name, steps, after, limit))
                if found:
                    return found
                if after is None and limit is None:
                    raise InvalidParamsError(f"The pointer {shown(pointer)!r} names nothing in this environment.")
        if after is not None or limit is not None:
            raise InvalidParamsError(
                f"after, limit: only what names a table has pages, such as /shop/db/orders, but not {shown(pointer)!r}."
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
        if from_version is None and to_session_id is None:
            from_version = 0
        before = self._at(session_id, owner, from_version)
        after = self._at(session_id if to_session_id is None else to_session_id, owner, to_version)
        olds, news = volume_pointers(before.parts), volume_pointers(after.parts)
        if not olds and not news:
            return json_patch(*(loads(self._runner.run(ViewEnvironments(each))) for each in (before, after)))
        self._check_is_heavy()
        found = json_patch(*(loads(self._runner.run(ViewWithoutVolumes(each))) for each in (before, after)))
        if any(not each["path"] for each in found):
            return [{"op": "replace", "path": "", "value": loads(self._runner.run(ViewEnvironments(after)))}]
        toolpacks = {*map(toolpack_of, after.parts)}
        paths = {name: path for name, path in {**olds, **news}.items() if toolpack_of(name) in toolpacks}
        return found + self._runner.run(PatchVolumes(before, after, paths, text_diffs))

    def trace(self, session_id: str, owner: str | None, after: int, limit: int) -> list[Fragment]:
        """Get the records after an index, as many as fit into an answer, but at least one."""
        self.find(session_id, owner)
        return [*map(Fragment, fitting(self._lines(session_id, after, limit), len, self._max_list_bytes))]

    def _lines(self, session_id: str, after: int, limit: int) -> Iterator[bytes]:
        while limit > 0:
            page = min(limit, RECORDS_AT_ONCE)
            found = self._store.records(session_id, after, page)
            for record in found:
                yield self._context.records.read(session_id, record)[0]
                after = record.index
            limit = limit - page if len(found) == page else 0

    def path(self, session_id: str, owner: str | None, after: int, limit: int) -> list[Fragment]:
        """Get the records after a place on the path of the current version, as many as fit into an answer."""
        session, head = self.find(session_id, owner)
        lines = self._context.paths.lines(session, head.version, after + 1, limit)
        found = fitting(lines, lambda line: len(line[1]), self._max_list_bytes)
        return [
            Fragment(b'%b,"place":%d,"session_id":%b}' % (text[:-1], place, dumps(of)))
            for place, (of, text) in enumerate(found, after + 1)
        ]

    def export(self, session_id: str, owner: str | None, version: int | None) -> Export:
        session, head = self.find(session_id, owner)
        toolpacks = Recipe.of(session).toolpacks
        at = head.version if version is None else version
        snapshot = self.snapshot(session_id, head, at)
        exported = self._runner.run(ExportEnvironments(snapshot))
        contents: dict[str, str] = {}
        if volume_pointers(snapshot.parts):
            self._check_is_heavy()
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
        """Get a version's environments, as bytes.

        Raises:
            VersionNotRetainedError: The version is gone, or hasn't come yet.
            HeavyReadError: It is larger than this reader reads.
            SessionNotFoundError: The session was closed meanwhile.
            OverloadedError: It has changed meanwhile.
            MissingBlobError: A part is not in the store.
        """
        parts = self.parts(session_id, head, version)
        try:
            return self.read_parts(session_id, parts)
        except MissingBlobError:
            self.check_unchanged(session_id, head, version, parts)
            raise

    def check_unchanged(self, session_id: str, head: Head, version: int, parts: Mapping[str, str]) -> None:
        """Check, where a part is missing, that this isn't because of what has happened meanwhile; raises as `snapshot`.

        The newest version may be an old one by now, which nobody asked for.
        """
        _, now = self.get(session_id, None)
        if (version == head.version and now.last != head.last) or self.parts(session_id, now, version) != parts:
            raise OverloadedError("The session has changed meanwhile. Send the request again.")

    def read_parts(self, session_id: str, parts: Mapping[str, str]) -> Snapshot:
        """Get environments of a session or of its family, as bytes; raises as `snapshot`.

        Pieces of volumes are read when they are needed.
        """
        opened = [part for part in parts if not is_piece(part)]
        try:
            blobs = self._store.blobs([parts[part] for part in opened])
        except MissingBlobError:
            self.get(session_id, None)
            raise
        if self._max_bytes is not None and sum(map(len, blobs.values())) > self._max_bytes:
            raise HeavyReadError
        return Snapshot(parts, PartBytes(self._store, parts, {part: blobs[parts[part]] for part in opened}))

    def _at(self, session_id: str, owner: str | None, version: int | None) -> Snapshot:
        _, head = self.find(session_id, owner)
        return self.snapshot(session_id, head, head.version if version is None else version)

    def _check_is_heavy(self) -> None:
        """Have a volume read by a reader that waits for its turn: nobody knows how large it is."""
        if self._max_bytes is not None:
            raise HeavyReadError
