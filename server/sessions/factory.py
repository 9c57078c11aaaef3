"""New sessions: created from toolpacks or forked from a version of another session.

The rule: a new session costs a row and references to blobs; an owner never has more sessions than allowed.
"""

import secrets
import time
from collections.abc import Mapping
from typing import Any

from server.errors import MissingBlobError, OverloadedError, VersionNotRetainedError
from server.results import Session
from server.sessions.context import SessionContext
from server.sessions.reader import SessionReader
from server.sessions.views import session_view
from server.stores.base import StoredSession
from server.stores.rows import dump
from server.times import expiry

RECOUNT_SECONDS = 1.0


class SessionFactory:
    """Creates sessions. Its methods block, so they are called in threads only.

    Args:
        context: What sessions work with.
        reader: Finds the session to fork.
    """

    def __init__(self, context: SessionContext, reader: SessionReader) -> None:
        self._context = context
        self._reader = reader
        self._counts: dict[str, tuple[int, float]] = {}

    def create(
        self,
        owner: str,
        toolpacks: tuple[str, ...],
        options: Mapping[str, Any],
        environment: Mapping[str, Any],
        labels: Mapping[str, str],
        ttl_seconds: float | None,
    ) -> Session:
        """Create a session; see `rpc.parameters.CreateSession`."""
        self._check_quota(owner, 1)
        store = self._context.store
        parts, blobs = self._context.initial_parts(toolpacks, options, environment)
        ttl = self._context.settings.ttl_seconds if ttl_seconds is None else ttl_seconds
        recipe_bytes = len(dump([options, environment, labels]))
        self._context.room.check_name(owner, recipe_bytes + (sum(map(len, blobs.values())) if environment else 0))
        session = self._new(owner, toolpacks, options, environment, labels, ttl, None)
        try:
            # Most often the blobs are in the store already, and needn't be sent.
            store.create([session], parts, {} if not environment else blobs)
        except MissingBlobError:
            store.create([session], parts, blobs)
        return session_view(session, 0, called_at=session.created_at)

    def fork(
        self,
        session_id: str,
        owner: str,
        version: int | None,
        count: int,
        labels: Mapping[str, str] | None,
        ttl_seconds: float | None,
    ) -> list[Session]:
        """Create sessions that start from a version of another; see `rpc.parameters.ForkSession`."""
        parent, head = self._reader.find(session_id, owner)
        at = head.version if version is None else version
        parts = self._reader.parts(session_id, head, at)
        self._check_quota(parent.owner, count)
        self._context.room.check_name(parent.owner, count * len(dump(parent.labels if labels is None else labels)))
        forks = [
            self._new(
                parent.owner,
                parent.toolpacks,
                parent.options,
                parent.environment,
                parent.labels if labels is None else labels,
                parent.ttl_seconds if ttl_seconds is None else ttl_seconds,
                (parent.id, at),
            )
            for _ in range(count)
        ]
        try:
            self._context.store.create(forks, parts, {})
        except MissingBlobError:  # trimmed in between
            raise VersionNotRetainedError(at, self._reader.find(session_id, owner)[1].version) from None
        return [session_view(session, 0, called_at=session.created_at) for session in forks]

    @staticmethod
    def _new(
        owner: str,
        toolpacks: tuple[str, ...],
        options: Mapping[str, Any],
        environment: Mapping[str, Any],
        labels: Mapping[str, str],
        ttl_seconds: float,
        parent: tuple[str, int] | None,
    ) -> StoredSession:
        now = time.time()
        return StoredSession(
            id=secrets.token_hex(16),
            agent_key=secrets.token_hex(16),
            owner=owner,
            toolpacks=toolpacks,
            options=options,
            environment=environment,
            labels=labels,
            ttl_seconds=ttl_seconds,
            created_at=now,
            expires_at=expiry(ttl_seconds, now),
            parent=parent,
        )

    def _check_quota(self, owner: str, more: int) -> None:
        """Check that an owner may have more sessions; they are counted every second, and estimated in between."""
        allowed = self._context.settings.max_sessions
        count, at = self._counts.get(owner, (0, 0.0))
        if time.monotonic() - at > RECOUNT_SECONDS:
            count, at = self._context.store.count(owner), time.monotonic()
        if count + more > allowed:
            raise OverloadedError(
                f"This name has {count} sessions; {allowed} are allowed: close some first.", RECOUNT_SECONDS
            )
        self._counts[owner] = count + more, at
