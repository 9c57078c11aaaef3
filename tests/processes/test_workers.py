"""Several worker processes on one store, and their sessions when a worker dies, hangs or stops.

The servers here are real processes. Tests that must wait some five seconds run in parallel with the other tests.
"""

import contextlib
import itertools
import os
import random
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import postgres_server
import pytest
import redis
from patience import PATIENCE

from tools.faults.clients import Connection
from tools.faults.world import Server, is_alive, send_signal, wait_until

pytestmark = pytest.mark.heavy
FORKS = 1000


@contextlib.contextmanager
def serving(folder, workers=2, store=None, **settings):
    server = Server(folder, store, workers, **settings)
    try:
        server.start()
        yield server
    finally:
        server.end()


class Client:
    """A client that sends each request on a new connection, which any worker may accept."""

    def __init__(self, *servers):
        self._ports = [server.port for server in servers]

    def send(self, method, **params):
        with contextlib.closing(Connection(self._ports, random.Random())) as connection:
            return connection.insist(method, params, time.monotonic() + PATIENCE)

    def create(self, *toolpacks):
        return self.send("create_session", toolpacks=list(toolpacks or ["ledger", "tally"]))["session_id"]

    def call(self, session_id, function, call_id=None, **kwargs):
        return self.send("run_function", session_id=session_id, function=function, kwargs=kwargs, call_id=call_id)

    def later(self, session_id, function, **kwargs):
        """Send a call that may never be answered, and return when its function runs."""

        def send():
            connection = Connection(self._ports, random.Random())
            with contextlib.suppress(Exception):
                connection.send("run_function", {"session_id": session_id, "function": function, "kwargs": kwargs})
            connection.close()

        thread = threading.Thread(target=send, daemon=True)
        thread.start()
        return thread


@pytest.fixture(params=["sqlite", "redis", pytest.param("postgres", marks=pytest.mark.heavy)])
def store(request, store_url):
    return None if request.param == "sqlite" else store_url(request.param)


def test_workers_share_a_session_and_lose_no_update(tmp_path, store):
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(serving(tmp_path, store=store, name=f"s{n}")) for n in range(2 if store else 1)]
        client = Client(*servers)
        session = client.create()

        def count(number):
            connection = Connection([servers[number % len(servers)].port], random.Random())
            params = {"session_id": session, "function": "add", "kwargs": {"name": "all", "amount": 1}}
            counts = []
            for _ in range(5):
                envelope = connection.insist("run_function", params, time.monotonic() + PATIENCE)
                assert envelope["error"] is None
                counts.append(envelope["result"])
            connection.close()
            return counts

        with ThreadPoolExecutor(8) as pool:
            sums = list(pool.map(count, range(8)))
        assert sorted(itertools.chain.from_iterable(sums)) == list(range(1, 41))
        assert all(counts == sorted(counts) for counts in sums)
        trace = client.send("get_trace", session_id=session, limit=1000)
        assert [(record["index"], record["version"]) for record in trace] == [(n, n + 1) for n in range(40)]


@pytest.mark.parametrize("workers", [1, 2])
def test_the_first_calls_on_a_session_build_on_each_other(tmp_path, workers):
    with serving(tmp_path, workers) as server, ThreadPoolExecutor(12) as pool:
        for _ in range(3):
            session = Client(server).create()

            def count(connection, session=session):
                params = {"session_id": session, "function": "add", "kwargs": {"name": "all", "amount": 1}}
                with contextlib.closing(connection):
                    return connection.send("run_function", params)["result"]

            counts = pool.map(count, [Connection([server.port], random.Random()) for _ in range(12)])
            assert sorted(counts) == list(range(1, 13))


def store_size(folder, store):
    if store and store.startswith("postgresql:"):
        ((size,),) = postgres_server.ask(store, "SELECT pg_database_size(current_database())")
        return size
    if store:
        with contextlib.closing(redis.Redis.from_url(store)) as server:
            return server.info("memory")["used_memory"]
    with contextlib.closing(sqlite3.connect(folder / "sessions.db")) as database:
        pages, size = (database.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "page_size"))
        return pages * size


def test_forks_cost_little_more_than_a_row(tmp_path, store):
    with serving(tmp_path, store=store, packs="workspace") as server:
        client = Client(server)
        session = client.create("workspace")
        before = store_size(tmp_path, store)
        forks = client.send("fork_session", session_id=session, count=FORKS)
        grown = store_size(tmp_path, store) - before
        assert len({fork["session_id"] for fork in forks}) == FORKS
        assert grown / FORKS < 2000
        environment = client.send("get_environment", session_id=forks[-1]["session_id"])
        assert environment == client.send("get_environment", session_id=session)


def test_memory_is_not_shared(tmp_path):
    command = [sys.executable, "-m", "toolpack_server", "serve", "--store", "memory:", "--workers", "2", "--port", "0"]
    process = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert process.returncode == 1
    assert "2 workers can't share memory" in process.stderr
    assert len(process.stderr.splitlines()) == 1


@pytest.mark.parametrize("workers", [1, 2])
def test_runaway_functions_get_answers_and_a_new_worker(tmp_path, workers):
    with serving(tmp_path, workers) as server:
        client = Client(server)
        session, other = client.create(), client.create()
        assert client.call(session, "append", entry="kept")["result"]["length"] == 1
        before = set(server.workers())
        threads = [client.later(session, "append_and_hang", entry="lost", seconds=0) for _ in range(3)]
        while any(thread.is_alive() for thread in threads):
            assert client.call(other, "append", entry="meanwhile")["error"] is None
        assert set(server.workers()) == before  # a loop in Python can be interrupted
        for number in range(12):
            envelope = client.call(session, "append_and_hang", call_id=f"hang {number}", entry="lost", seconds=3600)
            assert envelope["error"].startswith("TimeoutError: ")
            if set(server.workers()) != before:
                break
        wait_until(lambda: set(server.workers()) != before, PATIENCE, "the replacement of a worker with stuck threads")
        wait_until(server.is_up, PATIENCE, "the new worker")
        assert client.call(session, "append", entry="next")["result"]["length"] == 2
        assert client.send("get_session", session_id=session)["version"] == 2
        assert "starting a replacement" not in server.log()  # the worker ended by itself, with status 0


def test_a_stopping_server_answers_running_calls(tmp_path):
    with serving(tmp_path) as server:
        client = Client(server)
        session = client.create()
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(client.call, session, "append_slowly", entry="last", seconds=2)
            wait_until(lambda: is_running(server), PATIENCE, "the call")
            server.process.terminate()
            statuses = set()
            while not running.done():
                statuses.add(server.readiness())
            assert running.result()["result"]["length"] == 1
        assert 503 in statuses
        assert server.process.wait(PATIENCE) == 0
        server.start()
        assert client.send("get_session", session_id=session)["version"] == 1


def test_workers_end_with_their_supervisor_and_free_the_port(tmp_path):
    with serving(tmp_path) as server:
        session = Client(server).create()
        server.kill()
        socket.create_server(("127.0.0.1", server.port)).close()
        server.start()
        assert Client(server).call(session, "append", entry="next")["result"]["length"] == 1


def test_a_worker_computing_in_c_ends_with_its_supervisor(tmp_path):
    with serving(tmp_path) as server:
        client = Client(server)
        client.later(client.create(), "append_and_hog", entry="lost")
        wait_until(lambda: is_running(server), PATIENCE, "the call")
        server.kill()  # the worker must end, though its Python code can't notice the supervisor's end
        assert server.process.poll() is not None


def is_running(server):
    """Return whether a call is running, which holds its session's lease."""
    with contextlib.closing(sqlite3.connect(server.folder / "sessions.db")) as database:
        return database.execute("SELECT count(*) FROM sessions WHERE holder IS NOT NULL").fetchone()[0]


def killed_during_a_call(folder):
    with serving(folder) as server:
        client = Client(server)
        session = client.create()
        client.later(session, "append_slowly", entry="lost", seconds=20)
        wait_until(lambda: is_running(server), PATIENCE, "the call")
        for pid in server.workers():
            send_signal(pid, signal.SIGKILL)
        return client.call(session, "append", call_id="next", entry="next")["result"]["length"]


def hogged(folder):
    with serving(folder, workers=1) as server:
        client = Client(server)
        session = client.create()
        client.call(session, "append", entry="kept")
        (before,) = server.workers()
        client.later(session, "append_and_hog", entry="lost")
        wait_until(lambda: not is_alive(before), PATIENCE, "the end of a worker that computes in C")
        wait_until(server.is_up, PATIENCE, "the new worker")
        return client.call(session, "append", entry="next")["result"]["length"]


def stopped(folder):
    with serving(folder) as server:
        client = Client(server)
        session = client.create()
        client.call(session, "append", entry="kept")
        # A worker that doesn't serve yet would count as loading toolpacks, and get more time.
        wait_until(lambda: "listens on" in server.log(), PATIENCE, "all workers")
        before = server.workers()[0]
        os.kill(before, signal.SIGSTOP)
        wait_until(lambda: not is_alive(before), PATIENCE, "the end of a worker that stands still")
        wait_until(server.is_up, PATIENCE, "the new worker")
        return client.call(session, "append", entry="next")["result"]["length"]


@pytest.fixture(scope="module", autouse=True)
def beside(tmp_path_factory):
    """Start the slow tests together with the first test of this file."""
    with ThreadPoolExecutor(3) as pool:
        yield {
            scenario.__name__: pool.submit(scenario, tmp_path_factory.mktemp(scenario.__name__))
            for scenario in (killed_during_a_call, hogged, stopped)
        }


# test_leases.py and test_processes.py test the length of each of these waits with a simulated clock.


def test_a_killed_call_changes_nothing_for_the_next_one(beside):
    assert beside["killed_during_a_call"].result() == 1


@pytest.mark.parametrize("scenario", ["hogged", "stopped"])
def test_a_blocked_worker_is_killed_and_its_sessions_live_on(beside, scenario):
    assert beside[scenario].result() == 2
