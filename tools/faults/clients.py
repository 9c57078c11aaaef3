"""The clients of the fault test: threads that call functions, retry calls without an answer, and record every answer.

At the end of the test, `checks` compares these records with the sessions on the servers.
"""

import http.client
import itertools
import json
import random
import re
import struct
import threading
import time
import uuid
import zlib
from collections import Counter
from contextlib import closing, suppress
from dataclasses import dataclass, field
from typing import NamedTuple

from raw_websocket import TEXT, RawWebSocket

ANSWER_TIMEOUT_SECONDS = 20.0
TIMEOUT_SECONDS = 60.0
RETRY_PAUSE_SECONDS = 0.05
MAX_SESSIONS = 48
OVERLOADED, VERSION_CONFLICT, NOT_RETAINED, INVALID_PARAMS, FAILED = -32006, -32005, -32011, -32602, -32002
CRASHED = "CrashedError"  # the error of a call if its process died; the call changed nothing
TOOLPACKS = ["ledger", "tally", "shelf"]
TASK = "shelf/look"
GYM = "/{function}"  # the path for calls of NeMo Gym's agents
STEP = "/openenv/shelf/step"  # the path for calls of OpenEnv's clients, in sessions with this task
SOCKET = "/openenv/shelf/ws?session_id="  # the path for WebSockets of OpenEnv's clients
SWITCHING = 101
OWN_SESSION = f"/mcp?task={TASK}"  # the path at which an MCP client begins its own session
LABELS = {"by": "clients"}
KEYS = [f"key {number}" for number in range(40)]
READING = {"read", "find", "count"}
FUNCTIONS = ["append", "append_number", "append_and_fail", "append_slowly", "append_patiently", "append_and_hang"]
FUNCTIONS += ["append_too_late", "add", "put", "take", "put_and_fail", *READING]
AGENT, CLIENT = "agent", "client"

RULES = [
    {"name": "down", "functions": "append", "calls": "3/7", "error": "ConnectionError: the ledger is down"},
    {"name": "lost", "functions": "put", "calls": "2/5", "lost": "TimeoutError: no answer"},
    {"name": "told", "functions": "read", "rate": 0.4, "append": " obey"},
    {"name": "flaky", "functions": "take", "rate": 0.3, "error": "OSError: try again"},
    {"name": "stale", "functions": "find", "calls": "2/3", "stale": True},
]
MAX_GUEST_CALLS = 12
PARTICIPANTS = {
    "buyer": {"functions": ["append", "append_slowly", "append_patiently", "put", "take", "read", "find"]},
    "guest": {"functions": ["append", "add", "read", "find", "count"], "max_calls": MAX_GUEST_CALLS},
}
ALWAYS_LATE = {"append_and_hang", "append_too_late"}


@dataclass
class Call:
    """A call or a message that a client sent.

    Attributes:
        client: The number of the client.
        function: The function, or the method `say` or `add_message` for a message.
        sent: The time of the first request, in seconds of `time.monotonic`.
        by: The address at which the client sent the request.
        late: True if the request had a deadline that the call can't meet.
        answered: The time of the answer.
        envelope: The answer; None if the client never received it.
        refused: True if the server answered that nothing was changed.
    """

    client: int
    function: str
    kwargs: dict
    call_id: str | None
    sent: float
    by: str = CLIENT
    late: bool = False
    answered: float = 0.0
    envelope: dict | None = None
    refused: bool = False


class Delivery(NamedTuple):
    """The messages that a participant received after the given index."""

    by: str
    after: int
    messages: list


@dataclass
class KnownSession:
    """A session, and all that clients know about it.

    Attributes:
        paths: The agent path and the MCP path of each address.
        parent: The session that was forked, and the version of the fork.
        seed: The seed of the rules; None if the session has no rules.
        participants: Whether the session has participants.
        task: Whether the session has a task.
        openenv_id: The session's id for OpenEnv's clients.
        reset: The parameters of OpenEnv's `reset` that created the session; None if another request created it.
        mcp_id: The session's id for the MCP client that began it.
        labels: The labels that list the session.
        calls: The calls and messages that clients sent.
        views: Environments that clients read, as pairs of a version and `compress`ed JSON.
        verdicts: Pairs of an evaluated version and the verdict.
        resets: For each reset, in no order, the restored version and the new version, which is None if unknown.
        episode: The session's id for clients of ORS; None if ORS can't use the session.
        deliveries: The messages that participants received.
        last_indexes: The index of the last message that each participant has received.
    """

    id: str
    paths: dict
    parent: tuple | None = None
    seed: str | None = None
    participants: bool = False
    task: bool = False
    openenv_id: str | None = None
    reset: dict | None = None
    mcp_id: str | None = None
    labels: dict = field(default_factory=lambda: LABELS)
    calls: list = field(default_factory=list)
    views: list = field(default_factory=list)
    verdicts: list = field(default_factory=list)
    resets: list = field(default_factory=list)
    episode: str | None = None
    deliveries: list = field(default_factory=list)
    last_indexes: dict = field(default_factory=dict)

    @property
    def is_settled(self):
        """True if all resets were answered."""
        return all(version is not None for _, version in self.resets)


SESSION_FEATURES = [{}, {"task"}, {"rules"}, {"participants"}, {"rules", "participants", "task"}, {"rules", "task"}]
SESSION_FEATURES += [{"task", "ors"}]
"""The features of each session at the start. Session number N has the features at N, modulo the length."""


def session_parameters(number, episode):
    """Return the parameters that create a session, and the matching fields of `KnownSession`.

    Args:
        number: The session's number, which decides its features.
        episode: The session's unique name in the trainers' protocols.
    """
    kind = SESSION_FEATURES[number % len(SESSION_FEATURES)]
    params = {"toolpacks": TOOLPACKS, "labels": LABELS}
    fields = {"task": "task" in kind, "participants": "participants" in kind}
    if "ors" in kind:
        fields["episode"] = episode
        params["labels"] = LABELS | {"ors": fields["episode"]}
    if "rules" in kind:
        fields["seed"] = f"seed {number % 4}"
        params["perturbations"] = {"rules": RULES, "seed": fields["seed"]}
    if "participants" in kind:
        params["participants"] = PARTICIPANTS
    if "task" in kind:
        params["task"] = TASK
        if "participants" not in kind:
            fields["openenv_id"] = episode
            params["labels"] = params["labels"] | dict.fromkeys(("openenv", "openenv-episode"), episode)
    return params, fields


def functions_of(by):
    """Return the functions that an address may call."""
    return PARTICIPANTS.get(by, {}).get("functions", FUNCTIONS)


def is_unrecorded(envelope):
    """Return whether an answer belongs to a call that leaves no record."""
    error = str(envelope["error"])
    return error.startswith(UNRECORDED) or SUSPECTED in error


def compress(value):
    """Return compact JSON that is the same for equal values."""
    return zlib.compress(json.dumps(value, sort_keys=True).encode(), 1)


UNRECORDED = "EpisodeOverError"  # the error of calls after the last allowed call; the server doesn't record them
SUSPECTED = "has ended its process 3 times"  # the answer to a suspected call, which the server doesn't run or record
MCP_SHIFT = 1000  # difference between the error codes of MCP and of JSON-RPC


class UnknownError(Exception):
    """No answer came, so the outcome of the request is unknown."""


class NeverAnsweredError(UnknownError):
    """No answer came within the time in which the server must answer."""


class RefusedError(Exception):
    """The server answered with a JSON-RPC error."""

    def __init__(self, error):
        super().__init__(f"{error['code']}: {error['message']} {error.get('data')}")
        self.code = error["code"]
        self.message = error["message"]
        # If a commit's outcome is unknown, the server's message doesn't say that nothing was changed.
        self.nothing_changed = self.code != OVERLOADED or "nothing was changed" in error["message"]


def _tool_call(function, kwargs, call_id=None):
    """Return the parameters of MCP's tools/call that correspond to those of run_function."""
    meta = {} if call_id is None else {"toolpack-server/call_id": call_id}
    return {"name": function, "arguments": kwargs, "_meta": meta}


def _envelope(result):
    """Return the envelope that corresponds to a tool's result."""
    (block,) = result["content"]
    if result["isError"]:
        return {"result": "", "error": block["text"]}
    try:
        return {"result": json.loads(block["text"]), "error": None}
    except ValueError:
        return {"result": block["text"], "error": None}


def _step(function, kwargs, call_id, episode):
    """Return the body of OpenEnv's step that corresponds to run_function."""
    action = {"type": "call_tool", "tool_name": function, "arguments": kwargs}
    return {"action": action, "episode_id": episode, "request_id": call_id}


def _is_recorded_crash(function, text):
    """Return whether a text is the recorded crash of a call of this function.

    A crash of the evaluator, which may follow the call, names no function. It isn't recorded, so the client retries.
    """
    return text.startswith(f"{CRASHED}: `{function}` ")


def _step_envelope(response, function):
    """Return the envelope that corresponds to the answer to OpenEnv's step."""
    if "detail" in response:
        raise RefusedError({"code": "a step was refused", "message": response["detail"]})
    error, result = response["observation"]["error"], response["observation"]["result"]
    if error is not None:
        over = f"{UNRECORDED}: " if error["error_type"] == "execution_error" else ""
        return {"result": "", "error": over + error["message"]}
    if not isinstance(result, str) or not re.match(r"\w+Error: ", result):
        return {"result": result, "error": None}
    if result.startswith(CRASHED) and not _is_recorded_crash(function, result):
        raise RefusedError({"code": FAILED, "message": result})
    return {"result": "", "error": result}


def _gym_envelope(text):
    """Return the envelope that corresponds to the text that NeMo Gym's agents receive."""
    if text.startswith('{"detail":'):
        raise RefusedError({"code": "a call of NeMo Gym was refused", "message": json.loads(text)["detail"]})
    if re.match(r"\w+Error: ", text):
        return {"result": "", "error": text}
    try:
        return {"result": json.loads(text), "error": None}
    except ValueError:
        return {"result": text, "error": None}


class Connection:
    """Sends requests to one of several servers, on one connection at a time. A new connection may use another server.

    Attributes:
        overloaded: The number of answers with code -32006, which asks the client to retry, by message.
        mcp_session_id: The header `Mcp-Session-Id` of the last answer.
    """

    def __init__(self, ports, rng):
        self.overloaded = Counter()
        self.mcp_session_id = None
        self._ports = ports
        self._rng = rng
        self._connection = None

    def send(self, method, params, path="/rpc", seconds=ANSWER_TIMEOUT_SECONDS):
        """Send a request once, and return the result. The path decides the protocol.

        Raises:
            UnknownError: No answer came.
            RefusedError: The server answered with an error.
        """
        if self._connection is None:
            self._connection = http.client.HTTPConnection("127.0.0.1", self._rng.choice(self._ports), timeout=seconds)
        elif self._connection.sock is not None:
            self._connection.sock.settimeout(seconds)
        if path == GYM:
            headers = {"Content-Type": "application/json", "Cookie": f"toolpack_session={params['session_id']}"}
            body = json.dumps(params["kwargs"])
            return _gym_envelope(self._post(path.format(**params), body, headers).decode())
        is_mcp, headers = path.startswith("/mcp"), {"Content-Type": "application/json"}
        is_tool_call = path.startswith("/mcp/")
        if is_tool_call:
            method, params = "tools/call", _tool_call(**params)
            if self._rng.random() < 0.5:  # the key in the path is also a valid session id at /mcp
                path, headers["Mcp-Session-Id"] = "/mcp", path.removeprefix("/mcp/")
        request = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        body = json.dumps(_step(**params) if path == STEP else request)
        response = json.loads(self._post(path, body, headers))
        if path == STEP:
            return _step_envelope(response, params["function"])
        if "error" in response:
            error = response["error"]
            raise RefusedError(error | {"code": error["code"] + MCP_SHIFT} if is_mcp else error)
        return _envelope(response["result"]) if is_tool_call else response["result"]

    def end_mcp_session(self, session_id):
        """End a session of MCP with one request, which isn't repeated."""
        if self._connection is None:
            port = self._rng.choice(self._ports)
            self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=ANSWER_TIMEOUT_SECONDS)
        if text := self._post("/mcp", None, {"Mcp-Session-Id": session_id}, "DELETE"):
            raise RuntimeError(f"the request to end {session_id} was answered with {text[:500]}")

    def _post(self, path, body, headers, verb="POST"):
        try:
            self._connection.request(verb, path, body, headers)
            reply = self._connection.getresponse()
            text = reply.read()
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise UnknownError(repr(error)) from error
        if reply.status == 503:
            self.close()
            raise UnknownError("503")
        if reply.status >= 500:
            raise RuntimeError(f"{path} was answered {reply.status}: {text[:500]}")
        self.mcp_session_id = reply.headers["Mcp-Session-Id"]
        return text

    def call_over_ors(self, episode, function, kwargs, task_id, until):
        """Call a function as a client of ORS does, and return the envelope. Repeat a request whose stream broke."""
        body = json.dumps({"name": function, "input": kwargs, "task_id": task_id})
        headers = {"Content-Type": "application/json", "X-Session-ID": episode}
        while True:
            if self._connection is None:
                port = self._rng.choice(self._ports)
                self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=ANSWER_TIMEOUT_SECONDS)
            with suppress(UnknownError):
                events = self._post("/call", body, headers).decode().split("\n\n")
                texts = [
                    event.partition("data: ")[2] for event in events if event.startswith(("event: chunk", "event: end"))
                ]
                if any(event.startswith("event: error") for event in events):
                    raise RuntimeError(f"{episode} {function}: {events}")
                if any(event.startswith("event: end") for event in events):
                    result = json.loads("".join(texts))
                    if not result["ok"]:
                        raise RuntimeError(f"{episode} {function}: {result}")
                    text = result["output"]["blocks"][0]["text"]
                    if _is_recorded_crash(function, text):
                        return {"result": "", "error": text}
                    if not text.startswith(CRASHED):
                        return {"result": json.loads(text), "error": None}
            if until():
                raise NeverAnsweredError(f"{episode} {function}")
            self.close()
            time.sleep(RETRY_PAUSE_SECONDS)

    def insist(self, method, params, until, path="/rpc", first_seconds=ANSWER_TIMEOUT_SECONDS):
        """Send a request, and repeat it until the server answers whether it succeeded.

        Args:
            method: The method.
            params: The parameters.
            until: The time to give up, in seconds of `time.monotonic`, or a function that returns whether to give up.
            path: The path.
            first_seconds: How long to wait for the first answer.

        Raises:
            NeverAnsweredError: It is time to give up.
            RefusedError: The server answered with an error that a retry doesn't help.
        """
        is_over = until if callable(until) else lambda: time.monotonic() > until
        seconds = first_seconds
        while True:
            try:
                return self.send(method, params, path, seconds)
            except UnknownError as error:
                if is_over():
                    raise NeverAnsweredError(str(error)) from error
            except RefusedError as refused:
                if refused.code != OVERLOADED and not (refused.code == FAILED and CRASHED in refused.message):
                    raise
                self.overloaded[refused.message] += 1
                if is_over():
                    raise NeverAnsweredError(str(refused)) from refused
                if self._rng.random() < 0.5:
                    self.close()  # a new connection may reach another worker
            seconds = ANSWER_TIMEOUT_SECONDS
            time.sleep(RETRY_PAUSE_SECONDS)

    def close(self):
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class Socket(Connection):
    """Sends OpenEnv's messages on a WebSocket, and reconnects when it breaks."""

    def send(self, method, params, path, seconds=ANSWER_TIMEOUT_SECONDS):
        """Send one message once. Return the observation, or for a step the envelope."""
        try:
            if self._connection is None:
                self._connection = RawWebSocket(self._rng.choice(self._ports), path, seconds=seconds)
            if self._connection.status == SWITCHING:
                self._connection.connection.settimeout(seconds)
                self._connection.say({"type": method, "data": params})
                opcode, text = self._connection.read()
                reply = json.loads(text) if opcode == TEXT else None
        except (
            OSError,
            TypeError,
            ValueError,
            IndexError,
            struct.error,
        ) as error:  # the WebSocket ended, perhaps within a frame
            self.close()
            raise UnknownError(repr(error)) from error
        status = self._connection.status
        if status != SWITCHING or reply is None:
            refused = self._connection.body
            self.close()
            if status not in {SWITCHING, 503}:
                raise RuntimeError(f"{path} was answered {status}: {refused[:500]}")
            raise UnknownError("closed" if status == SWITCHING else "503")
        data = reply["data"]
        if reply["type"] == "error":
            code = OVERLOADED if data["code"] == "CAPACITY_REACHED" else data["code"]
            raise RefusedError({"code": code, "message": data["message"]})
        return _step_envelope(data, params["tool_name"]) if method == "step" else data

    def close(self):
        if self._connection is not None:
            self._connection.__exit__()
            self._connection = None


class Clients:
    """Client threads on shared sessions.

    Attributes:
        sessions: The sessions by id.
        unexpected_answers: Answers that a correct server never gives.
        counts: The number of actions of each kind.
        overloaded: The number of answers with code -32006, by message.
    """

    def __init__(self, ports, clients, sessions, seed):
        self.sessions = {}
        self.unexpected_answers = []
        self.counts = Counter()
        self.overloaded = Counter()
        self._ports = ports
        self._stopped = threading.Event()
        self._until = float("inf")
        self._entries = itertools.count()
        # Numbers of calls and of actions. They are used up first, so that even a short run has rare calls and actions.
        self._unused_choices = [*range(64)]
        self._unused_kinds = [*range(64)]
        rng = random.Random(seed)
        connection = Connection(ports, rng)
        for number in range(sessions):
            params, fields = session_parameters(number, f"episode-{_new_id(rng)}")
            params["call_id"] = _new_id(rng)
            self._add(connection.insist("create_session", params, time.monotonic() + TIMEOUT_SECONDS), **fields)
        connection.close()
        self._threads = [
            threading.Thread(target=self._run, args=(number, random.Random(f"{seed}/{number}")), daemon=True)
            for number in range(clients)
        ]

    def start(self):
        for thread in self._threads:
            thread.start()

    def stop(self):
        """Send no new requests, and wait for the answers to the running requests."""
        self._until = time.monotonic() + TIMEOUT_SECONDS
        self._stopped.set()
        for thread in self._threads:
            thread.join(TIMEOUT_SECONDS + 2 * ANSWER_TIMEOUT_SECONDS)
            if thread.is_alive():
                self.unexpected_answers.append("a client did not finish")

    def _is_over(self):
        """Return whether clients must give up requests that still wait for an answer."""
        return time.monotonic() > self._until

    def _add(self, session, parent=None, **fields):
        participants = session.get("participants") or {AGENT: session}
        paths = {name: (each["agent_path"], each["mcp_path"]) for name, each in participants.items()}
        self.sessions[session["session_id"]] = KnownSession(session["session_id"], paths, parent, **fields)

    def _run(self, number, rng):
        connection = Connection(self._ports, rng)
        kinds = {
            self._call: 74,
            self._call_impatiently: 4,
            self._call_once: 4,
            self._call_expecting: 3,
            self._add_message: 1,
            self._say: 4,
            self._listen: 4,
            self._read_environment: 2,
            self._evaluate: 2,
            self._call_over_ors: 6,
            self._call_as_gym: 4,
            self._step_on_socket: 6,
            self._begin_on_socket: 0.5,
            self._begin_over_mcp: 0.5,
            self._end_mcp_session: 0.5,
            self._fork: 1,
            self._reset: 1,
            self._reconnect: 1,
        }
        while not self._stopped.is_set():
            kind = rng.choices(list(kinds), list(kinds.values()))[0]
            first = None
            with suppress(IndexError):
                first = self._unused_kinds.pop()
                kind = [*kinds][first % len(kinds)]
            required_field = {
                self._say: "participants",
                self._listen: "participants",
                self._evaluate: "task",
                self._call_over_ors: "episode",
                self._step_on_socket: "openenv_id",
                self._end_mcp_session: "mcp_id",
            }.get(kind, "id")
            candidates = [each for each in list(self.sessions.values()) if getattr(each, required_field)]
            if not candidates:  # no session can do this action yet, so it is done later
                if first is not None:
                    self._unused_kinds.insert(0, first)
                kind, candidates = self._call, list(self.sessions.values())
            session = rng.choice(candidates)
            try:
                kind(connection, rng, session, number)
            except NeverAnsweredError as error:
                self.unexpected_answers.append(f"{session.id} {kind.__name__}: never answered: {error}")
            except UnknownError:
                self.counts["never answered"] += 1
            except RefusedError as refused:
                self.unexpected_answers.append(f"{session.id} {kind.__name__}: {refused}")
            except Exception as error:  # noqa: BLE001 - a client's failure must be reported
                self.unexpected_answers.append(f"{session.id} {kind.__name__}: {error!r}")
        connection.close()
        self.overloaded += connection.overloaded

    def _call(self, connection, rng, session, number, *, with_id=True, first_seconds=ANSWER_TIMEOUT_SECONDS, by=None):
        """Call a random function at a random address, by a random protocol, and record the call."""
        function, kwargs, *deadline = self._choose_call(rng)
        by = by or rng.choice([CLIENT, *session.paths])
        # Two calls without an entry may be equal, so the checks could confuse them without an id.
        with_id = with_id or "entry" not in kwargs or deadline
        call_id = _new_id(rng) if with_id else None
        call = Call(number, function, kwargs, call_id, time.monotonic(), by, late=bool(deadline))
        params = {"function": function, "kwargs": kwargs}
        params |= ({"call_id": call_id} if with_id else {}) | ({"timeout_seconds": deadline[0]} if deadline else {})
        path = "/rpc"
        if by == CLIENT:
            params["session_id"] = session.id
        else:
            path, mcp_path = session.paths[by]
            # MCP and OpenEnv have no nested calls and no deadlines, and only functions that the address may call.
            is_plain = not deadline and "$call" not in json.dumps(kwargs) and function in functions_of(by)
            if is_plain and rng.random() < 0.5:
                path = mcp_path
            elif is_plain and with_id and session.openenv_id and by == AGENT:
                path, params["episode"] = STEP, session.openenv_id
                call.call_id = f"openenv-{call_id}"
                self.counts["steps of OpenEnv"] += 1
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
        call.envelope = connection.insist("run_function", params, self._is_over, path, first_seconds)
        call.answered = time.monotonic()
        self.counts["calls"] += 1
        if rng.random() < 0.05 and not is_unrecorded(call.envelope):
            self.counts["sent twice"] += 1
            second_answer = connection.insist("run_function", params, self._is_over, path)
            if second_answer != call.envelope:
                self._report_second_answer(session, params, call, second_answer)

    def _report_second_answer(self, session, request, call, second_answer):
        """Report that a repeated request got another answer than the first request."""
        self.unexpected_answers.append(f"{session.id}: {request} was answered {call.envelope}, then {second_answer}")

    def _call_over_ors(self, connection, rng, session, number):
        """Append an entry through the paths of ORS, and sometimes repeat the call with the same id."""
        kwargs, task_id = {"entry": self._entry()}, _new_id(rng)
        call = Call(number, "append", kwargs, f"ors-{task_id}", time.monotonic(), AGENT)
        session.calls.append(call)
        call.envelope = connection.call_over_ors(session.episode, "append", kwargs, task_id, self._is_over)
        call.answered = time.monotonic()
        self.counts["calls over ORS"] += 1
        if rng.random() < 0.2:
            second_answer = connection.call_over_ors(session.episode, "append", kwargs, task_id, self._is_over)
            if second_answer != call.envelope:
                self._report_second_answer(session, kwargs, call, second_answer)

    def _call_as_gym(self, connection, rng, session, number):  # noqa: ARG002
        """Append an entry as NeMo Gym's agents do. Their calls have no ids, so the call isn't repeated."""
        kwargs = {"entry": self._entry()}
        call = Call(number, "append", kwargs, None, time.monotonic(), AGENT)
        session.calls.append(call)
        params = {"function": "append", "kwargs": kwargs, "session_id": session.id}
        call.envelope = connection.send("run_function", params, GYM)
        call.answered = time.monotonic()
        self.counts["calls of NeMo Gym"] += 1

    def _step_on_socket(self, connection, rng, session, number):  # noqa: ARG002
        """Append entries on a series of WebSockets, as OpenEnv's clients do, and sometimes repeat a message."""
        sid = f"sid-{_new_id(rng)}" if session.reset and rng.random() < 0.3 else session.openenv_id
        socket = Socket(self._ports, rng)
        with closing(socket):
            if sid != session.openenv_id:
                reply = socket.insist("reset", session.reset, self._is_over, SOCKET + sid)
                if reply["metadata"]["session_id"] != session.id:
                    self.unexpected_answers.append(f"{session.id}: {session.reset} gave {reply}")
                self.counts["episodes in another session"] += 1
            for _ in range(rng.randrange(1, 4)):
                kwargs, call_id = {"entry": self._entry()}, _new_id(rng)
                call = Call(number, "append", kwargs, f"openenv-{call_id}", time.monotonic(), AGENT)
                session.calls.append(call)
                action = {"type": "call_tool", "tool_name": "append", "arguments": kwargs}
                message = "step", action | {"metadata": {"call_id": call_id}}, self._is_over, SOCKET + sid
                call.envelope = socket.insist(*message)
                call.answered = time.monotonic()
                self.counts["steps on WebSockets"] += 1
                if rng.random() < 0.2:
                    second_answer = socket.insist(*message)
                    if second_answer != call.envelope:
                        self._report_second_answer(session, kwargs, call, second_answer)
        self.overloaded += socket.overloaded

    def _begin_on_socket(self, connection, rng, _session, _number):
        """Begin an episode in a new session, as OpenEnv's clients do. A repeated message mustn't create another one."""
        if len(self.sessions) >= MAX_SESSIONS:
            return
        name = f"episode-{_new_id(rng)}"
        socket = Socket(self._ports, rng)
        with closing(socket):
            reset = {"task": TASK, "episode_id": name}
            answer = socket.insist("reset", reset, self._is_over, SOCKET + name)
        self.overloaded += socket.overloaded
        session = self._find_session(connection, {"openenv-episode": name})
        if answer["metadata"]["session_id"] != session["session_id"]:
            self.unexpected_answers.append(f"{answer} isn't {session}")
        self._add(session, task=True, openenv_id=name, reset=reset, labels={"openenv-episode": name})
        self.counts["episodes begun on WebSockets"] += 1

    def _begin_over_mcp(self, connection, rng, _session, _number):
        """Begin a session as an MCP client does at the path of a task.

        A repeated message mustn't create another session.
        """
        if len(self.sessions) >= MAX_SESSIONS:
            return
        name = f"client-{_new_id(rng)}"
        params = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": name, "version": "1"}}
        params["_meta"] = {"toolpack-server/call_id": name}
        connection.insist("initialize", params, self._is_over, OWN_SESSION)
        mcp_id = connection.mcp_session_id
        session = self._find_session(connection, {"mcp": name})
        if session["mcp_path"] != f"/mcp/{mcp_id}":
            self.unexpected_answers.append(f"{name} has the session {mcp_id}, not {session}")
        self._add(session, task=True, mcp_id=mcp_id, labels={"mcp": name})
        self.counts["sessions begun over MCP"] += 1

    def _find_session(self, connection, labels):
        """Return the session with these labels. Report if it isn't the only one."""
        listed = connection.insist("list_sessions", {"labels": labels}, self._is_over)
        if len(listed) != 1:
            self.unexpected_answers.append(f"{labels} must belong to one session: {listed}")
        return listed[0]

    def _end_mcp_session(self, connection, rng, session, number):
        """Call a function as the agent of an MCP session, then end the session.

        The server evaluates the session, because its agent has called a function. Other clients may still use it.
        """
        self._call(connection, rng, session, number, by=AGENT)
        answers = [call.envelope for call in session.calls if call.by == AGENT and call.envelope is not None]
        if not all(map(is_unrecorded, answers)):
            connection.end_mcp_session(session.mcp_id)
            self.counts["sessions left over MCP"] += 1

    def _call_impatiently(self, connection, rng, session, number):
        """Call with a short timeout, so that the retry meets the running first attempt."""
        self._call(connection, rng, session, number, first_seconds=rng.choice([0.001, 0.01, 0.1]))

    def _call_once(self, connection, rng, session, number):
        """Send a call without a `call_id`, and therefore without retries."""
        self._call(connection, rng, session, number, with_id=False)

    def _call_expecting(self, connection, rng, session, number):
        """Call with the expected version of the session. The server refuses the call if the version has changed."""
        version = connection.insist("get_session", {"session_id": session.id}, self._is_over)["version"]
        kwargs = {"entry": self._entry()}
        call = Call(number, "append", kwargs, _new_id(rng), time.monotonic())
        session.calls.append(call)
        params = {"session_id": session.id, "function": "append", "kwargs": kwargs, "call_id": call.call_id}
        try:
            call.envelope = connection.insist("run_function", params | {"expected_version": version}, self._is_over)
            call.answered = time.monotonic()
        except RefusedError as refused:
            if refused.code != VERSION_CONFLICT:
                raise
            call.refused = True
        self.counts["calls"] += 1

    def _add_message(self, connection, rng, session, number):
        """Add a message that only evaluators see to the session's record."""
        kwargs = {"role": rng.choice(["user", "assistant"]), "content": self._entry()}
        self._send_message(connection, rng, session, Call(number, "add_message", kwargs, None, time.monotonic()))

    def _send_message(self, connection, rng, session, call):
        """Send a message until it is answered, and sometimes once more."""
        call.call_id = _new_id(rng)
        session.calls.append(call)
        params, path = call.kwargs | {"call_id": call.call_id}, "/rpc"
        if call.by == CLIENT:
            params["session_id"] = session.id
        else:
            path, _ = session.paths[call.by]
        call.envelope = connection.insist(call.function, params, self._is_over, path)
        call.answered = time.monotonic()
        if rng.random() < 0.1:
            self.counts["sent twice"] += 1
            connection.insist(call.function, params, self._is_over, path)

    def _say(self, connection, rng, session, number):
        """Send a message to another participant. The participant must receive it at once, if no reset removed it."""
        by, other = rng.sample(list(session.paths), 2)
        kwargs = {"text": self._entry(), "to": rng.choice([None, other])}
        resets, was_settled = len(session.resets), session.is_settled
        after = len(self._receive(connection, session, other, {"after": -1})) - 1
        self._send_message(connection, rng, session, Call(number, "say", kwargs, None, time.monotonic(), by))
        texts = self._receive(connection, session, other, {"after": after})
        is_settled = was_settled and session.is_settled and len(session.resets) == resets
        if texts is not None and is_settled:
            self.counts["messages expected"] += 1
            if kwargs["text"] not in texts:
                self.unexpected_answers.append(f"{session.id}: {other} has not received {kwargs}, which {by} has said")

    def _listen(self, connection, rng, session, _number):
        """Wait until another participant says something."""
        by = rng.choice(list(session.paths))
        after = rng.choice([-1, *[session.last_indexes.get(by, -1)] * 9])
        self._receive(connection, session, by, {"after": after, "wait_seconds": rng.choice([0, 0.5, 2])})

    def _receive(self, connection, session, by, params):
        """Return the texts that a participant receives, or None if a reset removed messages that it had received."""
        path, _ = session.paths[by]
        try:
            messages = connection.insist("listen", params, self._is_over, path)["messages"]
        except RefusedError as refused:
            if refused.code != INVALID_PARAMS or "the session was reset" not in str(refused):
                raise
            session.last_indexes[by] = -1
            return None
        self.counts["messages heard"] += len(messages)
        if messages:
            session.deliveries.append(Delivery(by, params["after"], messages))
            session.last_indexes[by] = messages[-1]["index"]
        return [message["content"] for message in messages]

    def _read_environment(self, connection, rng, session, _number):
        version = self._choose_version(connection, rng, session)
        params = {"session_id": session.id, "version": version}
        try:
            environment = connection.insist("get_environment", params, self._is_over)
        except RefusedError as refused:
            if refused.code != NOT_RETAINED:
                raise
            return
        session.views.append((version, compress(environment)))
        self.counts["views"] += 1

    def _evaluate(self, connection, rng, session, _number):
        params = {"session_id": session.id}
        try:
            if rng.random() < 0.3:
                verdict = connection.send("evaluate_session", params | {"record": True})
            else:
                params["version"] = self._choose_version(connection, rng, session)
                verdict = connection.insist("evaluate_session", params, self._is_over)
        except RefusedError as refused:
            # The evaluator fails if a fault kills its process.
            killed = refused.code == FAILED and "ended its process (signal 9)" in refused.message
            if refused.code not in {NOT_RETAINED, OVERLOADED} and not killed:
                raise
            return
        session.verdicts.append((verdict["version"], verdict))
        self.counts["verdicts"] += 1

    def _fork(self, connection, rng, session, _number):
        if len(self.sessions) >= MAX_SESSIONS:
            return
        version = self._choose_version(connection, rng, session)
        params = {"session_id": session.id, "version": version, "count": 2, "call_id": _new_id(rng)}
        fields = {name: getattr(session, name) for name in ("seed", "participants", "task", "labels")}
        try:
            forks = connection.insist("fork_session", params, self._is_over)
        except UnknownError:
            self.counts["forks without an answer"] += 1
            raise
        except RefusedError as refused:
            if refused.code != NOT_RETAINED:
                raise
            return
        for fork in forks:
            self._add(fork, (session.id, version), **fields)
        self.counts["forks"] += 1

    def _reset(self, connection, rng, session, _number):
        version = self._choose_version(connection, rng, session)
        reset = [version, None]
        session.resets.append(reset)
        params = {"session_id": session.id, "version": version}
        try:
            if rng.random() < 0.7:
                answer = connection.insist("reset_session", params | {"call_id": _new_id(rng)}, self._is_over)
            else:
                answer = connection.send("reset_session", params)
            reset[1] = answer["version"]
            self.counts["resets"] += 1
        except RefusedError as refused:
            if refused.code not in {NOT_RETAINED, OVERLOADED}:
                raise
            if refused.nothing_changed:
                session.resets.remove(reset)

    def _reconnect(self, connection, _rng, _session, _number):
        connection.close()

    def _choose_version(self, connection, rng, session):
        version = connection.insist("get_session", {"session_id": session.id}, self._is_over)["version"]
        return rng.choice([0, version, max(0, version - rng.randrange(20))])

    def _entry(self):
        return f"entry {next(self._entries)}"

    def _choose_call(self, rng):
        entry = self._entry()
        added = {"$call": {"function": "add", "args": {"name": rng.choice("abc"), "amount": rng.randrange(9)}}}
        key = rng.choice(KEYS)
        choices = [
            (30, "append", {"entry": entry}),
            (10, "append_number", {"entry": entry, "number": added}),
            (10, "read", {"entry": entry}),
            (6, "append_and_fail", {"entry": entry}),
            (4, "append_and_fail", {"entry": entry, "number": added}),
            (4, "append_slowly", {"entry": entry, "seconds": round(rng.uniform(0.005, 0.3), 3)}),
            (1, "append_patiently", {"entry": entry, "seconds": round(rng.uniform(0.3, 4), 3)}),
            (0.4, "append_patiently", {"entry": entry, "seconds": 2}, 0.3),
            (0.3, "append_and_hang", {"entry": entry, "seconds": rng.choice([0, 2])}),
            (0.3, "append_too_late", {"entry": entry, "seconds": rng.choice([1, 3])}),
            (5, "add", {"name": f"name {rng.randrange(50)}", "amount": 1}),
            (
                10,
                "put",
                {"entry": entry, "key": key, "quantity": rng.randrange(9), "size": rng.choice([1, 1, 20, 200])},
            ),
            (8, "take", {"entry": entry, "key": key, "quantity": rng.randrange(9)}),
            (3, "put_and_fail", {"entry": entry, "key": key}),
            (4, "find", {"key": key}),
            (3, "count", {"entry": entry}),
        ]
        with suppress(IndexError):  # each choice comes once at first
            return choices[self._unused_choices.pop() % len(choices)][1:]
        return rng.choices(choices, [choice[0] for choice in choices])[0][1:]


def _new_id(rng):
    return str(uuid.UUID(int=rng.getrandbits(128)))
