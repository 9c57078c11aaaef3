"""A crowd of sessions, in a process of its own: each session is created, makes one call that waits, and is closed.

    python crowd.py ours|episodes|answers|our_openenv|ors|nemo_gym|mcp|openenv PORT SESSIONS SECONDS [TOKEN]

It prints one line of JSON: the durations of the sessions that ended well, and the problems of the other sessions. The
process shares the processor with the server, so it uses as little processor time as possible: prepared bytes, one
connection per session, no library for HTTP or WebSockets. A session's time runs from the start of the whole crowd.
"""

import asyncio
import json
import resource
import sys
import time
from collections import Counter, deque

MAX_CONNECTING = 500  # connections that are opened at once, because a listening socket can't queue thousands
CROWD_SECONDS = 180  # time limit of the crowd; a session that hasn't ended by then counts as unanswered
SESSION_ID = b'"session_id":"'
FAKE_ID = b"0" * 48  # as long as the server's session ids


class Session(asyncio.Protocol):
    """A session, which sends one request after another on a connection of its own.

    Subclasses implement `first_request`, `answer`, which returns a complete answer or None, and `next_request`, which
    returns None after the last answer and raises a `ValueError` for a wrong answer.
    """

    def __init__(self, crowd):
        self.crowd = crowd
        self.received = b""
        self.answers = 0
        self.sent_at = 0.0

    def connection_made(self, transport):
        self.transport = transport
        self.crowd.on_connected()
        self.send(self.first_request())

    def send(self, request):
        self.sent_at = time.perf_counter()
        self.transport.write(request)

    def data_received(self, data):
        self.received += data
        answer = self.answer()
        if answer is not None:
            self.received = b""
            self.answers += 1
            try:
                request = self.next_request(answer)
            except ValueError as error:
                self.end(str(error))
            else:
                if request is None:
                    self.end()
                else:
                    self.send(request)

    def end(self, problem=""):
        crowd, self.crowd = self.crowd, None
        if crowd is not None:
            crowd.on_end(problem)
            self.transport.close()

    def connection_lost(self, _error):
        self.end(f"the connection was closed after {self.answers} answers")


class OurSession(Session):
    """A session of Toolpack Server: three HTTP requests."""

    begin = {"toolpacks": ["waiter"]}  # noqa: RUF012 - never changed
    last, last_answer = "close_session", b'"result":1'

    def first_request(self):
        return self.crowd.post("create_session", self.begin)

    def answer(self):
        head, separator, body = self.received.partition(b"\r\n\r\n")
        if not separator:
            return None
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        return body if len(body) == length else None

    def next_request(self, answer):
        if self.answers == 1:
            _, separator, rest = answer.partition(SESSION_ID)
            if not separator:
                raise ValueError(answer[:200].decode())
            self.id = rest[: rest.index(b'"')]
            return self.crowd.session_request("run_function", self.id)
        self.crowd.record_step(self)
        if self.answers == 2 and b'"error":null' in answer:
            return self.crowd.session_request(self.last, self.id)
        if self.answers == 3 and self.last_answer in answer:
            return None
        raise ValueError(answer[:200].decode())


class OurEpisode(OurSession):
    """A session with a task; its verdict is recorded at the end."""

    begin = {"task": "waiter/waits"}  # noqa: RUF012 - never changed
    last, last_answer = "evaluate_session", b'"reward":1.0'


class OurAnswer(OurSession):
    """A session with the same work as an episode of ORS: requests have call_ids, and the agent submits an answer."""

    def first_request(self):
        self.call_id = f"{self.crowd.began}-{len(self.crowd.ids)}"
        self.crowd.ids.append(self.call_id)
        return self.crowd.post("create_session", {"task": "waiter/waits", "call_id": self.call_id})

    def next_request(self, answer):
        if self.answers < 4 and b'"error":{' in answer:
            raise ValueError(answer[:200].decode())
        if self.answers == 1:
            self.id = json.loads(answer)["result"]["session_id"]
            step = {"function": "wait", "kwargs": {"seconds": self.crowd.seconds}}
            return self.crowd.post("run_function", {"session_id": self.id, "call_id": self.call_id, **step})
        if self.answers == 2:
            self.crowd.record_step(self)
            params = {"session_id": self.id, "answer": "", "call_id": f"{self.call_id}-answer"}
            return self.crowd.post("submit_answer", params)
        if self.answers == 3:
            return self.crowd.post("evaluate_session", {"session_id": self.id, "record": True})
        if b'"reward":1.0' in answer:
            return None
        raise ValueError(answer[:200].decode())


class GymSession(OurSession):
    """An episode of NeMo Gym: `seed_session`, a call that waits, and `verify`. A cookie names the session."""

    def first_request(self):
        return self.crowd.post_to("seed_session", {"task": "waiter/waits"})

    def answer(self):
        head, separator, body = self.received.partition(b"\r\n\r\n")
        if not separator:
            return None
        self.cookie = self.cookie or head.partition(b"toolpack_session=")[2].partition(b";")[0].decode()
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        return body if len(body) == length else None

    cookie = ""

    def next_request(self, answer):
        cookie = f"Cookie: toolpack_session={self.cookie}\r\n"
        if self.answers == 1 and self.cookie:
            return self.crowd.post_to("wait", {"seconds": self.crowd.seconds}, cookie)
        self.crowd.record_step(self)
        if self.answers == 2 and answer == b"1":
            message = {"type": "message", "role": "assistant", "content": "Done."}
            return self.crowd.post_to("verify", {"response": {"output": [message]}}, cookie)
        if self.answers == 3 and b'"reward":1.0' in answer:
            return None
        raise ValueError(answer[:200].decode(errors="replace"))


class McpSession(GymSession):
    """A session that an MCP client creates, plays and deletes.

    The client doesn't accept event streams, because the server would use them for slow answers.
    """

    def post(self, method, params, more=""):
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        return self.crowd.post_to("mcp?task=waiter/waits", body, more)

    def first_request(self):
        params = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "crowd", "version": "1"}}
        return self.post("initialize", params)

    def answer(self):
        head, separator, body = self.received.partition(b"\r\n\r\n")
        if not separator:
            return None
        self.cookie = self.cookie or head.lower().partition(b"mcp-session-id: ")[2].partition(b"\r\n")[0].decode()
        length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
        return body if len(body) == int(length or 0) else None

    def next_request(self, answer):
        session = f"Mcp-Session-Id: {self.cookie}\r\n"
        if self.answers == 1 and self.cookie:
            return self.post("tools/call", {"name": "wait", "arguments": {"seconds": self.crowd.seconds}}, session)
        self.crowd.record_step(self)
        if self.answers == 2 and b'"isError":false' in answer:
            return self.crowd.delete("mcp", session)
        if self.answers == 3 and not answer:
            return None
        raise ValueError(answer[:200].decode(errors="replace"))


class OrsSession(Session):
    """An episode of the Open Reward Standard: `create`, a call that waits, and `submit_answer`."""

    def first_request(self):
        self.id = f"{self.crowd.began}-{len(self.crowd.ids)}"
        self.crowd.ids.append(self.id)
        return self.post("create", {"task_spec": {"task": "waiter/waits"}})

    def post(self, path, body):
        return self.crowd.post_to(path, body, f"X-Session-ID: {self.id}\r\n")

    def answer(self):
        head, separator, body = self.received.partition(b"\r\n\r\n")
        if not separator:
            return None
        if b"chunked" in head.lower():
            return body if body.endswith(b"0\r\n\r\n") else None
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        return body if len(body) == length else None

    def next_request(self, answer):
        if self.answers == 1 and b'"sid"' in answer:
            return self.post("call", {"name": "wait", "input": {"seconds": self.crowd.seconds}})
        self.crowd.record_step(self)
        if self.answers == 2 and b'"ok":true' in answer:
            return self.post("call", {"name": "submit_answer", "input": {"answer": ""}})
        if self.answers == 3 and b'"reward":1.0' in answer:
            return None
        raise ValueError(answer[:200].decode(errors="replace"))


class OpenEnvSession(Session):
    """A session of OpenEnv on a WebSocket: a reset, a step, and a message after which the server closes it."""

    path = "/ws"
    is_upgraded = is_closing = False

    def first_request(self):
        return self.crowd.handshake(self.path)

    def reset(self):
        return {}

    def step(self):
        return {"seconds": self.crowd.seconds}

    def answer(self):
        if not self.is_upgraded:
            return self.received if self.received.endswith(b"\r\n\r\n") else None
        data = self.received
        size, start = (data[1], 2) if len(data) > 1 else (0, 2)
        if size == 126:
            size, start = int.from_bytes(data[2:4]), 4
        return data[start:] if len(data) >= start + size else None

    def next_request(self, answer):
        if self.answers == 1:
            self.is_upgraded = True
            if b" 101 " not in answer:
                raise ValueError(answer[:200].decode())
            return frame({"type": "reset", "data": self.reset()})
        if self.answers == 3:
            self.crowd.record_step(self)
        if self.is_closing:  # the server closed the WebSocket
            return None
        if b'"observation"' not in answer:
            raise ValueError(answer[:200].decode(errors="replace"))
        return frame({"type": "step", "data": self.step()}) if self.answers == 2 else self.close_message()

    def close_message(self):
        self.is_closing = True
        return frame({"type": "close"})

    def connection_lost(self, error):
        if self.is_closing:
            self.end()
        super().connection_lost(error)


class OurOpenEnvSession(OpenEnvSession):
    """An episode at Toolpack Server's paths for OpenEnv. The server records its verdict when the WebSocket closes."""

    path = "/openenv/waiter/ws"

    def reset(self):
        return {"task": "waiter/waits"}

    def step(self):
        return {"type": "call_tool", "tool_name": "wait", "arguments": {"seconds": self.crowd.seconds}}


SESSION_CLASSES = {
    "ours": OurSession,
    "episodes": OurEpisode,
    "answers": OurAnswer,
    "our_openenv": OurOpenEnvSession,
    "ors": OrsSession,
    "nemo_gym": GymSession,
    "mcp": McpSession,
    "openenv": OpenEnvSession,
}


def frame(message):
    """Return a client's WebSocket frame with a text message. The mask is zero, so the bytes needn't be changed."""
    text = json.dumps(message).encode()
    assert len(text) < 126
    return bytes((0x81, 0x80 | len(text), 0, 0, 0, 0)) + text


class Crowd:
    """All sessions of a crowd, and their results.

    Attributes:
        times: The durations of the sessions that ended well.
        steps: The durations of the calls that wait.
        problems: The number of failed sessions, by problem.
    """

    def __init__(self, kind, port, sessions, seconds, token=""):
        self.kind, self.port, self.seconds, self.token = kind, port, seconds, token
        self.waiting = deque(range(sessions))
        self.connecting = 0
        self.open = sessions
        self.times, self.steps, self.problems = [], [], Counter()
        self.ids = []
        self.done = asyncio.get_running_loop().create_future()
        step = {"function": "wait", "kwargs": {"seconds": seconds}}
        self.requests = {
            method: self.post(method, {"session_id": FAKE_ID.decode(), **more}).split(FAKE_ID)
            for method, more in (("run_function", step), ("close_session", {}), ("evaluate_session", {"record": True}))
        }

    def handshake(self, path):
        key = "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n"
        head = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{self.port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        return f"{head}{key}{self.authorization()}\r\n".encode()

    def authorization(self):
        return f"Authorization: Bearer {self.token}\r\n" if self.token else ""

    def post(self, method, params):
        return self.post_to("rpc", {"jsonrpc": "2.0", "id": 1, "method": method, "params": params})

    def post_to(self, path, body, more=""):
        text = json.dumps(body)
        head = f"POST /{path} HTTP/1.1\r\nHost: 127.0.0.1:{self.port}\r\nContent-Type: application/json\r\n"
        head += self.authorization() + more
        return f"{head}Content-Length: {len(text)}\r\n\r\n{text}".encode()

    def delete(self, path, more):
        return f"DELETE /{path} HTTP/1.1\r\nHost: 127.0.0.1:{self.port}\r\n{self.authorization()}{more}\r\n".encode()

    def session_request(self, method, id_):
        return id_.join(self.requests[method])

    async def run(self):
        self.began = time.perf_counter()
        self.connect()
        await asyncio.wait([self.done], timeout=CROWD_SECONDS)

    def connect(self):
        while self.waiting and self.connecting < MAX_CONNECTING:
            self.waiting.popleft()
            self.connecting += 1
            asyncio.get_running_loop().create_task(self.open_connection())

    async def open_connection(self):
        try:
            await asyncio.get_running_loop().create_connection(lambda: self.kind(self), "127.0.0.1", self.port)
        except OSError as error:
            self.on_connected()
            self.on_end(str(error))

    def on_connected(self):
        self.connecting -= 1
        self.connect()

    def record_step(self, session):
        self.steps.append(time.perf_counter() - session.sent_at)

    def on_end(self, problem):
        if problem:
            self.problems[problem] += 1
        else:
            self.times.append(time.perf_counter() - self.began)
        self.open -= 1
        if not self.open and not self.done.done():
            self.done.set_result(None)


async def main():
    kind, port, sessions, seconds, *token = sys.argv[1:]
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    crowd = Crowd(SESSION_CLASSES[kind], int(port), int(sessions), float(seconds), *token)
    await crowd.run()
    print(json.dumps({"times": crowd.times, "steps": crowd.steps, "problems": dict(crowd.problems.most_common(3))}))


if __name__ == "__main__":
    try:
        import uvloop
    except ImportError:
        asyncio.run(main())
    else:
        uvloop.run(main())
