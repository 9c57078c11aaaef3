"""Three real servers on a real Redis, behind a balancer, are replaced one after the other while clients call functions.

No client here repeats a call, so a refused or lost call fails the test. The balancer doesn't know sessions: each
connection goes to the next server whose `/readyz` answers 200.
"""

import asyncio
import contextlib
import itertools
import signal
import threading
from collections import Counter

import httpx
import pytest
import redis_server
import server_process
import serving
from serving import wait_until

from toolpack_server import Client

pytestmark = pytest.mark.heavy

PACK = """
import time
from typing import Annotated
from pydantic import BaseModel
from toolpack_server import Depends, TaskEnvironment, Toolpack

class Diary(BaseModel):
    notes: list[str] = []

class DiaryEnvironment(TaskEnvironment):
    diary: Diary = Diary()

toolpack = Toolpack("diary", DiaryEnvironment)

@toolpack.function
def note(diary: Annotated[Diary, Depends("diary")], text: str, seconds: float) -> int:
    '''Note something after a while.

    :param text: What to note.
    :param seconds: How long it takes.
    '''
    time.sleep(seconds)
    diary.notes.append(text)
    return len(diary.notes)
"""
SHUTDOWN_DELAY_SECONDS = 1.0
ASK_SECONDS = 0.05  # between two checks of a server by the balancer
SLOW_SECONDS = 1.5 * SHUTDOWN_DELAY_SECONDS  # calls from before the signal end while new calls are refused
CALLS_BETWEEN = 60  # calls of all clients together, before and after each server is replaced


class Balancer:
    """Forwards connections to the servers that are ready, in turn, without reading their data.

    Attributes:
        url: The address for clients.
        connected: The number of connections per server, by port.
        refused: The number of connections for which no server was ready.
    """

    def __init__(self):
        self.connected, self.refused = Counter(), 0
        self._ready, self._turns = {}, itertools.count()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._listener = self._do(asyncio.start_server(self._accept, "127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.sockets[0].getsockname()[1]}"

    def _do(self, work):
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(serving.PATIENCE)

    def add(self, port):
        self._ready[port] = False
        asyncio.run_coroutine_threadsafe(self._look(port), self._loop)
        wait_until(lambda: self._ready[port], "the balancer's first look")

    def has(self, port):
        return self._ready[port]

    def remove(self, port):
        del self._ready[port]

    def close(self):
        async def cancel():
            self._listener.close()
            others = asyncio.all_tasks() - {asyncio.current_task()}
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)

        self._do(cancel())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(serving.PATIENCE)
        self._loop.close()

    async def _look(self, port):
        async with httpx.AsyncClient() as http:
            while port in self._ready:
                is_ready = False
                with contextlib.suppress(httpx.TransportError):
                    is_ready = (await http.get(f"http://127.0.0.1:{port}/readyz")).status_code == 200
                if port in self._ready:
                    self._ready[port] = is_ready
                await asyncio.sleep(ASK_SECONDS)

    async def _accept(self, reader, writer):
        ports = [port for port, is_ready in self._ready.items() if is_ready]
        if not ports:
            self.refused += 1
            writer.close()
            return
        port = ports[next(self._turns) % len(ports)]
        self.connected[port] += 1
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(_pump(reader, far_writer), _pump(far_reader, writer))


async def _pump(reader, writer):
    with contextlib.closing(writer), contextlib.suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()


class Caller(threading.Thread):
    """Calls a function on one session repeatedly, each call once.

    Attributes:
        answered: The written notes, in order.
        problem: The first wrong answer.
    """

    def __init__(self, number, call, pause):
        super().__init__(daemon=True)
        self.number, self.answered, self.problem = number, [], None
        self._call, self._pause, self._ended = call, pause, threading.Event()

    def run(self):
        for count in itertools.count(1):
            if self._ended.is_set():
                return
            text = f"{self.number}.{count}"
            try:
                envelope = self._call(text)
                assert envelope == {"result": count, "error": None}, envelope
            except Exception as error:  # noqa: BLE001 - any exception is a wrong answer
                self.problem = f"{text}: {error!r}"
                return
            self.answered.append(text)
            self._ended.wait(self._pause)

    def end(self):
        self._ended.set()
        self.join(serving.PATIENCE)


def by_client(url, session_id, seconds, ended):
    """Call by our client, with a kept connection and without retries."""
    client = ended.enter_context(Client(url, retries=0))
    return lambda text: client.run_function(session_id, "note", {"text": text, "seconds": seconds})


def post(http, url, session_id, seconds, text):
    params = {"session_id": session_id, "function": "note", "kwargs": {"text": text, "seconds": seconds}}
    answer = http.post(f"{url}/rpc", json={"jsonrpc": "2.0", "id": 1, "method": "run_function", "params": params})
    assert answer.status_code == 200, answer.text
    return serving.result_of(answer.content)


def by_http(url, session_id, seconds, ended):
    """Call by plain HTTP on a kept connection."""
    http = ended.enter_context(httpx.Client(timeout=serving.PATIENCE))
    return lambda text: post(http, url, session_id, seconds, text)


def by_curl(url, session_id, seconds, _ended):
    """Call by plain HTTP with a new connection for each call, so that each call may reach another server."""

    def call(text):
        with httpx.Client(timeout=serving.PATIENCE) as http:
            return post(http, url, session_id, seconds, text)

    return call


KINDS = [(by_client, 0.0), (by_client, SLOW_SECONDS), (by_http, 0.0), (by_http, SLOW_SECONDS), (by_curl, 0.0)]
PAUSES = {0.0: 0.02, SLOW_SECONDS: 0.0}


def test_servers_are_replaced_without_a_refused_call(tmp_path):
    packs = tmp_path / "packs"
    packs.mkdir()
    (packs / "diary.py").write_text(PACK)
    with contextlib.ExitStack() as ended:
        url, _ = ended.enter_context(redis_server.start(tmp_path))
        balancer = Balancer()
        ended.callback(balancer.close)
        names = itertools.count(1)

        def started():
            folder = tmp_path / f"server-{next(names)}"
            folder.mkdir()
            flags = ("--store", url, "--pack-dir", str(packs), "--packs", "diary")
            delay = str(SHUTDOWN_DELAY_SECONDS)
            settings = {"SHUTDOWN_DELAY_SECONDS": delay, "SECRET_KEY": "a key that these servers share"}
            variables = {f"TOOLPACK_{name}": value for name, value in settings.items()}
            server = ended.enter_context(server_process.served(folder, *flags, **variables))
            balancer.add(httpx.URL(server.url).port)
            return server

        servers = [started() for _ in range(3)]
        client = ended.enter_context(Client(balancer.url))
        sessions = [client.create_session(["diary"])["session_id"] for _ in KINDS]
        callers = []
        for number, (kind, seconds) in enumerate(KINDS):
            call = kind(balancer.url, sessions[number], seconds, ended)
            callers.append(Caller(number, call, PAUSES[seconds]))
        for caller in callers:
            caller.start()

        def more_calls():
            calls_expected = sum(len(each.answered) for each in callers) + CALLS_BETWEEN
            wait_until(lambda: sum(len(each.answered) for each in callers) >= calls_expected or problems(), "calls")

        def problems():
            return [each.problem for each in callers if each.problem]

        more_calls()
        for old in servers:
            started()
            port = httpx.URL(old.url).port
            assert balancer.connected[port], "it has had no client"
            old.process.send_signal(signal.SIGTERM)
            wait_until(lambda: not balancer.has(port), "the balancer's finding out")  # noqa: B023 - called at once
            assert old.process.wait(serving.PATIENCE) == 0
            balancer.remove(port)
            more_calls()
        for caller in callers:
            caller.end()
        assert (problems(), balancer.refused) == ([], 0)
        for caller, session_id in zip(callers, sessions, strict=True):
            (diary,) = client.get_environment(session_id).values()
            assert diary["diary"]["notes"] == caller.answered
            assert len(client.get_trace(session_id, limit=1000)) == min(len(caller.answered), 1000)
