"""New sessions: created from toolpacks or forked from a version of another session.

A new session costs a row and references to blobs; an owner never has more sessions than allowed.
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
from toolpack_server.sessions.identity import DIGITS, Creation, in_family
from toolpack_server.sessions.quotas import OWN_SHARE
from toolpack_server.sessions.reader import SessionReader
from toolpack_server.sessions.recipes import Recipe, stored_details
from toolpack_server.stores.base import ForkPoint, Head, History, Record, SessionQuery, StoredSession, family_of
from toolpack_server.volumes.volume import is_piece

RECOUNT_SECONDS = 1.0
OWN_SESSIONS = 10  # that a worker may add, however few its share of the limit is
_APART_SECONDS = 1e-6  # by which forks made together differ, so that they are listed in order


class NewSession(NamedTuple):
    """A session that is to be created.

    Attributes:
        kept: What features keep of the request with the recipe.
        details: What they keep of it with this session alone.
        creation: Made from the request as it was sent, if that can be repeated.
    """

    owner: str
    request: SessionRequest
    kept: Mapping[str, Any]
    details: Mapping[str, Any] = MappingProxyType({})
    creation: Creation | None = None

    @property
    def has_default_environments(self) -> bool:
        """Whether its environments are those that any session of these toolpacks begins with."""
        return not (self.request.options or self.request.environment or self.details)


class ForkSource(NamedTuple):
    """A version of a session from which forks start.

    Attributes:
        snapshot: Its environments; None if they are too large to be read with others.
    """

    session: StoredSession
    head: Head
    version: int
    snapshot: Snapshot | None


def check_recipe(request: SessionRequest) -> None:
    """Refuse, with an `InvalidParamsError`, what is given for no toolpack of the session, and both for one of them."""
    toolpacks = request.toolpacks or ()
    for given in [*request.options, *request.environment]:
        if given not in toolpacks:
            raise InvalidParamsError(
                f"Toolpack {shown(given)!r} is not among the session's: {', '.join(toolpacks) or 'none'}."
            )
    both = request.options.keys() & request.environment.keys()
    if both:
        raise InvalidParamsError(f"Toolpack {shown(min(both))!r} has options and an environment: give one of them.")


def session_template(
    owner: str, recipe: bytes, labels: Mapping[str, str], ttl_seconds: float, details: Mapping[str, Any]
) -> StoredSession:
    """Get a session as far as its id, its agent key and its times aren't known."""
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
    """Creates sessions. Its methods block, so they are called in threads only.

    Args:
        cache: What this worker knows of sessions: the first call of a new one needn't read it from the store.
    """

    def __init__(self, context: SessionContext, cache: BoundedCache[str, SessionState], clock: SessionClock) -> None:
        self._context = context
        self._cache = cache
        self._clock = clock
        self._counts: dict[str, tuple[int, float, int]] = {}

    def is_brief(self, request: SessionRequest) -> bool:
        """Whether `prepared` may be called on the event loop for this request."""
        if request.options or request.environment:  # which can be large
            return False
        return not any(hook.concerns(request) and hook.runs_code(request) for hook in self._context.creation_hooks)

    def prepared(
        self, owner: str, request: SessionRequest, details: Mapping[str, Any], creation: Creation | None
    ) -> NewSession:
        """Have the creation hooks prepare a session in turn, and check it.

        Args:
            details: What is kept with it besides what features keep.

        Raises:
            InvalidParamsError: Toolpacks, options or environment don't fit.
        """
        kept, details = dict[str, Any](), {**details}
        for hook in self._context.creation_hooks:
            if hook.concerns(request):
                request = hook.prepare(request)
                kept |= hook.kept(request)
                details |= hook.details(request)
        toolpacks = [*self._context.catalog.choose(request.toolpacks)]
        if toolpacks != request.toolpacks:
            request = request.model_copy(update={"toolpacks": toolpacks})
        check_recipe(request)
        return NewSession(owner, request, kept, details, creation)

    def create(self, new: NewSession) -> Session:
        """Create a session, or get the one that the same request has created."""
        created = self.created(new.owner, new.creation, 1)
        return self._view(created[0]) if created else self._create([new])[0]

    def create_batch(self, asked: Sequence[NewSession]) -> list[Session | Exception]:
        """Create sessions that have neither options nor environments nor details, or get those that exist already.

        All of an owner's with the same toolpacks are created in one step of the store, or refused.
        """
        alike: dict[Hashable, list[int]] = {}
        answers: dict[int, Session | Exception] = {}
        first: dict[Hashable, int] = {}
        for place, new in enumerate(asked):
            call_id = new.creation and new.creation.call_id
            if call_id is not None and first.setdefault((new.owner, call_id), place) != place:
                continue  # it finds what the first one has created
            try:
                created = self.created(new.owner, new.creation, 1)
            except Exception as error:  # noqa: BLE001 - likewise
                answers[place] = error
            else:
                if created:
                    answers[place] = self._view(created[0])
                else:
                    alike.setdefault((new.owner, *(new.request.toolpacks or ())), []).append(place)
        for places in alike.values():
            try:
                made: Sequence[Session | Exception] = self._create([asked[place] for place in places])
            except Exception as error:  # noqa: BLE001 - who is refused alone, too, hears why
                made = [error] * len(places)
            answers.update(zip(places, made, strict=True))
        for place in {*range(len(asked))} - answers.keys():
            try:
                answers[place] = self.create(asked[place])
            except Exception as error:  # noqa: BLE001 - likewise
                answers[place] = error
        return [answers[place] for place in range(len(asked))]

    def _create(self, alike: Sequence[NewSession]) -> list[Session]:
        """Create sessions that have the same owner and toolpacks; only a single one may have more than that."""
        owner, request = alike[0].owner, alike[0].request
        self._check_quota(owner, len(alike))
        toolpacks, options, environment = tuple(request.toolpacks or ()), request.options, request.environment
        conditions = self._context.initial_conditions(alike[0].details)
        parts, blobs = self._context.initial_parts(toolpacks, options, environment, conditions)
        is_new = bool(environment or conditions)
        sessions = [self._sessions(self._template(new), 1, new.creation)[0] for new in alike]
        size = sum(len(each.recipe) + len(dumps(each.labels)) for each in sessions)
        self._context.quotas.check_owner(owner, size + (sum(map(len, blobs.values())) if is_new else 0))
        try:
            # Most often the blobs are in the store already, and needn't be sent.
            self._context.store.create(sessions, parts, blobs if is_new else {})
        except MissingBlobError:
            self._context.store.create(sessions, parts, blobs)
        stored = [self._added([session], new.creation)[0] for session, new in zip(sessions, alike, strict=True)]
        for session, found in zip(sessions, stored, strict=True):
            if found.agent_key == session.agent_key:  # otherwise it has existed, and may have records
                self._cache.setdefault(session.id, SessionState(session, Head(-1, 0, parts)))
        return [*map(self._view, stored)]

    def _template(self, new: NewSession) -> StoredSession:
        request = new.request
        toolpacks = tuple(request.toolpacks or ())
        versions = self._context.catalog.versions(toolpacks)
        recipe = Recipe.new(toolpacks, new.kept, request.options, request.environment, versions).stored
        ttl_seconds = self._context.settings.ttl_seconds if request.ttl_seconds is None else request.ttl_seconds
        return session_template(new.owner, recipe, request.labels, ttl_seconds, new.details)

    def forked(self, owner: str, creation: Creation | None, request: ForkRequest) -> list[Session]:
        """Describe the forks that the same request has made; raises as `created`."""
        return [*map(self._view, self.created(owner, creation, request.count))]

    def fork_source(self, reader: SessionReader, owner: str, request: ForkRequest) -> ForkSource:
        """Find the version from which forks are to start, and read it unless it is larger than the reader reads."""
        session, head = reader.find(request.session_id, owner)
        version = head.version if request.version is None else request.version
        try:
            snapshot = reader.snapshot(session.id, head, version)
        except HeavyReadError:
            snapshot = None
        return ForkSource(session, head, version, snapshot)

    def fork(
        self,
        reader: SessionReader,
        source: ForkSource,
        request: ForkRequest,
        creation: Creation | None = None,
        *,
        again: Mapping[str, Any] | None = None,
    ) -> list[Session]:
        """Create sessions that start from a version of another.

        Args:
            reader: It reads versions of any size.
            creation: Made from the request, if that can be repeated.
            again: They take none of its records, as what it did is to be done again; these are details of their own.

        Raises:
            StateDamagedError: The version was damaged, so that the forks would be, too.
        """
        parent, head, at, snapshot = source
        count = request.count
        if snapshot is None:
            snapshot = reader.snapshot(parent.id, head, at)
        for part, blob_id in snapshot.parts.items():
            if is_piece(part):  # it isn't even read
                continue
            with suppress(ClassesChangedError):  # the classes may come back
                self._context.codec.unseal(part, blob_id, snapshot.blobs[part])
        details: dict[str, Any] = {**(again or {})}
        inherited = head if again is None else replace(head, index=-1, last="")
        for hook in self._context.creation_hooks:
            details |= hook.details_of_fork(request, parent, inherited, at)
        template = replace(
            parent,
            labels=parent.labels if request.labels is None else request.labels,
            ttl_seconds=parent.ttl_seconds if request.ttl_seconds is None else request.ttl_seconds,
            parent=ForkPoint(parent.id, at, head.index, head.last) if again is None else ForkPoint(parent.id, at),
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
        return [*map(self._view, self._added(forks, creation))]

    def identified(self, template: StoredSession, creation: Creation | None) -> StoredSession:
        """Get a session that is to be created with a history, with its id, agent key and times."""
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
        """Create a session that has a history already.

        Args:
            changes: For each version that is kept, the blob id of each part that differs from the one before.
        """
        added = sum(map(len, blobs.values())) + sum(len(record.body) for record in records)
        allowed = self._context.settings.max_session_bytes
        if added > allowed:
            raise TooLargeError(f"The session has {added} bytes; {allowed} are allowed.")
        recipe_bytes = len(session.recipe) + len(dumps(session.labels))
        self._context.quotas.check_owner(session.owner, added + recipe_bytes)
        later = {version: parts for version, parts in changes.items() if version > 0}
        self._context.store.create([session], changes[0], blobs, History(later, records))
        stored = self._added([session], creation)[0]
        return self._view(stored, max(changes))

    def created(self, owner: str, creation: Creation | None, count: int) -> list[StoredSession]:
        """Get the sessions that exist already because the same request was sent before.

        If the first of them is closed, none count: to create them again leaves the others as they are.

        Raises:
            CallIdReusedError: Its call_id was sent with another request.
        """
        if creation is None:
            return []
        store, beginning = self._context.store, creation.beginning
        try:
            found = store.list(SessionQuery(owner, {}, beginning, 1))
        except OverloadedError:  # another part of the store may be away than the one in which the session would be
            found = [(session, head.version) for session, head in filter(None, [store.get(creation.new_id(0))])]
        first = [session for session, _ in found if session.id.startswith(beginning)]
        if not all(creation.made(session.id) for session in first):
            raise CallIdReusedError(creation.call_id)
        others = (store.get(creation.new_id(number)) for number in range(1, count if first else 1))
        created = first + [found[0] for found in others if found]
        for session in created:
            self._context.identities.check(session)
        return created

    def _added(self, sessions: Sequence[StoredSession], creation: Creation | None) -> Sequence[StoredSession]:
        """Get sessions that are stored now, perhaps by the same request that was sent twice.

        Raises:
            CallIdReusedError: The request was sent before, and its sessions are closed but kept for their forks.
        """
        if creation is None:
            return sessions
        created = self.created(sessions[0].owner, creation, len(sessions))
        if not created:
            raise CallIdReusedError(creation.call_id, "was used for a session that is closed, but has forks")
        return created

    def _sessions(self, template: StoredSession, count: int, creation: Creation | None) -> list[StoredSession]:
        """Make sessions that differ in their ids and agent keys only."""
        now = self._clock.now()
        sessions = []
        for number in range(count):
            new_id = creation.new_id(number) if creation else secrets.token_hex(DIGITS // 2)
            session = replace(
                template,
                id=in_family(new_id, family_of(template.parent.session_id)) if template.parent else new_id,
                created_at=now + self._clock.uncounted + number * _APART_SECONDS,
                expires_at=expiry(template.ttl_seconds, now),
            )
            sessions.append(replace(session, agent_key=self._context.identities.agent_key(session)))
        return sessions

    def _check_reply(self, fork: StoredSession, count: int) -> None:
        size, most = len(dumps(self._view(fork))) + 2 * DIGITS, self._context.settings.max_list_bytes
        if count > 1 and count * size > most:
            raise TooLargeError(
                f"The answer would have {count * size} bytes; {most} are allowed: ask for {max(most // size, 1)} forks "
                "at a time, or give them smaller labels."
            )

    def _check_quota(self, owner: str, more: int) -> None:
        """Check that an owner may have more sessions.

        They are counted every second, and whenever this worker has added its share, and estimated in between.
        """
        allowed = self._context.settings.max_sessions
        count, at, counted = self._counts.get(owner, (0, 0.0, 0))
        own = count - counted > max(allowed * OWN_SHARE, OWN_SESSIONS)
        if own or time.monotonic() - at > RECOUNT_SECONDS:
            count, at = self._context.store.count(owner), time.monotonic()
            counted = count
        if count + more > allowed:
            raise TooLargeError(f"This owner has {count} sessions; {allowed} are allowed: close some first.")
        self._counts[owner] = count + more, at, counted

    def _view(self, session: StoredSession, version: int = 0) -> Session:
        """Describe a session as it was when it was created."""
        return self._context.session_views.of(session, version, called_at=session.created_at)
