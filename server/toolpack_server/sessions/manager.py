"""Manager of all sessions: the interface that JSON-RPC methods and features use.

Its coroutines run blocking work and toolpacks' code in threads, with a deadline. Reads return only committed data.
"""

import asyncio
import contextlib
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any, TypeVar, cast

from toolpack_server.base.errors import (
    DeadlineError,
    HeavyReadError,
    InternalError,
    RequestError,
    SessionNotFoundError,
)
from toolpack_server.engine.batcher import Batcher
from toolpack_server.engine.commits import Measure
from toolpack_server.engine.jobs import NOTHING_CHANGED, ThreadJob
from toolpack_server.engine.queues import Queues
from toolpack_server.execution.call import Outcome
from toolpack_server.observability.tracing import Tracer
from toolpack_server.protocol.parameters import ForkRequest, SessionRequest
from toolpack_server.protocol.results import Session
from toolpack_server.sessions.addresses import Address, compose_views
from toolpack_server.sessions.call_observer import CallObserver
from toolpack_server.sessions.calls import CallOperation, CallRequest, CancelCallOperation
from toolpack_server.sessions.context import SessionContext
from toolpack_server.sessions.factory import ForkSource, NewSession, SessionFactory
from toolpack_server.sessions.hooks import Watcher
from toolpack_server.sessions.identity import Creation
from toolpack_server.sessions.operation import OperationHook, SessionOperation
from toolpack_server.sessions.reader import SessionReader
from toolpack_server.sessions.recipes import Recipe
from toolpack_server.sessions.resets import ResetOperation
from toolpack_server.stores.base import Head, SessionQuery, StoredSession

T = TypeVar("T")

SWEEP_SECONDS = 1.0
PING_SECONDS = 1.0
MAY_BE_CLOSED = "the session may still be closed"
SWEEP_BATCH = 200  # number of sessions that are deleted in one transaction
MAX_CACHED_AGENTS = 100_000
HEAVY_BYTES = 256 * 1024  # reading a snapshot of this size takes about 10 ms


class SessionManager:
    """Operations on all sessions of the server.

    An `owner` is the name of the request's token, or "" if the server has no tokens. An owner can access only its own
    sessions. The server itself and the code for agents' addresses pass None, which allows access to all sessions.

    Attributes:
        queues: The queues that run operations.
        factory: The factory of sessions.
        heavy_reader: A reader without a size limit, for work that runs in `compute`.
        watchers: Features' observers of changes to sessions.
        tracer: The tracer of calls. None if no feature provides a tracer.
    """

    def __init__(self, context: SessionContext, observer: CallObserver, measure: Measure) -> None:
        self.catalog = context.catalog
        self._context = context
        self._observer = observer
        self._store = context.store
        self._settings = context.settings
        self._agents: dict[str, tuple[str, str, str]] = {}  # the results of `agent_session`, by key
        self._agent_keys: dict[str, list[str]] = {}  # for each session, its keys in `_agents`
        self.queues = Queues(context.store, context.settings, measure, context.runner.capacity)
        cache, clock = self.queues.cache, self.queues.clock
        self._reader = SessionReader(context, cache, clock, HEAVY_BYTES)
        self.heavy_reader = SessionReader(context, cache, clock)
        self.factory = SessionFactory(context, cache, clock)
        seconds, do = context.settings.timeout_seconds, self.queues.do
        self._created = {
            repeatable: Batcher(do, self.factory.create_batch, seconds, may_be_created(repeatable=repeatable))
            for repeatable in (False, True)
        }
        self._closed = Batcher(do, self._close_batch, seconds, MAY_BE_CLOSED)
        self.watchers: list[Watcher] = []
        self.tracer: Tracer | None = None

    # Creating sessions

    async def create(
        self,
        owner: str,
        request: SessionRequest,
        creation: Creation | None = None,
        details: Mapping[str, Any] = MappingProxyType({}),
    ) -> Session:
        """Create a session. For a request with the call_id of an earlier request, return the earlier session.

        Args:
            owner: The owner of the session.
            request: The request.
            creation: The client's request, if `request` was derived from it. `request` then has no call_id.
            details: Data for the session's details, besides the data of features.

        Raises:
            InvalidParamsError: Toolpacks, options or environment are invalid.
        """
        repeatable = (creation or request.call_id) is not None
        effect_text = may_be_created(repeatable=repeatable)

        def prepare() -> NewSession:
            return self.factory.prepare(owner, request, details, creation or self._creation(owner, request))

        def prepare_and_create() -> Session:
            new = prepare()
            job.begin_change(effect_text)
            return self.factory.create(new)

        if not self.factory.is_quick_to_prepare(request):
            job = ThreadJob(prepare_and_create, self._settings.timeout_seconds, "authors", "create", owner)
            return cast("Session", await self.queues.do(job))
        new = prepare()
        if not new.has_default_environments:
            return await self.run_authors(lambda: self.factory.create(new), owner, "create", effect_text=effect_text)
        # The environments are usually cached, so creating the session is quick. Otherwise, building them can take long.
        if all(map(self._context.initial.has, new.request.toolpacks or ())):
            return cast("Session", await self._created[repeatable].do(new))
        return await self._do(lambda: self.factory.create(new), effect_text)

    async def fork(
        self,
        owner: str,
        request: ForkRequest,
        creation: Creation | None = None,
        *,
        again: Mapping[str, Any] | None = None,
    ) -> list[Session]:
        """Create forks of a version. For a request with the call_id of an earlier request, return the earlier forks.

        Args:
            owner: The owner of the session.
            request: The request.
            creation: The client's request, if `request` was derived from it. `request` then has no call_id.
            again: See `SessionFactory.fork`.
        """
        creation = creation or self._creation(owner, request)

        effect_text = may_be_created(repeatable=creation is not None)
        fork = partial(self.factory.fork, self.heavy_reader, request=request, creation=creation, again=again)

        def fork_small() -> list[Session] | ForkSource:
            """Create the forks, or return their source if it is too large for a quick thread."""
            earlier = self.factory.earlier_forks(owner, creation, request)
            if earlier:
                return earlier
            source = self.factory.fork_source(self._reader, owner, request)
            return source if source.snapshot is None else fork(source)

        forks = await self._do(fork_small, effect_text)
        if isinstance(forks, ForkSource):
            return await self.compute(partial(fork, forks), owner, "fork", effect_text)
        return forks

    def _creation(self, owner: str, request: SessionRequest | ForkRequest) -> Creation | None:
        """Return a request in its repeatable form, or None if it has no call_id."""
        if request.call_id is None:
            return None
        parameters = request.model_dump(exclude={"call_id"})
        return self._context.identities.creation(owner, request.call_id, [type(request).__name__, parameters])

    # Operations, which wait in a queue

    async def call(self, session_id: str, owner: str, request: CallRequest) -> Outcome:
        """Run a function in a session, and count, log and trace the call.

        Raises:
            RequestError: The call was refused, and nothing has changed.
        """
        began = time.perf_counter()
        tracer, trace = self.tracer, None
        if tracer is not None:
            trace = tracer.begin(session_id, request.function, request.sent)
        operation = CallOperation(self._context, session_id, owner, request)
        operation.trace = trace
        outcome: Outcome | None = None
        try:
            outcome = await self.run(operation)
        finally:
            ended = self._observer.ended(session_id, owner, request, outcome, time.perf_counter() - began)
            if tracer is not None and trace is not None:
                tracer.end(trace, ended.outcome, ended.result, sys.exception() if outcome is None else None)
        return outcome

    def unfinished(self, session: StoredSession, head: Head) -> list[SessionOperation]:
        """Return operations that run the pending consequences of a session's last call, such as events.

        Usually the list is empty. Consequences are pending if the server was too busy to run them, or if this worker
        hasn't checked the session's conditions yet. An evaluation runs these operations first, so it also waits for a
        running call. Call this method in a thread, because hooks can read the store.
        """
        hooks = (hook for hook in self._context.operation_hooks if isinstance(hook, OperationHook))
        operations = (hook.unfinished(session, head) for hook in hooks if hook.concerns(session))
        return [operation for operation in operations if operation is not None]

    async def cancel_call(self, session_id: str, owner: str, request: CallRequest) -> None:
        """Record a call with a call_id as cancelled, unless the call is already committed.

        The caller must ensure that this worker isn't running the call any more.

        Raises:
            RequestError: The request was refused, and nothing has changed.
        """
        await self.run(CancelCallOperation(self._context, session_id, owner, request))

    async def run(self, operation: SessionOperation) -> Any:
        """Run an operation, and return its answer.

        If the caller cancels the coroutine before the commit, the operation changes nothing and has no record.

        Raises:
            RequestError: The operation was refused, and nothing has changed.
        """
        try:
            return await self.queues.run(operation)
        except asyncio.CancelledError:
            # The operation, or events that follow from it, might still be committed. The watchers are notified then.
            operation.on_unheard = partial(self._notify_of, operation)
            self.queues.cancel(operation)
            raise
        except SessionNotFoundError:
            self._forget_agent(operation.session_id)
            raise
        finally:
            if operation.is_told:
                self._notify([operation.session_id])

    def _notify_of(self, operation: SessionOperation) -> None:
        """Notify the watchers after an operation, unless its class excludes that."""
        if operation.is_told:
            self._notify([operation.session_id])

    def _notify(self, session_ids: Iterable[str]) -> None:
        """Notify the watchers that these sessions have changed."""
        for watcher in self.watchers:
            for session_id in session_ids:
                watcher.changed(session_id)

    async def reset(self, session_id: str, owner: str, version: int, call_id: str | None) -> Session:
        """Reset a session to a version, and describe it."""
        reset = await self.run(ResetOperation(self._context, session_id, owner, version, call_id))
        return await self.read(lambda reader: reader.describe(session_id, owner, version=reset))

    # Reading sessions

    async def read(self, read: Callable[[SessionReader], T], owner: str = "", effect_text: str = NOTHING_CHANGED) -> T:
        """Read sessions in a thread: `await sessions.read(lambda reader: reader.describe(session_id, owner), owner)`.

        If `read` raises a `HeavyReadError`, it runs again in `compute`, with a reader without a size limit. At most two
        heavy reads run at once, and at most one per owner. Owners take turns.
        """
        try:
            return await self._do(lambda: read(self._reader), effect_text)
        except HeavyReadError:
            return await self.compute(lambda: read(self.heavy_reader), owner, "read", effect_text)

    async def compute(self, work: Callable[[], T], owner: str, kind: str, effect_text: str = NOTHING_CHANGED) -> T:
        """Run CPU-bound work of the server in a thread, and return its result.

        Args:
            work: The work.
            owner: The owner of the request. Owners take turns.
            kind: Label that groups work of similar duration, used to predict how long such work takes.
            effect_text: End of the error message if the work misses its deadline, such as "nothing has changed".
        """
        job = ThreadJob(work, self._settings.timeout_seconds, "reads", kind, owner, effect_text=effect_text)
        return cast("T", await self.queues.do(job))

    async def run_authors(
        self,
        work: Callable[[], T],
        owner: str,
        kind: str,
        timeout_seconds: float | None = None,
        effect_text: str = NOTHING_CHANGED,
    ) -> T:
        """Run code of a toolpack that isn't a function, such as an evaluator, in a thread, and return its result.

        Args:
            work: The work.
            owner: The owner of the request. Owners take turns.
            kind: Label that groups work of similar duration, used to predict how long such work takes.
            timeout_seconds: Deadline of the work in seconds. Default: the deadline of a call.
            effect_text: End of the error message if the work misses its deadline, such as "nothing has changed".
        """
        seconds = self._settings.timeout_seconds if timeout_seconds is None else timeout_seconds
        job = ThreadJob(work, seconds, "authors", kind, owner, effect_text)
        return cast("T", await self.queues.do(job))

    async def toolpacks(self, session_id: str, owner: str | None, *, renew: bool = True) -> tuple[str, ...]:
        """Return the names of a session's toolpacks.

        Args:
            session_id: The session.
            owner: The owner.
            renew: Whether to extend the session's expiry.

        Raises:
            ClassesChangedError: A toolpack is no longer loaded.
        """
        try:
            session, _ = await self.read(lambda reader: reader.find(session_id, owner, renew=renew))
        except SessionNotFoundError:
            self._forget_agent(session_id)
            raise
        toolpacks = Recipe.of(session).toolpacks
        self._context.runtime(toolpacks)
        return toolpacks

    async def agent_session(self, agent_key: str) -> tuple[str, str, str]:
        """Return the result of `SessionReader.agent_session`. A cache makes repeated requests fast."""
        entry = self._agents.get(agent_key)
        if entry is None:
            entry = await self.read(lambda reader: reader.agent_session(agent_key))
            if len(self._agents) >= MAX_CACHED_AGENTS:  # the cache is rarely full, so clearing it is good enough
                self._agents.clear()
                self._agent_keys.clear()
            self._agents[agent_key] = entry
            self._agent_keys.setdefault(entry[0], []).append(agent_key)
        return entry

    async def address(self, session_id: str, owner: str, name: str, *, renew: bool = True) -> Address:
        """Return an address of a session, for a request to that address.

        Args:
            session_id: The session.
            owner: The owner.
            name: The name of the address.
            renew: Whether to extend the session's expiry.

        Raises:
            DeadlineError: A task's loader took too long. The message doesn't name the loader, because agents get it.
        """
        session, head = await self.read(lambda reader: reader.find(session_id, owner, renew=renew))
        addresses = self._context.addresses
        if addresses.is_plain(session):
            address = addresses.of(session, name)
        else:
            try:
                address = await self.run_authors(lambda: addresses.of(session, name), session.owner, "address")
            except DeadlineError:
                raise DeadlineError(SessionOperation.late.format(self._settings.timeout_seconds)) from None
        if session.details:
            views = await self.read(lambda _: [hook.view(session, head, name) for hook in addresses.hooks])
            address = replace(address, view=compose_views([view for view in views if view is not None]))
        return address

    def _forget_agent(self, session_id: str) -> None:
        """Remove the keys of a session from the cache of `agent_session`."""
        for agent_key in self._agent_keys.pop(session_id, ()):
            self._agents.pop(agent_key, None)

    # Ending sessions

    async def close(self, session_id: str, owner: str) -> None:
        """Close a session.

        Raises:
            SessionNotFoundError: The owner has no such session.
        """
        await self._closed.do((session_id, owner))
        self._notify([session_id])

    def _close_batch(self, requests: Sequence[tuple[str, str]]) -> list[SessionNotFoundError | None]:
        """Close sessions in one transaction.

        Each request is a session's id and owner. Return an error for each request whose owner has no such session.
        """
        owners = {session_id: self._owner(session_id) for session_id, _ in requests}
        closed = {*self._delete([session_id for session_id, owner in {*requests} if owners[session_id] == owner])}
        answers: list[SessionNotFoundError | None] = []
        for session_id, owner in requests:
            if owners[session_id] == owner and session_id in closed:
                closed.remove(session_id)  # another request for this session in the batch must fail
                answers.append(None)
            else:
                answers.append(SessionNotFoundError())
        return answers

    def _owner(self, session_id: str) -> str | None:
        """Return a session's owner, which never changes, or None if the session doesn't exist."""
        state = self.queues.cache.get(session_id)
        if state is not None:
            return state.session.owner
        # `SessionReader.find` would refuse a session that was changed in the store, but such a session can be closed.
        entry = self._store.get(session_id)
        return entry and entry[0].owner

    async def close_all(self, owner: str, labels: Mapping[str, str]) -> int:
        """Close all sessions of an owner with these labels, and return the number of closed sessions."""

        def close_some() -> Sequence[str]:
            entries = self._store.list(SessionQuery(owner, labels, "", SWEEP_BATCH))
            return self._delete([session.id for session, _ in entries])

        count = 0
        while closed := await self._do(close_some, "sessions may still be closed"):
            self._notify(closed)
            count += len(closed)
        return count

    async def sweep(self) -> None:
        """Delete expired sessions, and the remaining data of closed sessions, every second until cancelled.

        Sessions expire only here, according to the store's time.
        """

        def sweep_some() -> Sequence[str]:
            """Delete some expired sessions, and return their ids."""
            counted = self._store.count_time()
            self.queues.clock.look(counted)
            expired = self._store.delete_expired(counted.now, SWEEP_BATCH, self.queues.busy())
            self.queues.forget(expired)
            self._store.clean_up()
            return expired

        with contextlib.suppress(InternalError, RequestError):  # the store might be unavailable
            await self._do(self.heavy_reader.check_key)
        while True:
            # The failure is logged elsewhere, and the next round tries again.
            with contextlib.suppress(InternalError, RequestError):
                while expired := await self._do(sweep_some):
                    self._notify(expired)
            await asyncio.sleep(SWEEP_SECONDS)

    def _delete(self, session_ids: list[str]) -> Sequence[str]:
        """Delete sessions from the store and from the caches. Return the ids of the sessions that existed."""
        deleted = self._store.delete(session_ids)
        self.queues.forget(session_ids)
        for session_id in session_ids:
            self._forget_agent(session_id)
        return deleted

    # The worker as a whole

    async def count(self, owner: str | None = None) -> int:
        """Return the number of an owner's sessions, or of all sessions."""
        return await self._do(lambda: self._store.count(owner))

    async def ping_store(self) -> tuple[bool, str]:
        """Return whether the server can write to the store now, and if not, the reason."""
        try:
            await asyncio.wait_for(self._do(self._store.ping), PING_SECONDS)
        except RequestError as error:
            return False, str(error)
        except Exception:  # noqa: BLE001 - after any other error, the store doesn't answer
            return False, "The store doesn't answer."
        return True, ""

    def load(self) -> tuple[int, int, int]:
        """Return this worker's load: the numbers of waiting calls, of stuck threads, and of sessions in the cache."""
        return self.queues.waiting(), self.queues.threads.stuck_threads(), len(self.queues.cache)

    def begin_draining(self) -> None:
        """Make the watchers end all waits for events. Running work continues."""
        for watcher in self.watchers:
            watcher.draining()

    async def drain(self) -> None:
        """Wait until all work has ended, for at most the setting `drain_seconds`, then stop the threads."""
        self.begin_draining()
        deadline = time.monotonic() + self._settings.drain_seconds
        while not self.queues.is_idle() and time.monotonic() < deadline:  # noqa: ASYNC110 - threads end it
            await asyncio.sleep(0.01)
        self.queues.stop()

    async def _do(self, work: Callable[[], T], effect_text: str = NOTHING_CHANGED) -> T:
        """Run quick work that can block in a thread, and return its result. See `compute` for `effect_text`."""
        return cast("T", await self.queues.do(ThreadJob(work, self._settings.timeout_seconds, effect_text=effect_text)))


def may_be_created(*, repeatable: bool) -> str:
    """Return the end of the error message for a request to create a session that missed its deadline.

    Args:
        repeatable: Whether the request has a call_id.
    """
    advice = ": send the request again, with its call_id" if repeatable else ""
    return f"a session may still be created{advice}"
