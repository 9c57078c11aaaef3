"""Replay: the records of a session are run again, in order, in a new session, until one comes out differently.

The new session is an ordinary session and its calls are ordinary calls, with the code that is loaded, their
own deadlines and all limits. Nothing of the session that is replayed changes.

A replay that can be repeated gives each of its records a call_id, which follows from the record's place. So the same
request goes on where the first one has ended, runs nothing twice, and finds the same difference.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from typing import Any
from weakref import WeakValueDictionary

from toolpack_server.base.errors import (
    ClassesChangedError,
    InternalError,
    InvalidParamsError,
    OverloadedError,
    RequestError,
    SessionNotFoundError,
)
from toolpack_server.execution.call import Outcome
from toolpack_server.execution.failure import Failure, cut_error
from toolpack_server.features.replay.replay_operations import (
    CopyOperation,
    Repeated,
    RepeatedCall,
    RepeatedReset,
    UnrunCall,
)
from toolpack_server.features.replay.results import Difference, Replay, Versions
from toolpack_server.features.replay.seed_parameters import REPLAYS
from toolpack_server.features.replay.writers import has_kind, other_writers
from toolpack_server.jsonio.strict import Fragment, cut, dumps, loads
from toolpack_server.protocol.omission import if_set
from toolpack_server.protocol.parameters import ForkRequest
from toolpack_server.protocol.results import Session
from toolpack_server.protocol.senders import CLIENT
from toolpack_server.sessions.calls import CallRequest
from toolpack_server.sessions.context import SessionContext
from toolpack_server.sessions.identity import Creation
from toolpack_server.sessions.manager import SessionManager
from toolpack_server.sessions.recipes import Recipe, began_as_fork, details_of
from toolpack_server.sessions.repeatable_kind import RepeatableKind
from toolpack_server.stores.base import StoredSession
from toolpack_server.volumes.volume import is_piece

KEEP_ALIVE = 4  # how often in its TTL a session is renewed while it is replayed
AT_ONCE = 2  # replays of one owner that a worker runs
RECORDS_AT_ONCE = 100
BYTES_AT_ONCE = 2**20
MAX_SHOWN_TEXT = 2000

_NOT_RUN = {Failure.DEADLINE, Failure.CRASHED}  # such a call depends on the machine, not on the world
_CUT_ARGUMENTS = (
    "The arguments of this call were cut from the trace, so it can't be run again: a larger TOOLPACK_MAX_RESULT_BYTES "
    "keeps them."
)

Records = AsyncGenerator[Mapping[str, Any], None]
"""What clients see of records, in order."""


class Replays:
    """Runs the records of sessions again."""

    def __init__(self, context: SessionContext, sessions: SessionManager) -> None:
        self._context = context
        self._sessions = sessions
        self._turns = WeakValueDictionary[str, asyncio.Semaphore]()

    @contextlib.asynccontextmanager
    async def turn(self, owner: str) -> AsyncIterator[None]:
        """Wait until an owner may run a replay: each makes calls as fast as they are answered.

        Raises:
            OverloadedError: Its others have taken too long.
        """
        turns = self._turns.setdefault(owner, asyncio.Semaphore(AT_ONCE))
        seconds = self._context.settings.queue_timeout_seconds
        try:
            async with asyncio.timeout(seconds):
                await turns.acquire()
        except TimeoutError:
            raise OverloadedError(
                f"{AT_ONCE} replays of yours run here, and none of them has ended in {seconds:g} s; nothing was "
                "changed. Send it later."
            ) from None
        try:
            yield
        finally:
            turns.release()

    async def replay(
        self,
        session_id: str,
        owner: str | None,
        limit: int,
        labels: Mapping[str, str] | None,
        creation: Creation | None,
    ) -> Replay:
        """Run the first records of a session again; see `ReplaySession`.

        Args:
            creation: Made from the request, if that can be repeated.

        Raises:
            ClassesChangedError: A toolpack isn't loaded any more, or the session's beginning can't be built again.
            RequestError: A call was refused, as when the server has too much to do; the new session is gone.
        """
        session, head = await self._sessions.read(lambda reader: reader.find(session_id, owner))
        self._context.runtime(Recipe.of(session).toolpacks)
        count = head.index + 1
        new = await self._begin_again(session, labels, creation, {REPLAYS: count} if creation else {})
        if creation is not None:  # the session may have more records now than when the request came first
            begun, _ = await self._sessions.read(lambda reader: reader.find(new["session_id"], session.owner))
            count = details_of(begun)[REPLAYS]
        async with (
            self._keeping_alive(session),
            contextlib.aclosing(self._records(session_id, count)) as records,
        ):
            details, versions = details_of(session), Recipe.of(session).versions
            return await self.run(
                new, session.owner, details, versions, records, limit, repeatable=creation is not None
            )

    @contextlib.asynccontextmanager
    async def _keeping_alive(self, session: StoredSession) -> AsyncIterator[None]:
        """Keep a session alive for the block, though nobody calls it meanwhile."""

        async def renew() -> None:
            while True:
                await asyncio.sleep(session.ttl_seconds / KEEP_ALIVE)
                with contextlib.suppress(RequestError, InternalError):
                    await self._sessions.read(lambda reader: reader.find(session.id, session.owner))

        renewing = asyncio.create_task(renew())
        try:
            yield
        finally:
            renewing.cancel()

    async def _begin_again(
        self,
        session: StoredSession,
        labels: Mapping[str, str] | None,
        creation: Creation | None,
        details: Mapping[str, Any],
    ) -> Session:
        """Create a session with the environments with which another one began, and with these details."""
        if await self._sessions.read(lambda _: self._fits(session)):
            given: dict[str, Any] = {"session_id": session.id, "version": 0, "labels": labels}
            fork = ForkRequest.model_construct(**given)
            (new,) = await self._sessions.fork(session.owner, fork, creation, again=details)
            return new
        if began_as_fork(session):
            raise ClassesChangedError(
                "The session is a fork, and other classes wrote the environment with which it began: it can't be built "
                "again. Load the classes that wrote it."
            )
        recipe = Recipe.of(session)
        options, environment = recipe.given()
        given = {
            "toolpacks": recipe.toolpacks,
            "options": options,
            "environment": environment,
            "ttl_seconds": session.ttl_seconds,
            "labels": session.labels if labels is None else labels,
            **recipe.kept,
        }
        kind = self._context.session_request
        given |= {name: value for name, value in details_of(session).items() if name in kind.model_fields}
        request = kind.model_construct(**given).as_resolved()
        return await self._sessions.create(session.owner, request, creation, details)

    def _fits(self, session: StoredSession) -> bool:
        """Whether the first version of a session was written by the classes that are loaded."""
        first = self._context.store.parts_at(session.id, 0)
        parts = {part: blob_id for part, blob_id in first.items() if not is_piece(part)}
        blobs = self._context.store.blobs([*parts.values()])
        try:
            for part, blob_id in parts.items():
                self._context.codec.unseal(part, blob_id, blobs[blob_id])
        except ClassesChangedError:
            return False
        return True

    async def _records(self, session_id: str, count: int) -> Records:
        after = -1

        def page() -> list[Mapping[str, Any]]:
            most = min(RECORDS_AT_ONCE, count - 1 - after)
            found = self._context.store.records(session_id, after, most, BYTES_AT_ONCE)
            return [loads(self._context.records.read(session_id, record)[0]) for record in found]

        while after + 1 < count:
            shown = await self._sessions.read(lambda _: page())
            if not shown:  # it was closed meanwhile
                raise SessionNotFoundError
            for record in shown:
                yield record
            after += len(shown)

    async def run(
        self,
        new: Session,
        owner: str,
        details: Mapping[str, Any],
        versions: Mapping[str, str],
        records: Records,
        limit: int,
        *,
        repeatable: bool,
    ) -> Replay:
        """Run the first records of a session with these details, and these versions of toolpacks, in a new session.

        The new session is closed if one is refused; also if this is cancelled, unless the same request can come again.
        """
        session_id = new["session_id"]
        repeat = _Repeat(self._context, self._sessions, session_id, owner, repeatable=repeatable)
        others = other_writers(self._context, details)
        if others:
            parts = await self._sessions.read(lambda _: self._context.store.parts_at(session_id, 0))
            repeat.compares_states = not has_kind(parts, others)
        difference, complete = None, True
        try:
            async for record in records:
                if repeat.done == limit:
                    complete = False
                    break
                difference = await repeat.run(record)
                if difference is not None:
                    complete = False
                    break
        except (Exception, asyncio.CancelledError) as error:
            if not (repeatable and isinstance(error, asyncio.CancelledError)):
                with contextlib.suppress(RequestError):
                    await self._sessions.close(session_id, owner)
            raise
        version = repeat.version
        return {
            "session": await self._sessions.read(
                lambda reader: reader.describe(session_id, owner, version=version, as_created=repeatable)
            ),
            "replayed": repeat.done,
            "complete": complete,
            "diverged": if_set(difference),
            "other_versions": self._other_versions(versions),
        }

    def _other_versions(self, recorded: Mapping[str, str]) -> dict[str, Versions]:
        here = self._context.catalog.versions(recorded)
        return {
            name: {"recorded": version, "replayed": if_set(here.get(name))}
            for name, version in recorded.items()
            if here.get(name) != version
        }


class _Repeat:
    """Runs records in a session, one after the other.

    Attributes:
        done: How many it has run.
        version: The session's version after the last one.
        compares_states: Whether the recorded digests of the environments can be compared.
    """

    compares_states = True

    def __init__(
        self, context: SessionContext, sessions: SessionManager, session_id: str, owner: str, *, repeatable: bool
    ) -> None:
        self._context = context
        self._sessions = sessions
        self._session = context, session_id, owner
        self._repeatable = repeatable
        self.done = 0
        self.version = 0
        self._versions = {0: 0}  # that the session has, by those that the records name: a function may have been edited

    async def run(self, record: Mapping[str, Any]) -> Difference | None:
        """Run a record again, and get what came out differently."""
        kind = self._context.record_kinds[record["kind"]]
        call_id = f"replay-{self.done}" if self._repeatable else None
        self.done += 1
        back_to, difference = kind.goes_back_to(record), None
        if back_to is not None:
            difference = await self._reset(record, back_to, call_id)
        elif kind.is_call:
            difference = await self._call(record, call_id)
        else:
            repeat = kind.repeat if isinstance(kind, RepeatableKind) else CopyOperation
            await self._sessions.run(repeat(*self._session, record, call_id))
        self._versions.setdefault(record["version"], self.version)
        return difference

    async def _call(self, record: Mapping[str, Any], call_id: str | None) -> Difference | None:
        """Send what was sent, and compare what was heard and what has happened."""
        sent = self._context.record_kinds[record["kind"]].heard(record)
        kwargs = sent["kwargs"]
        if _is_cut(kwargs):
            return _difference(record, "error", record["error"], _CUT_ARGUMENTS)
        request = CallRequest(sent["function"], kwargs, dumps(kwargs), call_id, by=record.get("by", CLIENT))
        if record.get("failure") in _NOT_RUN:
            return await self._note(record, request)
        operation = RepeatedCall(*self._session, request)
        outcome = await self._sessions.run(operation)
        states = self._compare_states(record, operation)
        return self._compare(sent, outcome) or self._compare_happened(record, operation) or states

    async def _note(self, record: Mapping[str, Any], request: CallRequest) -> Difference | None:
        """Record a call that isn't run again."""
        failure = Failure(record["failure"])
        seconds = record["duration_ms"] / 1000  # the call's deadline, if that is what it missed
        operation = UnrunCall(*self._session, request._replace(timeout_seconds=seconds or None), failure)
        outcome: Outcome = await self._sessions.run(operation)
        states = self._compare_states(record, operation)
        if outcome.failure is None or outcome.failure.why != failure:
            return _difference(record, "error", record["error"], outcome.failure.text if outcome.failure else None)
        return states

    def _compare(self, record: Mapping[str, Any], outcome: Outcome) -> Difference | None:
        text = outcome.failure.text if outcome.failure else None
        error = text and cut_error(text, self._context.settings.max_record_bytes)
        if error != record["error"]:
            return _difference(record, "error", record["error"], text)
        result = b'""' if outcome.result is None else outcome.result
        if not _is_result(record["result"], result):
            return _difference(record, "result", dumps(record["result"]).decode(), result.decode())
        nested = [each["result"] for each in record.get("nested", ()) if each["error"] is None]
        if len(nested) != len(outcome.nested) or not all(map(_is_result, nested, outcome.nested)):
            replayed = dumps([*map(Fragment, outcome.nested)])
            return _difference(record, "nested", dumps(nested).decode(), replayed.decode())
        return None

    @staticmethod
    def _compare_happened(record: Mapping[str, Any], operation: Repeated) -> Difference | None:
        """Compare what has happened where the agent has heard something else."""
        body = operation.made.body.split(b"\n", 1)[0] if operation.made else b"{}"
        if "perturbed" in record or b'"perturbed":' in body:
            made = loads(body)
            for what in ("error", "result"):
                happened = (record[what], made.get(what))
                if dumps(happened[0], sort_keys=True) != dumps(happened[1], sort_keys=True):
                    return _difference(
                        record, what, *(None if each is None else dumps(each).decode() for each in happened)
                    )
        return None

    async def _reset(self, record: Mapping[str, Any], to_version: int, call_id: str | None) -> Difference | None:
        version = self._versions.get(to_version)
        if version is None:
            raise InvalidParamsError(
                f"Record {record['index']} is a reset to version {to_version}, which no record before it has."
            )
        operation = RepeatedReset(*self._session, version, call_id)
        await self._sessions.run(operation)
        return self._compare_states(record, operation)

    def _compare_states(self, record: Mapping[str, Any], operation: Repeated) -> Difference | None:
        """Note the version after an operation that was recorded, and compare the digest of the environments."""
        made = operation.made
        if made is not None:
            self.version = made.version
        recorded = record.get("state")
        if not recorded or not self.compares_states:
            return None
        state = loads(made.body.split(b"\n", 1)[0]).get("state") if made else None
        return None if recorded == state else _difference(record, "state", recorded, state)


def _is_result(recorded: Any, result: bytes) -> bool:
    """Whether the trace has this result, whole or cut."""
    text = dumps(recorded, sort_keys=True)
    return text == dumps(loads(result), sort_keys=True) or text == dumps(cut(result), sort_keys=True)


def _is_cut(kwargs: Mapping[str, Any]) -> bool:
    """Whether the trace doesn't have all arguments of a call; see `records.cut_arguments`."""
    return any(
        isinstance(value, dict) and value.keys() == {"$cut"} and value["$cut"].keys() == {"bytes", "digest"}
        for value in (kwargs, *kwargs.values())
    )


def _difference(record: Mapping[str, Any], what: Any, recorded: str | None, replayed: str | None) -> Difference:
    texts = [text if text is None else text[:MAX_SHOWN_TEXT] for text in (recorded, replayed)]
    return {"index": record["index"], "what": what, "recorded": if_set(texts[0]), "replayed": if_set(texts[1])}
