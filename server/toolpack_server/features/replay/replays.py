"""Replay: runs the records of a session again, in order, in a new session, up to the first difference.

The new session is an ordinary session: its calls use the loaded code, and all deadlines and limits apply. The replayed
session doesn't change.

A request with a call_id can be sent again. Each record that the replay adds gets a call_id made of the record's number,
so the replay continues after the last record, runs no call twice, and finds the same difference.
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
from toolpack_server.execution.volumes import class_parts
from toolpack_server.features.evaluation.event_rules import microseconds
from toolpack_server.features.evaluation.events.operations import RunEventsOperation
from toolpack_server.features.replay.replay_operations import (
    CopyOperation,
    ReplayCall,
    ReplayCancelledCall,
    ReplayOperation,
    ReplayReset,
    SkippedCall,
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

KEEP_ALIVE = 4  # how often the replayed session is renewed during one TTL
AT_ONCE = 2  # max concurrent replays of an owner in a worker
RECORDS_AT_ONCE = 100  # max records in one read from the store
BYTES_AT_ONCE = 2**20  # max bytes of records in one read
MAX_SHOWN_TEXT = 2000

_EVENT_MEMBERS = (
    "event",
    "at",
    "function",
    "kwargs",
    "result",
    "error",
    "offer",
    "withdraw",
    "problem",
    "content",
    "by",
    "to",
)
_NOT_RUN = {Failure.DEADLINE, Failure.CRASHED, Failure.CANCELLED}  # calls with these failures aren't run again
_CUT_ARGUMENTS = (
    "The arguments of this call were cut from the trace, so it can't be run again: raise TOOLPACK_MAX_RESULT_BYTES "
    "before recording a session."
)

Records = AsyncGenerator[Mapping[str, Any], None]
"""Records in the form that clients see, in order."""


class Replays:
    """Runs replays of sessions and of bundles."""

    def __init__(self, context: SessionContext, sessions: SessionManager) -> None:
        self._context = context
        self._sessions = sessions
        self._turns = WeakValueDictionary[str, asyncio.Semaphore]()

    @contextlib.asynccontextmanager
    async def turn(self, owner: str) -> AsyncIterator[None]:
        """Wait until the owner has fewer than `AT_ONCE` replays, because a replay sends calls as fast as it can.

        Raises:
            OverloadedError: The owner's other replays took longer than the queue timeout.
        """
        turns = self._turns.setdefault(owner, asyncio.Semaphore(AT_ONCE))
        seconds = self._context.settings.queue_timeout_seconds
        try:
            async with asyncio.timeout(seconds):
                await turns.acquire()
        except TimeoutError:
            raise OverloadedError(
                f"You have {AT_ONCE} running replays on this server, and none of them has ended in {seconds:g} s; "
                "nothing was changed. Send the request again later."
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
        """Run at most `limit` records of a session again; see `ReplaySession`.

        Args:
            creation: The identity of the request, so that a retry finds the new session. None without a call_id.

        Raises:
            ClassesChangedError: A toolpack isn't loaded any more, or the session's first environment can't be rebuilt.
            RequestError: A call was refused, for example because the server is overloaded. The new session is closed.
        """
        session, head = await self._sessions.read(lambda reader: reader.find(session_id, owner))
        self._context.runtime(Recipe.of(session).toolpacks)
        count = head.index + 1
        new = await self._start_session(session, labels, creation, {REPLAYS: count} if creation else {})
        # The session might have more records now than when the request was first sent, so use the stored count.
        if creation is not None:
            stored, _ = await self._sessions.read(lambda reader: reader.find(new["session_id"], session.owner))
            count = details_of(stored)[REPLAYS]
        async with (
            self._keep_alive(session),
            contextlib.aclosing(self._records(session_id, count)) as records,
        ):
            details, versions = details_of(session), Recipe.of(session).versions
            return await self.run(
                new, session.owner, details, versions, records, limit, repeatable=creation is not None
            )

    @contextlib.asynccontextmanager
    async def _keep_alive(self, session: StoredSession) -> AsyncIterator[None]:
        """Keep a session from expiring during a block, by reading it: each read renews its TTL."""

        async def renew() -> None:
            while True:
                await asyncio.sleep(session.ttl_seconds / KEEP_ALIVE)
                with contextlib.suppress(RequestError, InternalError):
                    await self._sessions.read(lambda reader: reader.find(session.id, session.owner))

        task = asyncio.create_task(renew())
        try:
            yield
        finally:
            task.cancel()

    async def _start_session(
        self,
        session: StoredSession,
        labels: Mapping[str, str] | None,
        creation: Creation | None,
        details: Mapping[str, Any],
    ) -> Session:
        """Create a session with another session's first environments, and with these details.

        The new session is a fork of version 0 if the loaded classes can read that version. Otherwise its environments
        are built again.

        Raises:
            ClassesChangedError: The environments of a fork would have to be built again, which isn't possible.
        """
        if await self._sessions.read(lambda _: self._has_loaded_classes(session)):
            params: dict[str, Any] = {"session_id": session.id, "version": 0, "labels": labels}
            fork = ForkRequest.model_construct(**params)
            (new,) = await self._sessions.fork(session.owner, fork, creation, again=details)
            return new
        if began_as_fork(session):
            raise ClassesChangedError(
                "The session is a fork, and its first environment was written by classes that aren't loaded. A fork's "
                "environment can't be built again: load these classes."
            )
        recipe = Recipe.of(session)
        options, environment = recipe.inputs()
        params = {
            "toolpacks": recipe.toolpacks,
            "options": options,
            "environment": environment,
            "ttl_seconds": session.ttl_seconds,
            "labels": session.labels if labels is None else labels,
            **recipe.feature_options,
        }
        kind = self._context.session_request
        params |= {name: value for name, value in details_of(session).items() if name in kind.model_fields}
        request = kind.model_construct(**params).as_resolved()
        return await self._sessions.create(session.owner, request, creation, details)

    def _has_loaded_classes(self, session: StoredSession) -> bool:
        """Return whether the loaded classes wrote the first version of a session."""
        first = self._context.store.parts_at(session.id, 0)
        parts = {part: first[part] for part in class_parts(first)}
        blobs = self._context.store.blobs([*parts.values()])
        try:
            for part, blob_id in parts.items():
                self._context.codec.unseal(part, blob_id, blobs[blob_id])
        except ClassesChangedError:
            return False
        return True

    async def _records(self, session_id: str, count: int) -> Records:
        """Yield the first `count` records of a session. They are read from the store in pages."""
        after = -1

        def page() -> list[Mapping[str, Any]]:
            limit = min(RECORDS_AT_ONCE, count - 1 - after)
            records = self._context.store.records(session_id, after, limit, BYTES_AT_ONCE)
            return [loads(self._context.records.read(session_id, record)[0]) for record in records]

        while after + 1 < count:
            shown = await self._sessions.read(lambda _: page())
            if not shown:  # the session was closed during the replay
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
        """Run at most `limit` records in a new session, and return the result of the replay.

        If a record is refused, the new session is closed. If this coroutine is cancelled, the new session is closed
        unless the request is repeatable.

        Args:
            new: The new session.
            owner: Its owner.
            details: The details of the recorded session.
            versions: The versions of the toolpacks when the recorded session was created.
            records: The records.
            limit: Maximum number of records to run.
            repeatable: Whether the request has a call_id, so that the client can send it again.
        """
        session_id = new["session_id"]
        replayer = _Replayer(self._context, self._sessions, session_id, owner, repeatable=repeatable)
        changed_kinds = other_writers(self._context, details)
        if changed_kinds:
            parts = await self._sessions.read(lambda _: self._context.store.parts_at(session_id, 0))
            replayer.compares_states = not has_kind(parts, changed_kinds)
        difference, complete = None, True
        try:
            async for record in records:
                if replayer.done == limit:
                    complete = False
                    break
                difference = await replayer.run(record)
                if difference is not None:
                    complete = False
                    break
            if difference is None:
                difference = await replayer.end()
                complete = complete and difference is None
        except (Exception, asyncio.CancelledError) as error:
            if not (repeatable and isinstance(error, asyncio.CancelledError)):
                with contextlib.suppress(RequestError):
                    await self._sessions.close(session_id, owner)
            raise
        version = replayer.version
        return {
            "session": await self._sessions.read(
                lambda reader: reader.describe(session_id, owner, version=version, as_created=repeatable)
            ),
            "replayed": replayer.done,
            "complete": complete,
            "diverged": if_set(difference),
            "other_versions": self._other_versions(versions),
        }

    def _other_versions(self, recorded: Mapping[str, str]) -> dict[str, Versions]:
        """Return the toolpacks of which another version than the recorded one is loaded."""
        loaded = self._context.catalog.versions(recorded)
        return {
            name: {"recorded": version, "replayed": if_set(loaded.get(name))}
            for name, version in recorded.items()
            if loaded.get(name) != version
        }


class _Replayer:
    """Runs records in a session, one after the other.

    Attributes:
        done: Number of records that were run.
        version: The session's version after the last record.
        compares_states: Whether to compare the recorded digests of the environments.
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
        # The new session's version for each recorded version. The two differ if a function was edited and now changes
        # the world in a call where it didn't before, or the reverse.
        self._versions = {0: 0}
        self._events: list[Mapping[str, Any]] = []  # recorded events of the world that haven't been compared yet

    async def run(self, record: Mapping[str, Any]) -> Difference | None:
        """Run a record again, and return the first difference from the recorded session, or None."""
        kind = self._context.record_kinds[record["kind"]]
        call_id = f"replay-{self.done}" if self._repeatable else None
        self.done += 1
        # An event isn't run here: in the new session it happens when the next call, or `end`, advances the time.
        if "event" in record:
            self._events.append(record)
            return None
        back_to, difference = kind.goes_back_to(record), None
        if self._events and not kind.is_call:
            difference = await self.end()
            if difference is not None:
                return difference
        if back_to is not None:
            difference = await self._reset(record, back_to, call_id)
        elif kind.is_call:
            difference = await self._call(record, call_id)
        else:
            repeat = kind.repeat if isinstance(kind, RepeatableKind) else CopyOperation
            await self._sessions.run(repeat(*self._session, record, call_id))
        version = self.version
        # A difference in an event comes first, because the events happened before the record.
        difference = await self._compare_events(record) or difference
        self.version = max(version, self.version)  # `_compare_events` set the version of the last event
        self._versions.setdefault(record["version"], version)
        return difference

    async def end(self) -> Difference | None:
        """Advance the time to the last recorded event, and compare the events. Return the first difference, if any."""
        if not self._events:
            return None
        context, session_id, owner = self._session
        until = microseconds(self._events[-1]["at"])
        await self._sessions.run(RunEventsOperation(context, session_id, owner, until))
        return await self._compare_events()

    async def _compare_events(self, record: Mapping[str, Any] | None = None) -> Difference | None:
        """Compare the recorded events with the new session's records at the same indexes.

        Args:
            record: The record after the events. If the new session has an event at its index, that is also a
                difference.
        """
        events, self._events = self._events, []
        expected = [*events, record] if record is not None and (events or "at" in record) else events
        if not expected:
            return None
        context, session_id, _ = self._session

        def read() -> list[Mapping[str, Any]]:
            first, count = expected[0]["index"], len(expected)
            records = context.store.records(session_id, first - 1, count)
            return [loads(context.records.read(session_id, each)[0]) for each in records]

        new = await self._sessions.read(lambda _: read())
        for index, recorded in enumerate(expected):
            replayed = new[index] if index < len(new) else {}
            texts = [_event_text(each, states=self.compares_states) for each in (recorded, replayed)]
            if texts[0] != texts[1]:
                return _difference(recorded, "event", *texts)
            if replayed:
                self.version = replayed["version"]
                self._versions.setdefault(recorded["version"], self.version)
        return None

    async def _call(self, record: Mapping[str, Any], call_id: str | None) -> Difference | None:
        """Run a call again, and compare the result that its caller saw, the function's own result, and the world.

        These results differ if a perturbation changed the result that the caller saw.
        """
        call = self._context.record_kinds[record["kind"]].heard(record)  # the call as its caller saw it
        kwargs = call["kwargs"]
        if _is_cut(kwargs):
            return _difference(record, "error", record["error"], _CUT_ARGUMENTS)
        request = CallRequest(call["function"], kwargs, dumps(kwargs), call_id, by=record.get("by", CLIENT))
        if record.get("failure") in _NOT_RUN:
            return await self._skip_call(record, request)
        operation = ReplayCall(*self._session, request)
        outcome = await self._sessions.run(operation)
        states = self._compare_states(record, operation)
        return self._compare(call, outcome) or self._compare_actual(record, operation) or states

    async def _skip_call(self, record: Mapping[str, Any], request: CallRequest) -> Difference | None:
        """Commit the record of a call that isn't run again."""
        failure = Failure(record["failure"])
        seconds = record["duration_ms"] / 1000  # if the call missed its deadline, its duration was its timeout
        operation = (
            ReplayCancelledCall(*self._session, request)
            if failure is Failure.CANCELLED
            else SkippedCall(*self._session, request._replace(timeout_seconds=seconds or None), failure)
        )
        outcome: Outcome = await self._sessions.run(operation)
        states = self._compare_states(record, operation)
        if outcome.failure is None or outcome.failure.why != failure:
            return _difference(record, "error", record["error"], outcome.failure.text if outcome.failure else None)
        return states

    def _compare(self, record: Mapping[str, Any], outcome: Outcome) -> Difference | None:
        """Compare the outcome that the caller saw: the error, the result, and the results of nested calls."""
        text = outcome.failure.text if outcome.failure else None
        error = text and cut_error(text, self._context.settings.max_record_bytes)
        if error != record["error"]:
            return _difference(record, "error", record["error"], text)
        result = b'""' if outcome.result is None else outcome.result  # a failed call's record contains the result ""
        if not _is_result(record["result"], result):
            return _difference(record, "result", dumps(record["result"]).decode(), result.decode())
        nested = [each["result"] for each in record.get("nested", ()) if each["error"] is None]
        if len(nested) != len(outcome.nested) or not all(map(_is_result, nested, outcome.nested)):
            replayed = dumps([*map(Fragment, outcome.nested)])
            return _difference(record, "nested", dumps(nested).decode(), replayed.decode())
        return None

    @staticmethod
    def _compare_actual(record: Mapping[str, Any], operation: ReplayOperation) -> Difference | None:
        """Compare the function's own error and result, if a perturbation changed the outcome of either call."""
        body = operation.created.body.split(b"\n", 1)[0] if operation.created else b"{}"
        if "perturbed" in record or b'"perturbed":' in body:
            replayed = loads(body)
            for what in ("error", "result"):
                values = (record[what], replayed.get(what))
                if dumps(values[0], sort_keys=True) != dumps(values[1], sort_keys=True):
                    texts = (None if value is None else dumps(value).decode() for value in values)
                    return _difference(record, what, *texts)
        return None

    async def _reset(self, record: Mapping[str, Any], to_version: int, call_id: str | None) -> Difference | None:
        """Run a reset again, and compare the digests. `to_version` is a version of the recorded session."""
        version = self._versions.get(to_version)
        if version is None:
            raise InvalidParamsError(
                f"Record {record['index']} is a reset to version {to_version}, but no earlier record has this version."
            )
        operation = ReplayReset(*self._session, version, call_id)
        await self._sessions.run(operation)
        return self._compare_states(record, operation)

    def _compare_states(self, record: Mapping[str, Any], operation: ReplayOperation) -> Difference | None:
        """Update `version` after an operation, and compare the digests of the environments."""
        created = operation.created
        if created is not None:
            self.version = created.version
        recorded = record.get("state")
        if not recorded or not self.compares_states:
            return None
        state = loads(created.body.split(b"\n", 1)[0]).get("state") if created else None
        return None if recorded == state else _difference(record, "state", recorded, state)


def _event_text(record: Mapping[str, Any], *, states: bool) -> str | None:
    """Return the fields of an event that a replay compares, as JSON. Return None if the record isn't an event."""
    if "event" not in record:
        return None
    compared = (*_EVENT_MEMBERS, "state") if states else _EVENT_MEMBERS
    return dumps({name: record[name] for name in compared if record.get(name) is not None}, sort_keys=True).decode()


def _is_result(recorded: Any, result: bytes) -> bool:
    """Return whether a recorded result equals this result, or equals its cut form in the trace."""
    text = dumps(recorded, sort_keys=True)
    return text == dumps(loads(result), sort_keys=True) or text == dumps(cut(result), sort_keys=True)


def _is_cut(kwargs: Mapping[str, Any]) -> bool:
    """Return whether the trace lacks some arguments of a call; see `records.cut_arguments`."""
    return any(
        isinstance(value, dict) and value.keys() == {"$cut"} and value["$cut"].keys() == {"bytes", "digest"}
        for value in (kwargs, *kwargs.values())
    )


def _difference(record: Mapping[str, Any], what: Any, recorded: str | None, replayed: str | None) -> Difference:
    """Return a difference for the result of the replay. Long texts are cut."""
    texts = [text if text is None else text[:MAX_SHOWN_TEXT] for text in (recorded, replayed)]
    return {"index": record["index"], "what": what, "recorded": if_set(texts[0]), "replayed": if_set(texts[1])}
