"""What a call and a reset mean to a session: recorded once, counted, and kept together with what they change.

The rule: a record and the environment after it are one commit; whatever is refused before a function starts leaves
neither.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache, partial
from typing import Any

from pydantic import BaseModel

from server.errors import CallIdReusedError, ClassesChangedError, DeadlineError, VersionConflictError
from server.execution import Failure, Outcome, SessionRuntime, call, nested_calls
from server.jobs import SessionJob
from server.mailboxes import Mailboxes
from server.parts import emptied, toolpack_of
from server.session_cache import CachedSession
from server.stores import Commit, Record, SessionStore
from server.strict_json import Fragment, dumps, loads
from server.threads import interruptible
from server.world import Codec, InitialEnvironments, World

# A session lives up to this share longer than its TTL, so that its time of expiry needn't be written at every call.
GRACE = 0.05


@dataclass(frozen=True, slots=True)
class CallRequest:
    """A call as a client sent it; see `run_function` in the contract for the meaning of each."""

    function: str
    kwargs: Mapping[str, Any]
    call_id: str | None = None
    expected_version: int | None = None
    timeout_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Tools:
    """What jobs on sessions work with."""

    store: SessionStore
    codec: Codec
    initial: InitialEnvironments
    runtime: Callable[[tuple[str, ...]], SessionRuntime]
    timeout_seconds: float
    max_result_bytes: int

    def initial_parts(
        self, toolpacks: tuple[str, ...], options: Mapping[str, Any], environment: Mapping[str, Any]
    ) -> tuple[dict[str, str], dict[str, bytes]]:
        """Get the blob ids and the blobs of the environments that a session starts with.

        Raises:
            InvalidParamsError: The options or the given environments don't fit.
        """
        parts, blobs = {}, {}
        for toolpack in toolpacks:
            if toolpack in environment:
                built = self.codec.write(toolpack, self.codec.catalog.toolpacks[toolpack].parse(environment[toolpack]))
            else:
                built = self.initial.get(toolpack, options.get(toolpack, {}))
            for part, (blob_id, blob) in built.items():
                parts[part], blobs[blob_id] = blob_id, blob
        return parts, blobs


def timestamp(seconds: float) -> str:
    """Write a time as RFC 3339, in UTC, to the millisecond."""
    whole = int(seconds // 1)
    return f"{_second(whole)}.{int((seconds - whole) * 1000):03}Z"


@lru_cache(maxsize=8)  # most times that are written are those of right now
def _second(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat().partition("+")[0]


def expiry(ttl_seconds: float, now: float) -> float:
    """Get the time of expiry to store for a session that is called now."""
    return now + ttl_seconds * (1 + GRACE)


def renew(entry: CachedSession) -> float | None:
    """Renew a session's time of expiry, and get it if it has to be written."""
    now, ttl = time.time(), entry.session.ttl_seconds
    if entry.expires_at >= now + ttl:
        return None
    entry.expires_at = expiry(ttl, now)
    return entry.expires_at


class CallJob(SessionJob):
    """Runs a function in a session."""

    def __init__(
        self,
        mailboxes: Mailboxes,
        tools: Tools,
        session_id: str,
        owner: str | None,
        request: CallRequest,
    ) -> None:
        super().__init__(mailboxes, session_id, owner)
        self.tools = tools
        self.request = request
        self.timeout = 0.0
        self.toolpack = ""
        self.parts: Mapping[str, str] = {}
        self.blobs: dict[str, bytes] = {}
        self.live: dict[str, BaseModel] = {}
        self.outcome: Outcome | None = None
        self.given_up: Outcome | None = None
        self.started_at = 0.0
        self.seconds = 0.0

    def work_in(self, entry: CachedSession) -> None:
        """Answer from the record if there is one, else run the function."""
        request, tools = self.request, self.tools
        runtime = tools.runtime(entry.session.toolpacks)
        self.toolpack = runtime.toolpack_of(request.function)
        recorded = self._recorded(entry)
        if recorded is not None:
            recorded.toolpack = self.toolpack
            self.answer = recorded
            return
        if request.expected_version is not None and request.expected_version != entry.version:
            raise VersionConflictError(request.expected_version, entry.version)
        # Taken, not shared: should this job overrun, nothing that its thread still does meets the next job.
        self.parts, self.blobs = entry.parts, dict(entry.blobs)
        self.live, entry.live = entry.live, {}
        calls = nested_calls(request.kwargs)
        world = World(
            self.parts,
            partial(self._thaw, self.live),
            runtime.reach(request.function, calls),
            read_only=runtime.read_only(request.function, calls),
            interruptible=interruptible(),
        )
        self.started_at, began = time.time(), time.monotonic()
        self.timeout = runtime.timeout(request.function, tools.timeout_seconds, request.timeout_seconds)
        self.deadline = began + self.timeout
        self.outcome = call(runtime, world, tools.codec, request.function, calls, tools.max_result_bytes)
        self.seconds = time.monotonic() - began

    def _thaw(self, live: dict[str, BaseModel], part: str) -> BaseModel:
        environment = live.pop(part, None)
        if environment is not None:
            return environment
        blob = self.blobs.get(part)
        if blob is None:
            blob = self.blobs[part] = self.tools.store.blobs([self.parts[part]])[self.parts[part]]
        return self.tools.codec.decode(part, blob)

    def _recorded(self, entry: CachedSession) -> Outcome | None:
        call_id = self.request.call_id
        if call_id is None:
            return None
        record = entry.uncommitted.get(call_id) or self.tools.store.record_of_call(self.session_id, call_id)
        if record is None:
            return None
        told, failure = map(loads, record.body.split(b"\n"))
        sent = dumps([self.request.function, self.request.kwargs], sort_keys=True)
        if dumps([told["function"], told["kwargs"]], sort_keys=True) != sent:
            raise CallIdReusedError(
                f"call_id {call_id!r} was used for another call of {told['function']!r} or with other kwargs: "
                "make a new one."
            )
        if told["error"] is not None:
            return Outcome(error=told["error"], failure=Failure(failure["failure"]), errors=failure["errors"])
        return Outcome(result=dumps(told["result"]))

    def give_up(self) -> None:
        """Answer that the deadline has passed."""
        self.live, self.blobs = {}, dict(self.blobs)
        self.seconds = self.timeout
        self.given_up = Outcome(
            error=f"TimeoutError: `{self.request.function}` took longer than {self.timeout:g} s and was given up; "
            f"nothing has changed.",
            failure=Failure.DEADLINE,
        )

    def settle(self, entry: CachedSession, *, release: bool) -> Commit | None:
        """See `SessionJob.settle`."""
        entry.live.update(self.live)
        entry.blobs.update(self.blobs)
        outcome = self.given_up or self.outcome
        if outcome is None:
            return None
        outcome.toolpack = self.toolpack
        self.answer = outcome
        entry.live.update(outcome.live)
        parts = {part: self.tools.codec.new_blob_id() for part in outcome.blobs}
        entry.parts = {**entry.parts, **parts}
        entry.blobs.update(outcome.blobs)
        entry.version += outcome.changes
        entry.index += 1
        record = Record(entry.index, entry.version, self.request.call_id, self._body(entry, outcome))
        if record.call_id is not None:
            entry.uncommitted[record.call_id] = record
        blobs = {parts[part]: blob for part, blob in outcome.blobs.items()}
        return Commit(self.session_id, entry.epoch, record, parts, blobs, renew(entry), release)

    def _body(self, entry: CachedSession, outcome: Outcome) -> bytes:
        """Write the record as it is told, and in a second line what only a repeated call needs."""
        told = {
            "index": entry.index,
            "kind": "call",
            "call_id": self.request.call_id,
            "function": self.request.function,
            "kwargs": Fragment(dumps(self.request.kwargs)),
            "result": "" if outcome.result is None else Fragment(outcome.result),
            "error": outcome.error,
            "version": entry.version,
            "started_at": timestamp(self.started_at),
            "duration_ms": round(self.seconds * 1000, 3),
        }
        if outcome.failure is None:
            return dumps(told) + b"\nnull"
        return dumps(told) + b"\n" + dumps({"failure": outcome.failure, "errors": outcome.errors})


class ResetJob(SessionJob):
    """Commits a new version with the content of an older one."""

    alone = True

    def __init__(self, mailboxes: Mailboxes, tools: Tools, session_id: str, owner: str | None, version: int) -> None:
        super().__init__(mailboxes, session_id, owner)
        self.tools = tools
        self.to_version = version
        self.parts: dict[str, str] | None = None
        self.blobs: dict[str, bytes] = {}
        self.new_blobs: dict[str, bytes] = {}

    def work_in(self, entry: CachedSession) -> None:
        """Find the older version's parts; where its classes have changed, build version 0 anew."""
        tools, session = self.tools, entry.session
        self.deadline = time.monotonic() + tools.timeout_seconds
        parts = dict(tools.store.parts_at(self.session_id, self.to_version))
        blobs = tools.store.blobs(list(parts.values()))
        try:
            for part, blob_id in parts.items():
                tools.codec.decode(part, blobs[blob_id])
        except ClassesChangedError:
            known = tools.codec.catalog.toolpacks
            if self.to_version != 0 or any(toolpack not in known for toolpack in session.toolpacks):
                raise
            old = parts
            parts, blobs = tools.initial_parts(session.toolpacks, session.options, session.environment)
            # A store forgets no part; what the new classes divide otherwise is left empty.
            for part in old.keys() - parts.keys():
                empty = emptied(tools.codec.catalog.toolpacks[toolpack_of(part)].build({}))
                parts[part] = tools.codec.new_blob_id()
                blobs[parts[part]] = tools.codec.encode(part, empty)
            self.new_blobs = blobs
        self.blobs, self.parts = blobs, parts

    def give_up(self) -> None:
        """Answer that it took too long."""
        self.error = DeadlineError(f"The reset took longer than {self.tools.timeout_seconds:g} s; nothing has changed.")

    def settle(self, entry: CachedSession, *, release: bool) -> Commit | None:
        """See `SessionJob.settle`."""
        if self.parts is None or self.error is not None:
            return None
        entry.live.clear()
        entry.parts = self.parts
        entry.blobs = {part: self.blobs[blob_id] for part, blob_id in self.parts.items()}
        entry.index += 1
        entry.version += 1
        told = {
            "index": entry.index,
            "kind": "reset",
            "to_version": self.to_version,
            "version": entry.version,
            "started_at": timestamp(time.time()),
            "duration_ms": 0.0,
        }
        record = Record(entry.index, entry.version, None, dumps(told) + b"\nnull")
        return Commit(self.session_id, entry.epoch, record, self.parts, self.new_blobs, renew(entry), release)
