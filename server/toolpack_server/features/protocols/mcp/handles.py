"""Handles of long calls: MCP's extension `io.modelcontextprotocol/tasks`.

If a call takes long, its answer is a handle, and the client polls the result by the handle's id. MCP calls a handle a
*task*. Elsewhere in this project a task is a prompt and an evaluator for an agent.

The server stores nothing for a handle. The id contains the whole call and a keyed hash, so only this server can create
it, and it is valid only at one address of one session. Any worker can answer `tasks/get` for it: from the record of the
call, or by waiting for the running call, or by running the call again after a crash. The call_id makes sure that the
call is committed only once.
"""

import asyncio
import base64
import contextlib
import hmac
import secrets
import time
import zlib
from typing import NamedTuple

from toolpack_server.base.errors import (
    CallIdReusedError,
    DeadlineError,
    InternalError,
    InvalidParamsError,
    OverloadedError,
    RequestError,
)
from toolpack_server.base.times import timestamp
from toolpack_server.execution.call import Outcome
from toolpack_server.execution.failure import Failure
from toolpack_server.features.protocols.mcp.messages import TASKS, McpMessage, McpRefusedError
from toolpack_server.features.protocols.mcp.results import COMPLETE, adapt_error, call_result
from toolpack_server.jsonio.strict import Fragment, dumps, loads
from toolpack_server.rpc.caller import Caller
from toolpack_server.rpc.codes import Described, describe
from toolpack_server.rpc.method import App
from toolpack_server.rpc.parsing import parsed_bytes
from toolpack_server.sessions.calls import CallRequest, RecordedCall, recorded_call
from toolpack_server.sessions.reader import SessionReader
from toolpack_server.snapshots.seal import KeyedHash
from toolpack_server.stores.base import StoredSession

WAIT_SECONDS = 0.5  # how long a call or a poll waits for the result
MAX_ID = 4096  # max characters, because the id is also sent in a header
MAX_ARGUMENTS = 16 * 1024  # max bytes; they are compressed in less than a millisecond
HASH_DIGITS = 32
INTERVALS = ((10.0, 500), (60.0, 2000), (float("inf"), 5000))  # up to which age (s) polls have which interval (ms)

MISSING_CAPABILITY = -32021
NO_SUCH_TASK = "There is no such task here: send the whole taskId to the address at which the call was made."
CANCELLED_MEANWHILE = "The call was cancelled meanwhile; nothing was changed."


class Handle(NamedTuple):
    """A call that its client polls.

    Attributes:
        sent: The arguments as JSON text.
        created_at: Time of the call, in milliseconds since the epoch.
    """

    call_id: str
    function: str
    sent: bytes
    created_at: int

    def request(self, by: str) -> CallRequest:
        """Return the request of the call. `by` is the name of the address that received it."""
        return CallRequest(self.function, loads(self.sent), self.sent, self.call_id, by=by)

    @property
    def packed(self) -> str:
        """The part of the id that contains the call."""
        text = dumps([self.call_id, self.function, Fragment(self.sent), self.created_at])
        return base64.urlsafe_b64encode(zlib.compress(text)).decode().rstrip("=")

    @classmethod
    def unpack(cls, packed: str) -> "Handle":
        """Return the handle from the part of an id that contains the call."""
        text = zlib.decompress(base64.urlsafe_b64decode(packed + "=" * (-len(packed) % 4)))
        call_id, function, arguments, created_at = loads(text)
        return cls(call_id, function, dumps(arguments), created_at)


class HandleIds:
    """Creates and checks the ids of handles with the server's secret key."""

    def __init__(self, key: bytes) -> None:
        self._keyed = KeyedHash(key, "mcp handle")

    def create(self, session: StoredSession, address: str, packed: str) -> str:
        """Return the id of a handle at an address of a session. `packed` is the handle's `packed`."""
        return f"{packed}.{self._hash(session, address, packed)}"

    def open(self, session: StoredSession, address: str, handle_id: str) -> Handle:
        """Return the handle with this id.

        Raises:
            InvalidParamsError: This server didn't create the id, or created it for another session or address.
        """
        packed, _, digits = handle_id.rpartition(".")
        if len(handle_id) > MAX_ID or not hmac.compare_digest(
            digits.encode("utf-8", "replace"), self._hash(session, address, packed).encode()
        ):
            raise InvalidParamsError(NO_SUCH_TASK)
        return Handle.unpack(packed)

    def _hash(self, session: StoredSession, address: str, packed: str) -> str:
        # The agent key is hashed, not the session's id, because another session can get the id after this one ends.
        return self._keyed.of(session.agent_key, address, packed.encode("utf-8", "replace"))[:HASH_DIGITS]


class RunningCalls:
    """Calls of this worker that outlive their requests. Their arguments count as bytes in flight of the owner."""

    def __init__(self, app: App) -> None:
        self._sessions = app.sessions
        self._in_flight = app.in_flight
        self._calls: dict[_Key, set[asyncio.Future[Outcome]]] = {}
        self._cancels: set[asyncio.Future[None]] = set()

    def find(self, caller: Caller, request: CallRequest) -> "asyncio.Future[Outcome] | None":
        """Return the future of a call, or None if the call doesn't run in this worker."""
        return next(iter(self._calls.get(_key(caller, request), ())), None)

    def start(self, caller: Caller, request: CallRequest) -> "asyncio.Future[Outcome]":
        """Run a call with a call_id in the background. Return the future of its outcome."""
        key, owner, size = _key(caller, request), caller.owner, parsed_bytes(request.sent)
        call = asyncio.ensure_future(self._sessions.call(caller.session_id or "", owner, request))
        self._in_flight.add(owner, size)
        self._calls.setdefault(key, set()).add(call)

        def end(call: "asyncio.Future[Outcome]") -> None:
            """Release the memory that the call reserved, and remove the call from the running calls."""
            self._in_flight.add(owner, -size)
            self._calls[key].discard(call)
            if not self._calls[key]:
                del self._calls[key]
            if not call.cancelled():
                call.exception()  # otherwise asyncio logs it if the client never polls again

        call.add_done_callback(end)
        return call

    def cancel(self, caller: Caller, request: CallRequest) -> None:
        """Stop a call if it runs in this worker. In the background, record it as cancelled unless it is committed."""
        for call in [*self._calls.get(_key(caller, request), ())]:
            call.cancel()
        cancel = asyncio.ensure_future(self._record_cancel(caller, request))
        self._cancels.add(cancel)
        cancel.add_done_callback(self._cancels.discard)

    async def _record_cancel(self, caller: Caller, request: CallRequest) -> None:
        with contextlib.suppress(RequestError, InternalError):  # on an error the call continues, as the protocol allows
            await self._sessions.cancel_call(caller.session_id or "", caller.owner, request)


_Key = tuple[str, str, str, str, bytes]


def _key(caller: Caller, request: CallRequest) -> _Key:
    return caller.session_id or "", caller.address, request.call_id or "", request.function, request.sent


class Handles:
    """Answers calls by clients that accept handles, and the methods with which these clients poll and cancel."""

    def __init__(self, app: App) -> None:
        self._context, self._sessions = app.context, app.sessions
        self._ids = HandleIds(app.key)
        self._running = RunningCalls(app)

    async def call(self, caller: Caller, request: CallRequest) -> Outcome | bytes:
        """Run a call. Return its outcome, or the fields of a handle if the call takes long.

        If the handle's id would be too long, return the outcome when the call ends, however long it takes.
        """
        handle = Handle(request.call_id or secrets.token_hex(16), request.function, request.sent, _now())
        request = request._replace(call_id=handle.call_id)
        packed = handle.packed if len(request.sent) <= MAX_ARGUMENTS else ""
        if not packed or len(packed) + 1 + HASH_DIGITS > MAX_ID:
            return await self._sessions.call(caller.session_id or "", caller.owner, request)
        call = self._running.start(caller, request)
        try:
            await asyncio.wait({call}, timeout=WAIT_SECONDS)
            if not call.done():
                with contextlib.suppress(RequestError, InternalError):  # then answer at the end of the call
                    session, _ = await self._sessions.read(lambda reader: reader.find(*_session(caller)))
                    handle_id = self._ids.create(session, caller.address, packed)
                    return b'"resultType":"task",%b' % _task(handle_id, handle, "working")
                await asyncio.wait({call})
        except asyncio.CancelledError:  # the client has disconnected, or the server stops
            call.cancel()
            raise
        if call.cancelled():  # cancelled by `tasks/cancel` for a call with the same call_id
            raise OverloadedError(CANCELLED_MEANWHILE)
        return call.result()

    async def get(self, caller: Caller, message: McpMessage) -> bytes:
        """Answer `tasks/get`: return the result if the call has ended, otherwise the state "working".

        If the call isn't recorded, wait a moment for its end. If it doesn't run in this worker either, first run it
        again; its call_id makes this safe. A call that was cancelled, or that the server had no time or room for, still
        counts as working, so the next poll runs it again.

        Raises:
            RequestError: The id is invalid, or the call can't be run now.
        """
        handle_id = _id_of(message)
        handle, call_end = await self._find_call(caller, handle_id)
        if call_end is None:
            request = handle.request(caller.by)
            call = self._running.find(caller, request) or self._running.start(caller, request)
            await asyncio.wait({call}, timeout=WAIT_SECONDS)
            if not call.done():
                return _task(handle_id, handle, "working")
            _, call_end = await self._find_call(caller, handle_id)
            if call_end is None:
                call_end = _unrecorded(call)
        if call_end is None:
            return _task(handle_id, handle, "working")
        return _ended_task(handle_id, handle, call_end)

    async def update(self, caller: Caller, message: McpMessage) -> bytes:
        """Answer `tasks/update`. It does nothing, because no call asks its client for input."""
        await self._find_call(caller, _id_of(message))
        return b""

    async def cancel(self, caller: Caller, message: McpMessage) -> bytes:
        """Answer `tasks/cancel`. It doesn't undo a committed call."""
        handle, call_end = await self._find_call(caller, _id_of(message))
        if call_end is None:
            self._running.cancel(caller, handle.request(caller.by))
        return b""

    async def _find_call(self, caller: Caller, handle_id: str) -> "tuple[Handle, CallEnd | None]":
        """Return the handle with this id, and the end of its call, which is None if the call isn't recorded.

        Raises:
            InvalidParamsError: The id isn't valid at the caller's address.
        """

        def find(reader: SessionReader) -> "tuple[Handle, CallEnd | None]":
            """Check the id against the session, and look up the record of its call, in one read of the store."""
            session, _ = reader.find(*_session(caller))
            handle = self._ids.open(session, caller.address, handle_id)
            try:
                return handle, recorded_call(self._context, session, handle.request(caller.by))
            except CallIdReusedError as error:  # this call waited while another call with its call_id ran
                return handle, error

        return await self._sessions.read(find)


CallEnd = RecordedCall | CallIdReusedError
"""The end of a call: its record, or the error of a call that will always be refused."""


def _session(caller: Caller) -> tuple[str, str]:
    return caller.session_id or "", caller.owner


def _now() -> int:
    return round(time.time() * 1000)


def _id_of(message: McpMessage) -> str:
    """Return the id in a request about a handle.

    Raises:
        McpRefusedError: The client doesn't accept handles.
        InvalidParamsError: The id isn't a string.
    """
    if not message.accepts_handles:
        text = f"Declare the extension {TASKS} in the clientCapabilities of `_meta`: {message.method} belongs to it."
        raise message.refusal((MISSING_CAPABILITY, text, {"requiredCapabilities": {"extensions": {TASKS: {}}}}))
    handle_id = message.params.get("taskId")
    if not isinstance(handle_id, str):
        raise InvalidParamsError("`taskId` must be the id of a task, a string.")
    return handle_id


def _unrecorded(call: "asyncio.Future[Outcome]") -> RecordedCall | None:
    """Return how a call without a record ended. Return None if the next poll must run the call again.

    Raises:
        RequestError: The call can't be run now.
    """
    if call.cancelled() or isinstance(call.exception(), OverloadedError | DeadlineError):
        return None
    return RecordedCall(call.result(), time.time())


def _ended_task(handle_id: str, handle: Handle, call_end: CallEnd) -> bytes:
    """Return the fields of the answer about a call that has ended."""
    if isinstance(call_end, CallIdReusedError):
        return _failed_task(handle_id, handle, handle.created_at, adapt_error(describe(call_end)))
    outcome, at = call_end.outcome, max(round(call_end.ended_at * 1000), handle.created_at)
    if outcome.failure is not None and outcome.failure.why is Failure.CANCELLED:
        return _task(handle_id, handle, "cancelled", at) + b',"statusMessage":%b' % dumps(outcome.failure.text)
    try:
        result = call_result(outcome)
    except McpRefusedError as error:
        return _failed_task(handle_id, handle, at, error.described)
    return _task(handle_id, handle, "completed", at) + b',"result":{%b,%b}' % (result, COMPLETE)


def _failed_task(handle_id: str, handle: Handle, at: int, described: Described) -> bytes:
    """Return the fields of the answer about a call that ended with a JSON-RPC error."""
    code, text, data = described
    error = {"code": code, "message": text, "data": data}
    return _task(handle_id, handle, "failed", at) + b',"statusMessage":%b,"error":%b' % (dumps(text), dumps(error))


def _task(handle_id: str, handle: Handle, status: str, at: int | None = None) -> bytes:
    """Return the fields that are common to all answers about a handle.

    Args:
        at: Time of the call's end in milliseconds since the epoch, or None while it runs.
    """
    age = 0 if at is not None else (_now() - handle.created_at) / 1000  # an ended call's answer never changes
    members = {
        "taskId": handle_id,
        "status": status,
        "createdAt": timestamp(handle.created_at / 1000),
        "lastUpdatedAt": timestamp((handle.created_at if at is None else at) / 1000),
        "ttlMs": None,  # a handle is valid as long as its session lives
        "pollIntervalMs": next(interval for until, interval in INTERVALS if age < until),
    }
    return dumps(members)[1:-1]
