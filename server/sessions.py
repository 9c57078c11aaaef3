"""Sessions: made, looked at, forked, closed; and the way in for calls on them.

The rule: whatever blocks or runs a toolpack's code is done in a thread, with a deadline; the event loop only waits.
What is read is what is committed.
"""

import asyncio
import contextlib
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from server.calls import CallJob, CallRequest, ResetJob, Tools, expiry
from server.catalog import Catalog
from server.errors import (
    ClassesChangedError,
    DeadlineError,
    InvalidParamsError,
    OverloadedError,
    RequestError,
    SessionNotFoundError,
    VersionNotRetainedError,
)
from server.execution import Outcome, SessionRuntime
from server.jobs import InternalError, Task
from server.mailboxes import Mailboxes
from server.reading import SessionReader, described
from server.settings import Settings
from server.stores import MissingBlobError, Session, SessionStore
from server.world import Codec, InitialEnvironments

T = TypeVar("T")

SWEEP_SECONDS = 1.0
PING_SECONDS = 1.0
RECOUNT_SECONDS = 1.0
SWEEP_AT_ONCE = 200
INITIAL_BYTES = 64 * 2**20
AGENTS_REMEMBERED = 100_000


class SessionManager:
    """All that can be done with sessions.

    An `owner` is the name whose token a request carries, "" where there are no tokens; nobody sees another's sessions,
    and None, for what the server itself asks, sees all.

    Args:
        catalog: The loaded toolpacks.
        store: Where sessions are kept.
        settings: Limits and defaults.
        key: The key of the hash on stored snapshots.
    """

    def __init__(self, catalog: Catalog, store: SessionStore, settings: Settings, key: bytes) -> None:
        self.catalog = catalog
        self.store = store
        self._settings = settings
        self._codec = Codec(catalog, key, settings.max_environment_bytes)
        self._runtimes: dict[tuple[str, ...], SessionRuntime] = {}
        self._agents: dict[str, str] = {}
        self._counts: dict[str, tuple[int, float]] = {}
        self._tools = Tools(
            store=store,
            codec=self._codec,
            initial=InitialEnvironments(self._codec, INITIAL_BYTES),
            runtime=self._runtime,
            timeout_seconds=settings.timeout_seconds,
            max_result_bytes=settings.max_result_bytes,
        )
        self.mailboxes = Mailboxes(store, settings)
        self.reader = SessionReader(store, self._codec, self.mailboxes.cache)

    # Calls

    async def run_function(self, session_id: str, owner: str | None, request: CallRequest) -> Outcome:
        """Run a function in a session.

        Raises:
            RequestError: It was refused, and nothing has changed.
        """
        job = CallJob(self.mailboxes, self._tools, session_id, owner, request)
        self.mailboxes.submit(job)
        outcome: Outcome = await job.future
        return outcome

    async def reset(self, session_id: str, owner: str, version: int) -> dict[str, Any]:
        """Commit a new version with the content of an older one."""
        job = ResetJob(self.mailboxes, self._tools, session_id, owner, version)
        self.mailboxes.submit(job)
        await job.future
        return await self.read(lambda reader: reader.describe(session_id, owner))

    def _runtime(self, toolpacks: tuple[str, ...]) -> SessionRuntime:
        runtime = self._runtimes.get(toolpacks)
        if runtime is None:
            missing = [name for name in toolpacks if name not in self.catalog.toolpacks]
            if missing:
                raise ClassesChangedError(
                    f"The session's toolpack {missing[0]!r} is not loaded any more: load it, or close the session."
                )
            runtime = self._runtimes[toolpacks] = SessionRuntime(self.catalog.functions(toolpacks))
        return runtime

    def is_idle(self) -> bool:
        """Whether no session has anything to do."""
        return self.mailboxes.is_idle()

    def load(self) -> tuple[int, int, int]:
        """Count the calls that wait, the stuck threads, and the sessions that are remembered."""
        return self.mailboxes.waiting, self.stuck_threads(), len(self.mailboxes.cache)

    async def count(self) -> int:
        """Count the sessions in the store, everybody's."""
        return await self._do(self.store.count)

    def stuck_threads(self) -> int:
        """Count the threads that are still in a function that was given up."""
        return self.mailboxes.threads.stuck_threads()

    async def drain(self) -> None:
        """Wait until nothing runs any more, for as long as the settings allow, and stop the threads."""
        deadline = time.monotonic() + self._settings.drain_seconds
        while not self.mailboxes.is_idle() and time.monotonic() < deadline:  # noqa: ASYNC110 - threads end it
            await asyncio.sleep(0.01)
        self.mailboxes.stop()

    async def is_store_reachable(self) -> bool:
        """Whether the store answers."""
        try:
            await asyncio.wait_for(self._do(self.store.ping), PING_SECONDS)
        except Exception:  # noqa: BLE001 - whatever it is, the store doesn't answer
            return False
        return True

    # Making and ending sessions

    async def create(
        self,
        owner: str,
        toolpacks: Sequence[str] | None,
        options: Mapping[str, Any],
        environment: Mapping[str, Any],
        ttl_seconds: float | None,
        labels: Mapping[str, str],
    ) -> dict[str, Any]:
        """Create a session."""
        chosen = self.catalog.choose(toolpacks)
        for given in [*options, *environment]:
            if given not in chosen:
                raise InvalidParamsError(
                    f"Toolpack {given!r} is not among the session's: {', '.join(chosen) or 'none'}."
                )
        both = options.keys() & environment.keys()
        if both:
            raise InvalidParamsError(f"Toolpack {min(both)!r} has options and an environment: give one of them.")

        def create() -> dict[str, Any]:
            self._check_quota(owner, 1)
            parts, blobs = self._tools.initial_parts(chosen, options, environment)
            session = self._new_session(owner, chosen, options, environment, labels, ttl_seconds)
            try:
                # Most often the blobs are there already, and needn't be sent.
                self.store.create([session], parts, {} if not environment else blobs)
            except MissingBlobError:
                self.store.create([session], parts, blobs)
            return described(session, 0)

        return await self._do(create)

    async def fork(
        self,
        session_id: str,
        owner: str,
        version: int | None,
        count: int,
        labels: Mapping[str, str] | None,
        ttl_seconds: float | None,
    ) -> list[dict[str, Any]]:
        """Create sessions that start from a version of this one."""

        def fork() -> list[dict[str, Any]]:
            parent, head = self.reader.find(session_id, owner)
            at = head.version if version is None else version
            parts = self.reader.parts(session_id, head, at)
            self._check_quota(parent.owner, count)
            forks = [
                self._new_session(
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
                self.store.create(forks, parts, {})
            except MissingBlobError:  # trimmed in between
                raise VersionNotRetainedError(at, self.reader.find(session_id, owner)[1].version) from None
            return [described(session, 0) for session in forks]

        return await self._do(fork)

    def _check_quota(self, owner: str, more: int) -> None:
        """See that an owner may have more sessions; they are counted anew every second, and guessed in between."""
        count, at = self._counts.get(owner, (0, 0.0))
        if time.monotonic() - at > RECOUNT_SECONDS:
            count, at = self.store.count(owner), time.monotonic()
        if count + more > self._settings.max_sessions:
            raise OverloadedError(
                f"This name has {count} sessions; {self._settings.max_sessions} are allowed: close some first.",
                RECOUNT_SECONDS,
            )
        self._counts[owner] = count + more, at

    def _new_session(
        self,
        owner: str,
        toolpacks: tuple[str, ...],
        options: Mapping[str, Any],
        environment: Mapping[str, Any],
        labels: Mapping[str, str],
        ttl_seconds: float | None,
        parent: tuple[str, int] | None = None,
    ) -> Session:
        now = time.time()
        ttl = self._settings.ttl_seconds if ttl_seconds is None else ttl_seconds
        return Session(
            id=secrets.token_hex(16),
            agent_key=secrets.token_hex(16),
            owner=owner,
            toolpacks=toolpacks,
            options=options,
            environment=environment,
            labels=labels,
            ttl_seconds=ttl,
            created_at=now,
            expires_at=expiry(ttl, now),
            parent=parent,
        )

    async def close(self, session_id: str, owner: str) -> None:
        """Close a session and forget all of it."""

        def close() -> None:
            self.reader.find(session_id, owner)
            self._delete([session_id])

        await self._do(close)

    async def close_all(self, owner: str, labels: Mapping[str, str]) -> int:
        """Close the owner's sessions that carry all these labels, and say how many they were."""

        def close_some() -> int:
            found = self.store.list(owner, labels, "", SWEEP_AT_ONCE)
            return self._delete([session.id for session, _ in found])

        closed = 0
        while some := await self._do(close_some):
            closed += some
        return closed

    def _delete(self, session_ids: list[str]) -> int:
        deleted = self.store.delete(session_ids)
        self.mailboxes.drop(session_ids)
        return deleted

    async def sweep(self) -> None:
        """Delete expired sessions, now and then, for ever."""

        def sweep_some() -> int:
            expired = self.store.expired(time.time(), SWEEP_AT_ONCE)
            return self._delete(list(expired)) if expired else 0

        while True:
            # What went wrong is logged; the next round makes up for it.
            with contextlib.suppress(InternalError, RequestError):
                while await self._do(sweep_some) == SWEEP_AT_ONCE:
                    pass
            await asyncio.sleep(SWEEP_SECONDS)

    # Looking at sessions

    async def read(self, read: Callable[[SessionReader], T]) -> T:
        """Read sessions, in a thread: `await sessions.read(lambda reader: reader.describe(session_id, owner))`."""
        return await self._do(lambda: read(self.reader))

    async def toolpacks(self, session_id: str, owner: str | None) -> tuple[str, ...]:
        """Get the names of a session's toolpacks, all of which are loaded."""
        session, _ = await self._do(lambda: self.reader.find(session_id, owner))
        self._runtime(session.toolpacks)
        return session.toolpacks

    async def agent_session(self, agent_key: str) -> str:
        """Get the id of the session that an agent's key opens."""
        session_id = self._agents.get(agent_key)
        if session_id is None:
            session_id = await self._do(lambda: self.store.find_agent(agent_key))
            if session_id is None:
                raise SessionNotFoundError
            if len(self._agents) >= AGENTS_REMEMBERED:
                self._agents.clear()
            self._agents[agent_key] = session_id
        return session_id

    async def _do(self, work: Callable[[], T]) -> T:
        errand = _Errand(work, self._settings.timeout_seconds)
        self.mailboxes.threads.submit(errand)
        answer: T = await errand.future
        return answer


class _Errand(Task):
    """Work on the store or on an environment that needs no turn in a mailbox."""

    def __init__(self, work: Callable[[], Any], timeout: float) -> None:
        super().__init__()
        self._work = work
        self._timeout = timeout

    def work(self) -> None:
        self.deadline = time.monotonic() + self._timeout
        self.answer = self._work()

    def overrun(self) -> None:
        self.error = DeadlineError(f"The request took longer than {self._timeout:g} s and was given up.")
