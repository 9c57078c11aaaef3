"""Factory of sessions: creates sessions from toolpacks, and forks of a version of another session.

In the store, a new session is one row with references to blobs. The factory also enforces the maximum number of
sessions per owner.
"""

import secrets
import time
from collections.abc import Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple

from toolpack_server.base.cache import BoundedCache
from toolpack_server.base.errors import (
    CallIdReusedError,
    ClassesChangedError,
    HeavyReadError,
    InvalidParamsError,
    MissingBlobError,
    OverloadedError,
    TooLargeError,
    shown,
)
from toolpack_server.base.times import expiry
from toolpack_server.engine.session_clock import SessionClock
from toolpack_server.engine.state import SessionState
from toolpack_server.execution.snapshot import Snapshot
from toolpack_server.jsonio.strict import dumps
from toolpack_server.protocol.parameters import ForkRequest, SessionRequest
from toolpack_server.protocol.results import Session
from toolpack_server.sessions.context import SessionContext
from toolpack_server.sessions.identity import DIGITS, Creation
from toolpack_server.sessions.quotas import OWN_SHARE
from toolpack_server.sessions.reader import SessionReader
from toolpack_server.sessions.recipes import Recipe, stored_details
from toolpack_server.stores.base import ForkPoint, Head, History, Record, SessionQuery, StoredSession
from toolpack_server.volumes.volume import is_piece

RECOUNT_SECONDS = 1.0
OWN_SESSIONS = 10  # even if the limit is small, a worker can add this many sessions before it counts again
# Difference between the creation times of one request's sessions, so that lists show them in order.
_INTERVAL_SECONDS = 1e-6


class NewSession(NamedTuple):
    """A prepared request for a new session.

    Attributes:
        owner: The owner of the session.
        request: The request, including the changes made by features.
        feature_options: Features' data for the recipe, which forks also get.
        details: Features' data that belongs to this session only.
        creation: The request as the client sent it. None if it has no call_id, so that it can't be repeated.
    """

    owner: str
    request: SessionRequest
    feature_options: Mapping[str, Any]
    details: Mapping[str, Any] = MappingProxyType({})
    creation: Creation | None = None

    @property
    def has_default_environments(self) -> bool:
        """Whether the session starts with the default environments of its toolpacks."""
        return not (self.request.options or self.request.environment or self.details)


class ForkSource(NamedTuple):
    """A version of a session to fork.

    Attributes:
        session: The session.
        head: Its head.
        point: The fork point: the version, and the last record that the forks can inherit.
        snapshot: The environments. None if they are too large to be read quickly.
    """

    session: StoredSession
    head: Head
    point: ForkPoint
    snapshot: Snapshot | None


def check_recipe(request: SessionRequest) -> None:
    """Check the options and environments of a request against its toolpacks.

    Raises:
        InvalidParamsError: The request has values for a toolpack that the session doesn't use, or both options and an
            environment for one toolpack.
    """
    toolpacks = request.toolpacks or ()
    for name in [*request.options, *request.environment]:
        if name not in toolpacks:
            raise InvalidParamsError(
                f"options, environment: the session has no toolpack {shown(name)!r}. Its toolpacks: "
                f"{', '.join(toolpacks) or 'none'}. Group the values by toolpack: {{name: {{option: value}}}}."
            )
    both = request.options.keys() & request.environment.keys()
    if both:
        raise InvalidParamsError(
            f"Toolpack {shown(min(both))!r} has options and an environment: pass only one of them."
        )


def session_template(
    owner: str, recipe: bytes, labels: Mapping[str, str], ttl_seconds: float, details: Mapping[str, Any]
) -> StoredSession:
    """Return a session without id, agent key and times. `SessionFactory` adds them."""
    return StoredSession(
        id="",
        agent_key="",
        created_at=0,
        expires_at=0,
        owner=owner,
        recipe=recipe,
        labels=labels,
        ttl_seconds=ttl_seconds,
        details=stored_details(details),
    )


class SessionFactory:
    """Factory of sessions.

    Most methods use the store, so they block and must run in threads. `is_quick_to_prepare` can run on the event loop.
    If it returns True, so can `prepare`.

    Args:
        context: The shared services.
        cache: This worker's session states. The factory adds new sessions, so that their first call needn't read the
            store.
        clock: The session clock.
    """

    def __init__(self, context: SessionContext, cache: BoundedCache[str, SessionState], clock: SessionClock) -> None:
        self._context = context
        self._cache = cache
        self._clock = clock
        # By owner: the estimated number of sessions, and the time and the result of the store's last count.
        self._counts: dict[str, tuple[int, float, int]] = {}

    def is_quick_to_prepare(self, request: SessionRequest) -> bool:
        """Return whether `prepare` is quick enough for the event loop, given this request."""
        if request.options or request.environment:  # these can be large
            return False
        return not any(hook.concerns(request) and hook.runs_code(request) for hook in self._context.creation_hooks)

    def prepare(
        self, owner: str, request: SessionRequest, details: Mapping[str, Any], creation: Creation | None
    ) -> NewSession:
        """Apply all creation hooks to a request, and check the request.

        Args:
            owner: The owner of the session.
            request: The request.
            details: Data for the session's details, besides the data of features.
            creation: The request as the client sent it. None if it has no call_id.

        Raises:
            InvalidParamsError: The request's toolpacks, options or environment are invalid.
        """
        feature_options, details = dict[str, Any](), {**details}
        for hook in self._context.creation_hooks:
            if hook.concerns(request):
                request = hook.prepare(request)
                feature_options |= hook.feature_options(request)
                details |= hook.details(request)
        toolpacks = [*self._context.catalog.choose(request.toolpacks)]
        if toolpacks != request.toolpacks:
            request = request.model_copy(update={"toolpacks": toolpacks})
        check_recipe(request)
        return NewSession(owner, request, feature_options, details, creation)

    def create(self, new: NewSession) -> Session:
        """Create a session, or return the session that the same request created before."""
        earlier = self.earlier_sessions(new.owner, new.creation, 1)
        return self._view(earlier[0]) if earlier else self._create([new])[0]

    def create_batch(self, requests: Sequence[NewSession]) -> list[Session | Exception]:
        """Create sessions without options, environments and details. Return a description or an error for each request.

        An owner's requests for the same toolpacks form one transaction of the store, so they succeed or fail together.
        A repeated request returns the session that the first request created.
        """
        groups: dict[Hashable, list[int]] = {}
        answers: dict[int, Session | Exception] = {}
        first: dict[Hashable, int] = {}
        for index, new in enumerate(requests):
            call_id = new.creation and new.creation.call_id
            if call_id is not None and first.setdefault((new.owner, call_id), index) != index:
                continue  # It repeats a request of this batch, so it must wait until that request has its session.
            try:
                earlier = self.earlier_sessions(new.owner, new.creation, 1)
            except Exception as error:  # noqa: BLE001 - the error is the answer to this request
                answers[index] = error
            else:
                if earlier:
                    answers[index] = self._view(earlier[0])
                else:
                    groups.setdefault((new.owner, *(new.request.toolpacks or ())), []).append(index)
        for indices in groups.values():
            try:
                sessions: Sequence[Session | Exception] = self._create([requests[index] for index in indices])
            except Exception as error:  # noqa: BLE001 - the error is the answer to these requests
                sessions = [error] * len(indices)
            answers.update(zip(indices, sessions, strict=True))
        for index in {*range(len(requests))} - answers.keys():
            try:
                answers[index] = self.create(requests[index])
            except Exception as error:  # noqa: BLE001 - the error is the answer to this request
                answers[index] = error
        return [answers[index] for index in range(len(requests))]

    def _create(self, group: Sequence[NewSession]) -> list[Session]:
        """Create sessions of the same owner with the same toolpacks, and describe them.

        A session with options, an environment or details must be a group of its own.
        """
        owner, request = group[0].owner, group[0].request
        self._check_quota(owner, len(group))
        toolpacks, options, environment = tuple(request.toolpacks or ()), request.options, request.environment
        conditions = self._context.initial_conditions(group[0].details)
        parts, blobs = self._context.initial_parts(toolpacks, options, environment, conditions)
        is_new = bool(environment or conditions)
        sessions = [
            self._sessions(self._template(new), 1, new.creation, new.request.unused_seconds)[0] for new in group
        ]
        size = sum(len(session.recipe) + len(dumps(session.labels)) for session in sessions)
        self._context.quotas.check_owner(owner, size + (sum(map(len, blobs.values())) if is_new else 0))
        try:
            # The store usually contains the blobs of the default environments already, so they are sent only if one is
            # missing.
            self._context.store.create(sessions, parts, blobs if is_new else {})
        except MissingBlobError:
            self._context.store.create(sessions, parts, blobs)
        stored = [self._stored([session], new.creation)[0] for session, new in zip(sessions, group, strict=True)]
        for session, stored_session in zip(sessions, stored, strict=True):
            if (
                stored_session.agent_key == session.agent_key
            ):  # otherwise the session existed before, and might have records
                self._cache.setdefault(session.id, SessionState(session, Head(-1, 0, parts)))
        return [*map(self._view, stored)]

    def _template(self, new: NewSession) -> StoredSession:
        """Return the session of a request without id, agent key and times."""
        request = new.request
        toolpacks = tuple(request.toolpacks or ())
        versions = self._context.catalog.versions(toolpacks)
        recipe = Recipe.new(toolpacks, new.feature_options, request.options, request.environment, versions).stored
        ttl_seconds = self._context.settings.ttl_seconds if request.ttl_seconds is None else request.ttl_seconds
        return session_template(new.owner, recipe, request.labels, ttl_seconds, new.details)

    def earlier_forks(self, owner: str, creation: Creation | None, request: ForkRequest) -> list[Session]:
        """Describe the forks that the same request created before. Raise the same errors as `earlier_sessions`."""
        return [*map(self._view, self.earlier_sessions(owner, creation, request.count))]

    def fork_source(self, reader: SessionReader, owner: str, request: ForkRequest) -> ForkSource:
        """Find the version to fork. Read its environments unless they are too large for the reader.

        Raises:
            InvalidParamsError: The request contains both a version and a record, or a record that doesn't exist.
        """
        session, head = reader.find(request.session_id, owner)
        version = head.version if request.version is None else request.version
        point = ForkPoint(session.id, version, head.index, head.last)
        if request.before is not None:
            point = self._point_before(session.id, head, request)
        try:
            snapshot = reader.snapshot(session.id, head, point.version)
        except HeavyReadError:
            snapshot = None
        return ForkSource(session, head, point, snapshot)

    def _point_before(self, session_id: str, head: Head, request: ForkRequest) -> ForkPoint:
        """Return the fork point just before the record with the index `request.before`."""
        before = request.before or 0
        if request.version is not None:
            raise InvalidParamsError("A fork begins at a version or before a record: pass only one of them.")
        if before > head.index + 1:
            raise InvalidParamsError(
                f"The session can't be forked before record {before}: it has {head.index + 1} records."
            )
        # The store returns the record after the index `before - 2`, which is the last record that the fork inherits.
        for record in self._context.store.records(session_id, before - 2, 1) if before else ():
            self._context.records.read(session_id, record)  # raises an error if the record was forged
            return ForkPoint(session_id, record.version, record.index, record.id)
        return ForkPoint(session_id, 0)

    def fork(
        self,
        reader: SessionReader,
        source: ForkSource,
        request: ForkRequest,
        creation: Creation | None = None,
        *,
        again: Mapping[str, Any] | None = None,
    ) -> list[Session]:
        """Create sessions that start from a version of another session, and describe them.

        Args:
            reader: A reader without a size limit.
            source: The version to fork.
            request: The request.
            creation: The request as the client sent it. None if it has no call_id.
            again: Details of the forks, if the session's operations will be repeated in the forks. Such forks inherit
                no records. None for ordinary forks.

        Raises:
            StateDamagedError: The version is damaged.
        """
        parent, head, point, snapshot = source
        count, at = request.count, point.version
        if again is not None:
            point = ForkPoint(parent.id, at)
        if snapshot is None:
            snapshot = reader.snapshot(parent.id, head, at)
        for part, blob_id in snapshot.parts.items():
            if is_piece(part):  # pieces of volumes are read when they are used
                continue
            with suppress(ClassesChangedError):  # the server might load the old classes again later
                self._context.codec.unseal(part, blob_id, snapshot.blobs[part])
        details: dict[str, Any] = {**(again or {})}
        inherited = replace(head, index=point.last, last=point.record)
        for hook in self._context.creation_hooks:
            details |= hook.details_of_fork(request, parent, inherited, at)
        template = replace(
            parent,
            labels=parent.labels if request.labels is None else request.labels,
            ttl_seconds=parent.ttl_seconds if request.ttl_seconds is None else request.ttl_seconds,
            parent=point,
            details=stored_details(details),
        )
        self._check_reply(template, count)
        self._check_quota(parent.owner, count)
        self._context.quotas.check_owner(parent.owner, count * len(dumps(template.labels)))
        forks = self._sessions(template, count, creation)
        try:
            self._context.store.create(forks, snapshot.parts, {})
        except MissingBlobError:
            reader.check_unchanged(parent.id, head, at, snapshot.parts)
            raise
        return [*map(self._view, self._stored(forks, creation))]

    def with_identity(self, template: StoredSession, creation: Creation | None) -> StoredSession:
        """Return a session with id, agent key and times, which `restore` can then create with its history."""
        self._check_quota(template.owner, 1)
        (session,) = self._sessions(template, 1, creation)
        return session

    def restore(
        self,
        session: StoredSession,
        changes: Mapping[int, Mapping[str, str]],
        blobs: Mapping[str, bytes],
        records: Sequence[Record],
        creation: Creation | None,
    ) -> Session:
        """Create a session with an existing history, and describe it.

        Args:
            session: The session, from `with_identity`.
            changes: For each stored version, the blob ids of the parts that differ from the previous stored version.
            blobs: The blobs of the parts, by id.
            records: The records.
            creation: The request as the client sent it. None if it has no call_id.

        Raises:
            TooLargeError: The session exceeds a quota.
        """
        added = sum(map(len, blobs.values())) + sum(len(record.body) for record in records)
        max_bytes = self._context.settings.max_session_bytes
        if added > max_bytes:
            raise TooLargeError(f"The session has {added} bytes; {max_bytes} are allowed.")
        recipe_bytes = len(session.recipe) + len(dumps(session.labels))
        self._context.quotas.check_owner(session.owner, added + recipe_bytes)
        later = {version: parts for version, parts in changes.items() if version > 0}
        self._context.store.create([session], changes[0], blobs, History(later, records))
        stored = self._stored([session], creation)[0]
        return self._view(stored, max(changes))

    def earlier_sessions(self, owner: str, creation: Creation | None, count: int) -> list[StoredSession]:
        """Return the sessions that the same request created before.

        If the first of these sessions was closed, return an empty list. The caller then creates all of them again.
        Sessions that are still open stay unchanged.

        Args:
            owner: The owner.
            creation: The request, or None if it has no call_id.
            count: The number of sessions that the request creates.

        Raises:
            CallIdReusedError: Another request was sent with the same call_id.
        """
        if creation is None:
            return []
        store, id_prefix = self._context.store, creation.id_prefix
        try:
            entries = store.list(SessionQuery(owner, {}, id_prefix, 1))
        # A list would read all shards of the store, but one session is read from its own shard.
        except OverloadedError:
            entries = [(session, head.version) for session, head in filter(None, [store.get(creation.new_id(0))])]
        first = [session for session, _ in entries if session.id.startswith(id_prefix)]
        if not all(creation.is_same_request(session.id) for session in first):
            raise CallIdReusedError(creation.call_id)
        others = (store.get(creation.new_id(number)) for number in range(1, count if first else 1))
        earlier = first + [entry[0] for entry in others if entry]
        for session in earlier:
            self._context.identities.check(session)
        return earlier

    def _stored(self, sessions: Sequence[StoredSession], creation: Creation | None) -> Sequence[StoredSession]:
        """Return new sessions as they are in the store.

        If two equal requests arrived at once, the store contains the sessions of only one of them, and this method
        returns those sessions.

        Raises:
            CallIdReusedError: The same request was sent before. Its session was closed, but its data is kept for forks,
                so the id can't be used again.
        """
        if creation is None:
            return sessions
        earlier = self.earlier_sessions(sessions[0].owner, creation, len(sessions))
        if not earlier:
            raise CallIdReusedError(creation.call_id, "was used for a session that is closed, but has forks")
        return earlier

    def _sessions(
        self, template: StoredSession, count: int, creation: Creation | None, unused_seconds: float | None = None
    ) -> list[StoredSession]:
        """Return `count` sessions from a template, each with its own id, agent key and times.

        Args:
            template: The session without id, agent key and times.
            count: The number of sessions.
            creation: The request from which the ids are derived. None means random ids.
            unused_seconds: Maximum time until a session expires if it isn't used; see `SessionRequest`.
        """
        now = self._clock.now()
        expires_at = expiry(template.ttl_seconds, now)
        if unused_seconds is not None:
            expires_at = min(expires_at, now + unused_seconds)
        sessions = []
        for number in range(count):
            session = replace(
                template,
                id=creation.new_id(number) if creation else secrets.token_hex(DIGITS // 2),
                created_at=now + self._clock.uncounted + number * _INTERVAL_SECONDS,
                expires_at=expires_at,
            )
            sessions.append(replace(session, agent_key=self._context.identities.agent_key(session)))
        return sessions

    def _check_reply(self, fork: StoredSession, count: int) -> None:
        """Check that the descriptions of `count` forks will fit into one response."""
        size, max_bytes = len(dumps(self._view(fork))) + 2 * DIGITS, self._context.settings.max_list_bytes
        if count > 1 and count * size > max_bytes:
            raise TooLargeError(
                f"The response would have {count * size} bytes; {max_bytes} are allowed: request at most "
                f"{max(max_bytes // size, 1)} forks at a time, or use smaller labels."
            )

    def _check_quota(self, owner: str, added: int) -> None:
        """Check that an owner is allowed to have `added` more sessions.

        If the last count is older than a second, or this worker has added more than its share of sessions since then,
        the store counts again. Otherwise the number is estimated.
        """
        max_sessions = self._context.settings.max_sessions
        estimate, counted_at, counted = self._counts.get(owner, (0, 0.0, 0))
        exceeds_share = estimate - counted > max(max_sessions * OWN_SHARE, OWN_SESSIONS)
        if exceeds_share or time.monotonic() - counted_at > RECOUNT_SECONDS:
            estimate, counted_at = self._context.store.count(owner), time.monotonic()
            counted = estimate
        if estimate + added > max_sessions:
            raise TooLargeError(f"This owner has {estimate} sessions; {max_sessions} are allowed: close some first.")
        self._counts[owner] = estimate + added, counted_at, counted

    def _view(self, session: StoredSession, version: int = 0) -> Session:
        """Describe a session at a version.

        The description shows the expiry that the session had when it was created.
        """
        return self._context.session_views.of(session, version, called_at=session.created_at)
