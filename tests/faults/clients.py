"""The clients: threads that call functions, retry those without an answer, and record every answer.

The rule: a client assumes nothing about the servers. The checks use only what it sent and what was answered.
"""

import http.client
import itertools
import json
import random
import threading
import time
import uuid
from collections import Counter
from dataclasses import dataclass, field

ANSWER_SECONDS = 20.0
PATIENCE_SECONDS = 60.0
RETRY_PAUSE_SECONDS = 0.05
MAX_SESSIONS = 48
OVERLOADED, VERSION_CONFLICT, NOT_RETAINED = -32006, -32005, -32011


@dataclass
class Call:
    """A call as its client knows it.

    Attributes:
        envelope: The answer; None if the client never got one.
        refused: The server answered that nothing has changed.
    """

    client: int
    function: str
    kwargs: dict
    call_id: str | None
    sent: float
    answered: float = 0.0
    envelope: dict | None = None
    refused: bool = False


@dataclass
class KnownSession:
    """A session, and what the clients know about it.

    Attributes:
        parent: The session that it was forked from, and the version.
        views: Environments that were read: version, JSON.
        resets: For each reset, in no order, the version it restored and the new version, None if unknown.
    """

    id: str
    agent_path: str
    mcp_path: str
    parent: tuple | None = None
    calls: list = field(default_factory=list)
    views: list = field(default_factory=list)
    resets: list = field(default_factory=list)


MCP_SHIFT = 1000  # between the codes of MCP and of JSON-RPC


class UnknownError(Exception):
    """No answer came, so the outcome of the request is unknown."""


class RefusedError(Exception):
    """The server answered with a JSON-RPC error."""

    def __init__(self, error):
        super().__init__(f"{error['code']}: {error['message']} {error.get('data')}")
        self.code = error["code"]
        self.message = error["message"]
        # If the outcome of a commit is unknown, the server's message doesn't say this.
        self.nothing_changed = self.code != OVERLOADED or "nothing was changed" in error["message"]


def _tool_call(function, kwargs, call_id=None):
    """Get the parameters of MCP's tools/call that stand for those of run_function."""
    meta = {} if call_id is None else {"toolpack-server/call_id": call_id}
    return {"name": function, "arguments": kwargs, "_meta": meta}


def _envelope(result):
    """Get the envelope that stands for the result of a tool."""
    (block,) = result["content"]
    if result["isError"]:
        return {"result": "", "error": block["text"]}
    try:
        return {"result": json.loads(block["text"]), "error": None}
    except ValueError:
        return {"result": block["text"], "error": None}


class Connection:
    """Sends JSON-RPC requests to some servers, on one connection at a time.

    Attributes:
        overloaded: How often each message came with code -32006, which asks to retry.
    """

    def __init__(self, ports, rng):
        self.overloaded = Counter()
        self._ports = ports
        self._rng = rng
        self._connection = None

    def send(self, method, params, path="/rpc", seconds=ANSWER_SECONDS):
        """Send one request, once."""
        if self._connection is None:
            self._connection = http.client.HTTPConnection("127.0.0.1", self._rng.choice(self._ports), timeout=seconds)
        elif self._connection.sock is not None:
            self._connection.sock.settimeout(seconds)
        speaks_mcp = path.startswith("/mcp/")
        if speaks_mcp:
            method, params = "tools/call", _tool_call(**params)
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
        try:
            self._connection.request("POST", path, body, {"Content-Type": "application/json"})
            reply = self._connection.getresponse()
            text = reply.read()
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise UnknownError(repr(error)) from error
        if reply.status == 503:
            self.close()
            raise UnknownError("503")
        response = json.loads(text)
        if "error" in response:
            error = response["error"]
            raise RefusedError(error | {"code": error["code"] + MCP_SHIFT} if speaks_mcp else error)
        return _envelope(response["result"]) if speaks_mcp else response["result"]

    def insist(self, method, params, until, path="/rpc", first_seconds=ANSWER_SECONDS):
        """Send a request, with retries until an answer says what its outcome is."""
        seconds = first_seconds
        while True:
            try:
                return self.send(method, params, path, seconds)
            except UnknownError:
                if time.monotonic() > until:
                    raise
            except RefusedError as refused:
                if refused.code != OVERLOADED:
                    raise
                self.overloaded[refused.message] += 1
                if time.monotonic() > until:
                    raise UnknownError(str(refused)) from refused
                if self._rng.random() < 0.5:
                    self.close()  # a new connection may reach another worker
            seconds = ANSWER_SECONDS
            time.sleep(RETRY_PAUSE_SECONDS)

    def close(self):
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class Clients:
    """Client threads on shared sessions.

    Attributes:
        sessions: The sessions, by id.
        surprises: Answers that should never come.
        counts: How often each action was done.
        overloaded: See `Connection`.
    """

    def __init__(self, ports, clients, sessions, seed):
        self.sessions = {}
        self.surprises = []
        self.counts = Counter()
        self.overloaded = Counter()
        self._ports = ports
        self._stopped = threading.Event()
        self._retry_until = float("inf")
        self._entries = itertools.count()
        connection = Connection(ports, random.Random(seed))
        for _ in range(sessions):
            self._add(connection.insist("create_session", {"toolpacks": ["ledger", "tally"]}, time.monotonic() + 30))
        connection.close()
        self._threads = [
            threading.Thread(target=self._run, args=(number, random.Random(f"{seed}/{number}")), daemon=True)
            for number in range(clients)
        ]

    def start(self):
        for thread in self._threads:
            thread.start()

    def stop(self):
        """Send no new requests, and wait for the running ones."""
        self._retry_until = time.monotonic() + PATIENCE_SECONDS
        self._stopped.set()
        for thread in self._threads:
            thread.join(PATIENCE_SECONDS + 2 * ANSWER_SECONDS)
            if thread.is_alive():
                self.surprises.append("a client did not finish")

    def _add(self, session, parent=None):
        known = KnownSession(session["session_id"], session["agent_path"], session["mcp_path"], parent)
        self.sessions[known.id] = known

    def _run(self, number, rng):
        connection = Connection(self._ports, rng)
        kinds = {
            self._call: 84,
            self._call_impatiently: 4,
            self._call_once: 4,
            self._call_expecting: 3,
            self._view: 2,
            self._fork: 1,
            self._reset: 1,
            self._reconnect: 1,
        }
        while not self._stopped.is_set():
            session = rng.choice(list(self.sessions.values()))
            kind = rng.choices(list(kinds), list(kinds.values()))[0]
            try:
                kind(connection, rng, session, number)
            except UnknownError:
                self.counts["never answered"] += 1
            except RefusedError as refused:
                self.surprises.append(f"{session.id} {kind.__name__}: {refused}")
            except Exception as error:  # noqa: BLE001 - a client's failure must be reported
                self.surprises.append(f"{session.id} {kind.__name__}: {error!r}")
        connection.close()
        self.overloaded += connection.overloaded

    def _call(self, connection, rng, session, number, *, with_id=True, first_seconds=ANSWER_SECONDS):
        function, kwargs = self._choice(rng)
        call = Call(number, function, kwargs, _new_id(rng) if with_id else None, time.monotonic())
        params = {"function": function, "kwargs": kwargs} | ({"call_id": call.call_id} if with_id else {})
        path = session.agent_path
        if rng.random() < 0.4 and "$call" not in json.dumps(kwargs):  # which MCP doesn't take
            path = session.mcp_path
        elif rng.random() < 0.5:
            path, params = "/rpc", params | {"session_id": session.id}
        session.calls.append(call)
        if not with_id:
            try:
                call.envelope = connection.send("run_function", params, path)
            except RefusedError as refused:
                call.refused = refused.nothing_changed
                if refused.code != OVERLOADED:
                    raise
            call.answered = time.monotonic()
            self.counts["calls"] += 1
            return
        call.envelope = connection.insist("run_function", params, self._retry_until, path, first_seconds)
        call.answered = time.monotonic()
        self.counts["calls"] += 1
        if rng.random() < 0.03:
            self.counts["sent twice"] += 1
            again = connection.insist("run_function", params, self._retry_until, path)
            if again != call.envelope:
                self.surprises.append(f"{session.id}: {params} was answered {call.envelope}, then {again}")

    def _call_impatiently(self, connection, rng, session, number):
        """Retry a call while the first attempt may still run."""
        self._call(connection, rng, session, number, first_seconds=rng.choice([0.001, 0.01, 0.1]))

    def _call_once(self, connection, rng, session, number):
        """Send a call without a call_id, and therefore without retries."""
        self._call(connection, rng, session, number, with_id=False)

    def _call_expecting(self, connection, rng, session, number):
        version = connection.insist("get_session", {"session_id": session.id}, self._retry_until)["version"]
        kwargs = {"entry": self._entry()}
        call = Call(number, "append", kwargs, _new_id(rng), time.monotonic())
        session.calls.append(call)
        params = {"session_id": session.id, "function": "append", "kwargs": kwargs, "call_id": call.call_id}
        try:
            call.envelope = connection.insist("run_function", params | {"expected_version": version}, self._retry_until)
            call.answered = time.monotonic()
        except RefusedError as refused:
            if refused.code != VERSION_CONFLICT:
                raise
            call.refused = True
        self.counts["calls"] += 1

    def _view(self, connection, rng, session, _number):
        version = self._some_version(connection, rng, session)
        params = {"session_id": session.id, "version": version}
        try:
            session.views.append((version, connection.insist("get_environment", params, self._retry_until)))
        except RefusedError as refused:
            if refused.code != NOT_RETAINED:
                raise
        self.counts["views"] += 1

    def _fork(self, connection, rng, session, _number):
        if len(self.sessions) >= MAX_SESSIONS:
            return
        version = self._some_version(connection, rng, session)
        try:
            params = {"session_id": session.id, "version": version, "count": 2}
            for fork in connection.insist("fork_session", params, self._retry_until):
                self._add(fork, (session.id, version))
        except RefusedError as refused:
            if refused.code != NOT_RETAINED:
                raise
        self.counts["forks"] += 1

    def _reset(self, connection, rng, session, _number):
        version = self._some_version(connection, rng, session)
        reset = [version, None]
        session.resets.append(reset)
        try:
            answer = connection.send("reset_session", {"session_id": session.id, "version": version})
            reset[1] = answer["version"]
        except RefusedError as refused:
            if refused.code not in {NOT_RETAINED, OVERLOADED}:
                raise
            if refused.code == NOT_RETAINED:
                session.resets.remove(reset)
        self.counts["resets"] += 1

    def _reconnect(self, connection, _rng, _session, _number):
        connection.close()

    def _some_version(self, connection, rng, session):
        version = connection.insist("get_session", {"session_id": session.id}, self._retry_until)["version"]
        return rng.choice([0, version, max(0, version - rng.randrange(20))])

    def _entry(self):
        return f"entry {next(self._entries)}"

    def _choice(self, rng):
        entry = self._entry()
        added = {"$call": {"function": "add", "args": {"name": rng.choice("abc"), "amount": rng.randrange(9)}}}
        choices = [
            (40, "append", {"entry": entry}),
            (15, "append_number", {"entry": entry, "number": added}),
            (12, "read", {"entry": entry}),
            (8, "append_and_fail", {"entry": entry}),
            (6, "append_and_fail", {"entry": entry, "number": added}),
            (5, "append_slowly", {"entry": entry, "seconds": round(rng.uniform(0.005, 0.3), 3)}),
            (0.3, "append_and_hang", {"entry": entry, "seconds": rng.choice([0, 2])}),
            (6, "add", {"name": entry, "amount": 1}),
        ]
        _, function, kwargs = rng.choices(choices, [choice[0] for choice in choices])[0]
        return function, kwargs


def _new_id(rng):
    return str(uuid.UUID(int=rng.getrandbits(128)))
