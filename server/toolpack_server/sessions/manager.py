"""All that can be done with sessions, for the methods of JSON-RPC to call.

Whatever blocks or runs a toolpack's code is done in a thread, with a deadline; the event loop only waits.
What is read is what is committed.
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
from toolpack_server.sessions.addresses import Address
from toolpack_server.sessions.call_observer import CallObserver
from toolpack_server.sessions.calls import CallOperation, CallRequest
from toolpack_server.sessions.context import SessionContext
from toolpack_server.sessions.factory import ForkSource, NewSession, SessionFactory
from toolpack_server.sessions.hooks import Watcher
from toolpack_server.sessions.identity import Creation
from toolpack_server.sessions.operation import SessionOperation
from toolpack_server.sessions.reader import SessionReader
from toolpack_server.sessions.recipes import Recipe
from toolpack_server.sessions.resets import ResetOperation
from toolpack_server.stores.base import SessionQuery

T = TypeVar("T")

SWEEP_SECONDS = 1.0
PING_SECONDS = 1.0
MAY_BE_CLOSED = "the session may still be closed"
SWEEP_AT_ONCE = 200
AGENTS_REMEMBERED = 100_000
HEAVY_BYTES = 256 * 1024  # of snapshots: to read them takes about 10 ms


class SessionManager:
    """All that can be done with sessions.

    An `owner` is the name whose token a request carries, "" if there are no tokens. Nobody sees another owner's
    sessions. None, for the server itself and an agent's address, sees all.

    Attributes:
        tracer: Of the feature that traces calls, if there is one.
    """

    def __init__(self, context: SessionContext, observer: CallObserver, measure: Measure) -> None:
        self.catalog = context.catalog
        self._context = context
        self._observer = observer
        self._store = context.store
        self._settings = context.settings
        self._agents: dict[str, tuple[str, str, str]] = {}
        self._agent_keys: dict[str, list[str]] = {}  # by session, of those in `_agents`
        self.queues = Queues(context.store, context.settings, measure, context.runner.places)
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
        """Create a session; with the call_id of an earlier request, get the session that it has created.

        Args:
            creation: Made from the client's request, if that isn't this one; then this one has no call_id.
            details: What is kept with the session besides what features keep.

        Raises:
            InvalidParamsError: Toolpacks, options or environment don't fit.
        """
        repeatable = (creation or request.call_id) is not None
        known = may_be_created(repeatable=repeatable)

        def prepared() -> NewSession:
            return self.factory.prepared(owner, request, details, creation or self._creation(owner, request))

        def prepare_and_create() -> Session:
            new = prepared()
            errand.begin_change(known)
            return self.factory.create(new)

        if not self.factory.is_brief(request):
            errand = ThreadJob(prepare_and_create, self._settings.timeout_seconds, "authors", "create", owner)
            return cast("Session", await self.queues.do(errand))
        new = prepared()
        if not new.has_default_environments:
            return await self.run_authors(lambda: self.factory.create(new), owner, "create", known=known)
        # To build an environment may take long; most often it has been built already.
        if all(map(self._context.initial.has, new.request.toolpacks or ())):
            return cast("Session", await self._created[repeatable].do(new))
        return await self._do(lambda: self.factory.create(new), known)

    async def fork(
        self,
        owner: str,
        request: ForkRequest,
        creation: Creation | None = None,
        *,
        again: Mapping[str, Any] | None = None,
    ) -> list[Session]:
        """Create sessions that start from a version of one, or get those that were created with this call_id.

        Args:
            creation: Made from the client's request, if that isn't this one; then this one has no call_id.
            again: As of `SessionFactory.fork`.
        """
        creation = creation or self._creation(owner, request)
        creation = creation and creation.of_forks(request.session_id)

        known = may_be_created(repeatable=creation is not None)
        fork = partial(self.factory.fork, self.heavy_reader, request=request, creation=creation, again=again)

        def fork_small() -> list[Session] | ForkSource:
            created = self.factory.forked(owner, creation, request)
            if created:
                return created
            source = self.factory.fork_source(self._reader, owner, request)
            return source if source.snapshot is None else fork(source)

        forks = await self._do(fork_small, known)
        if isinstance(forks, ForkSource):
            return await self.compute(partial(fork, forks), owner, "fork", known)
        return forks

    def _creation(self, owner: str, asked: SessionRequest | ForkRequest) -> Creation | None:
        if asked.call_id is None:
            return None
        parameters = asked.model_dump(exclude={"call_id"})
        return self._context.identities.creation(owner, asked.call_id, [type(asked).__name__, parameters])

    # Operations, which wait for their turn

    async def call(self, session_id: str, owner: str, request: CallRequest) -> Outcome:
        """Run a function in a session; the call is counted, logged and traced.

        Raises:
            RequestError: It was refused, and nothing has changed.
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

    async def run(self, operation: SessionOperation) -> Any:
        """Do an operation, and get its answer. Cancelled, it changes nothing and leaves no record unless committed.

        Raises:
            RequestError: It was refused, and nothing has changed.
        """
        try:
            return await self.queues.run(operation)
        except asyncio.CancelledError:
            self.queues.cancel(operation)
            raise
        except SessionNotFoundError:
            self._forget_agent(operation.session_id)
            raise
        finally:
            if operation.is_told:
                self._tell([operation.session_id])

    def _tell(self, session_ids: Iterable[str]) -> None:
        for watcher in self.watchers:
            for session_id in session_ids:
                watcher.changed(session_id)

    async def reset(self, session_id: str, owner: str, version: int, call_id: str | None) -> Session:
        reset = await self.run(ResetOperation(self._context, session_id, owner, version, call_id))
        return await self.read(lambda reader: reader.describe(session_id, owner, version=reset))

    # Reading sessions

    async def read(self, read: Callable[[SessionReader], T], owner: str = "", known: str = NOTHING_CHANGED) -> T:
        """Read sessions, in a thread: `await sessions.read(lambda reader: reader.describe(session_id, owner), owner)`.

        What takes much of the processor is done two at a time, one of each owner; owners take turns.
        """
        try:
            return await self._do(lambda: read(self._reader), known)
        except HeavyReadError:
            return await self.compute(lambda: read(self.heavy_reader), owner, "read", known)

    async def compute(self, work: Callable[[], T], owner: str, kind: str, known: str = NOTHING_CHANGED) -> T:
        """Do work of the server's own that takes much of the processor, in a thread; work of one kind takes as long.

        `known` is what is known when it has missed its deadline, for the end of that sentence.
        """
        errand = ThreadJob(work, self._settings.timeout_seconds, "reads", kind, owner, known=known)
        return cast("T", await self.queues.do(errand))

    async def run_authors(
        self,
        work: Callable[[], T],
        owner: str,
        kind: str,
        timeout_seconds: float | None = None,
        known: str = NOTHING_CHANGED,
    ) -> T:
        """Run an author's code that isn't a function, such as an evaluator, in a thread, in turns by owner.

        Args:
            kind: Work of one kind takes about the same time.
            timeout_seconds: Its deadline; None: that of a call.
            known: What is known if it is missed, at the end of a sentence.
        """
        seconds = self._settings.timeout_seconds if timeout_seconds is None else timeout_seconds
        errand = ThreadJob(work, seconds, "authors", kind, owner, known)
        return cast("T", await self.queues.do(errand))

    async def toolpacks(self, session_id: str, owner: str | None) -> tuple[str, ...]:
        """Get the names of a session's toolpacks, all of which are loaded."""
        try:
            session, _ = await self.read(lambda reader: reader.find(session_id, owner))
        except SessionNotFoundError:
            self._forget_agent(session_id)
            raise
        toolpacks = Recipe.of(session).toolpacks
        self._context.runtime(toolpacks)
        return toolpacks

    async def agent_session(self, agent_key: str) -> tuple[str, str, str]:
        """Get what `SessionReader.agent_session` does."""
        found = self._agents.get(agent_key)
        if found is None:
            found = await self.read(lambda reader: reader.agent_session(agent_key))
            if len(self._agents) >= AGENTS_REMEMBERED:
                self._agents.clear()
                self._agent_keys.clear()
            self._agents[agent_key] = found
            self._agent_keys.setdefault(found[0], []).append(agent_key)
        return found

    async def address(self, session_id: str, owner: str, name: str) -> Address:
        """Get an address of a session, for whoever has come to it.

        Raises:
            DeadlineError: A loader took too long; the text doesn't say which, since agents needn't know its name.
        """
        session, head = await self.read(lambda reader: reader.find(session_id, owner))
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
            address = replace(address, view=next(filter(None, views), None))
        return address

    def _forget_agent(self, session_id: str) -> None:
        for agent_key in self._agent_keys.pop(session_id, ()):
            self._agents.pop(agent_key, None)

    # Ending sessions

    async def close(self, session_id: str, owner: str) -> None:
        await self._closed.do((session_id, owner))
        self._tell([session_id])

    def _close_batch(self, asked: Sequence[tuple[str, str]]) -> list[SessionNotFoundError | None]:
        owners = {session_id: self._owner(session_id) for session_id, _ in asked}
        closed = {*self._delete([session_id for session_id, owner in {*asked} if owners[session_id] == owner])}
        answers: list[SessionNotFoundError | None] = []
        for session_id, owner in asked:
            if owners[session_id] == owner and session_id in closed:
                closed.remove(session_id)  # closed once: whoever asks for it again finds no session
                answers.append(None)
            else:
                answers.append(SessionNotFoundError())
        return answers

    def _owner(self, session_id: str) -> str | None:
        """Get a session's owner, who never changes; None if there is no session."""
        state = self.queues.cache.get(session_id)
        if state is not None:
            return state.session.owner
        # Not `find`: a session that was changed in the store, or has another key, can be closed too.
        found = self._store.get(session_id)
        return found and found[0].owner

    async def close_all(self, owner: str, labels: Mapping[str, str]) -> int:
        def close_some() -> Sequence[str]:
            found = self._store.list(SessionQuery(owner, labels, "", SWEEP_AT_ONCE))
            return self._delete([session.id for session, _ in found])

        closed = 0
        while some := await self._do(close_some, "sessions may still be closed"):
            self._tell(some)
            closed += len(some)
        return closed

    async def sweep(self) -> None:
        """Delete expired sessions, and what is still stored of those that were closed, every second, until cancelled.

        Nothing else ends a session for its age, and nothing but the store counts that.
        """

        def sweep_some() -> Sequence[str]:
            counted = self._store.count_time()
            self.queues.clock.look(counted)
            expired = self._store.delete_expired(counted.now, SWEEP_AT_ONCE, self.queues.busy())
            self.queues.forget(expired)
            self._store.clean_up()
            return expired

        with contextlib.suppress(InternalError, RequestError):  # the store may be away
            await self._do(self.heavy_reader.check_key)
        while True:
            # Failures are logged; the next round deletes what this one should have.
            with contextlib.suppress(InternalError, RequestError):
                while expired := await self._do(sweep_some):
                    self._tell(expired)
            await asyncio.sleep(SWEEP_SECONDS)

    def _delete(self, session_ids: list[str]) -> Sequence[str]:
        deleted = self._store.delete(session_ids)
        self.queues.forget(session_ids)
        for session_id in session_ids:
            self._forget_agent(session_id)
        return deleted

    # The worker as a whole

    async def count(self, owner: str | None = None) -> int:
        return await self._do(lambda: self._store.count(owner))

    async def ping_store(self) -> tuple[bool, str]:
        """Get whether anything can be stored now, and what can't, or why nothing can; "" if all is well."""
        try:
            return True, await asyncio.wait_for(self._do(self._store.ping), PING_SECONDS) or ""
        except RequestError as error:
            return False, str(error)
        except Exception:  # noqa: BLE001 - whatever it is, the store doesn't answer
            return False, "The store doesn't answer."

    def load(self) -> tuple[int, int, int]:
        """Count the calls that wait, the stuck threads, and the sessions in the cache."""
        return self.queues.waiting(), self.queues.threads.stuck_threads(), len(self.queues.cache)

    def begin_draining(self) -> None:
        """Let whatever waits for something to happen end; what runs goes on."""
        for watcher in self.watchers:
            watcher.draining()

    async def drain(self) -> None:
        """Wait until nothing runs any more, for as long as the settings allow, then stop the threads."""
        self.begin_draining()
        deadline = time.monotonic() + self._settings.drain_seconds
        while not self.queues.is_idle() and time.monotonic() < deadline:  # noqa: ASYNC110 - threads end it
            await asyncio.sleep(0.01)
        self.queues.stop()

    async def _do(self, work: Callable[[], T], known: str = NOTHING_CHANGED) -> T:
        """Do work that blocks but is quick, in a thread; see `compute`."""
        return cast("T", await self.queues.do(ThreadJob(work, self._settings.timeout_seconds, known=known)))


def may_be_created(*, repeatable: bool) -> str:
    """Say what is known when a request to create a session, which has a call_id or none, has missed its deadline."""
    again = ": send the request again, with its call_id" if repeatable else ""
    return f"a session may still be created{again}"
