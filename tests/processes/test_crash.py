"""Acknowledged data survives SIGKILL. Forged data in the store runs no code."""

import contextlib
import pickle
import signal
import sqlite3
import threading

import httpx
import pytest
import server_process
import serving
from serving import RpcError, wait_until

from toolpack_server import FunctionsRuntime

CLIENTS = 20
SESSIONS = 10


def rebuilt(trace):
    """Return the sum and the entries of a ledger after a replay of the trace in this process."""
    pack = serving.CATALOG.toolpacks["ledger"]
    runtime = FunctionsRuntime([function.function for function in pack.functions.values()])
    environment = pack.build({})
    for record in trace:
        result, error = runtime.run_function(environment, record["function"], record["kwargs"])
        assert (result, error) == (record["result"], record["error"])
    return environment.ledger.entries


class Client(threading.Thread):
    """Thread that calls one session after the other, until the server is killed."""

    def __init__(self, url, sessions, number):
        super().__init__(daemon=True)
        self.url, self.sessions, self.number = url, sessions, number
        self.acknowledged = []
        self.attempted = None

    def run(self):
        with serving.http_client(self.url) as http:
            for i in range(1_000_000):
                session_id = self.sessions[(i + self.number) % len(self.sessions)]
                call_id = f"{self.number}-{i}"
                params = {
                    "session_id": session_id,
                    "function": "add",
                    "kwargs": {"amount": self.number * 1_000_000 + i},
                    "call_id": call_id,
                }
                self.attempted = params
                try:
                    reply = http.post(
                        "/rpc", json={"jsonrpc": "2.0", "id": 1, "method": "run_function", "params": params}
                    )
                except httpx.TransportError:
                    return
                self.acknowledged.append((session_id, call_id, serving.result_of(reply.content)["result"]))


def test_a_kill_during_concurrent_calls_loses_no_answered_call(tmp_path):
    with server_process.served(tmp_path) as server:
        sessions = [server.rpc("create_session", toolpacks=["ledger"])["session_id"] for _ in range(SESSIONS)]
        clients = [Client(server.url, sessions, number) for number in range(1, CLIENTS + 1)]
        for client in clients:
            client.start()
        wait_until(lambda: sum(len(client.acknowledged) for client in clients) > 400, "400 calls")
        server.kill()
        for client in clients:
            client.join(serving.PATIENCE)
            assert not client.is_alive()
    acknowledged = [call for client in clients for call in client.acknowledged]
    with server_process.served(tmp_path) as server:
        traces = {session: server.rpc("get_trace", session_id=session, limit=1000) for session in sessions}
        for session, trace in traces.items():
            assert [record["index"] for record in trace] == list(range(len(trace)))
            assert [record["version"] for record in trace] == list(range(1, len(trace) + 1))
            entries = server.rpc("get_environment", session_id=session, pointer="/ledger/ledger/entries")
            assert entries == rebuilt(trace)
        results = {(session, r["call_id"]): r["result"] for session, trace in traces.items() for r in trace}
        for session, call_id, result in acknowledged:
            assert results[session, call_id] == result
        # The store may also have the calls that were running at the kill. If the client repeats them, they run once.
        assert 0 <= len(results) - len(acknowledged) <= CLIENTS
        for client in clients:
            first = server.rpc("run_function", **client.attempted)
            assert server.rpc("run_function", **client.attempted) == first
        total = sum(server.rpc("get_session", session_id=session)["version"] for session in sessions)
        assert total == len({call_id for _, call_id, _ in acknowledged} | {c.attempted["call_id"] for c in clients})


def test_readiness_says_why_the_store_stores_nothing(tmp_path):
    with server_process.served(tmp_path) as server:
        for path in tmp_path.glob("sessions.db*"):
            path.unlink()
        answer = server.http.get("/readyz")
        assert (answer.status_code, server.http.get("/healthz").status_code) == (503, 200)
        assert "restart the server" in answer.text


def test_sqlite_in_the_data_directory_is_the_default(tmp_path):
    with server_process.served(tmp_path) as server:
        session_id = server.rpc("create_session", toolpacks=["ledger"])["session_id"]
    with server_process.served(tmp_path, "--store", f"sqlite:///{tmp_path / 'sessions.db'}") as server:
        assert server.rpc("get_session", session_id=session_id)["version"] == 0


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_backup_of_a_running_server_is_restored(tmp_path, workers):
    with server_process.served(tmp_path, "--workers", workers) as server:
        session_id = server.rpc("create_session", toolpacks=["ledger"])["session_id"]
        assert server.call(session_id, "add", amount=1)["result"] == 1
        source, copy = (sqlite3.connect(tmp_path / name) for name in ("sessions.db", "copy.db"))
        with contextlib.closing(source), contextlib.closing(copy):
            source.backup(copy)  # like `.backup` of the `sqlite3` command
        assert server.call(session_id, "add", amount=1)["result"] == 2
    for end in ("", "-wal", "-shm"):
        (tmp_path / f"sessions.db{end}").unlink(missing_ok=True)
    (tmp_path / "copy.db").rename(tmp_path / "sessions.db")
    with server_process.served(tmp_path, "--workers", workers) as server:
        assert server.call(session_id, "add", amount=5)["result"] == 6


def test_a_stopped_server_has_kept_everything_and_exits_with_0(tmp_path):
    with server_process.served(tmp_path) as server:
        session_id = server.rpc("create_session", toolpacks=["ledger"])["session_id"]
        assert server.call(session_id, "add", amount=3)["result"] == 3
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(serving.PATIENCE) == 0
    with server_process.served(tmp_path) as server:
        assert server.call(session_id, "total")["result"] == 3


class Hostile:
    """An object that writes a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (self.path, "w")


def test_a_hostile_pickle_in_the_store_runs_nothing(tmp_path):
    trap = tmp_path / "it ran"
    payload = pickle.dumps(Hostile(str(trap)))
    forgeries = [
        lambda _: payload,
        lambda genuine: genuine[:72] + payload,
        lambda genuine: genuine[: len(genuine) // 2],
        lambda genuine: genuine[:-1] + bytes([genuine[-1] ^ 1]),
        lambda _: b"",
    ]
    with server_process.served(tmp_path) as server:
        sessions = [server.rpc("create_session", toolpacks=["ledger"])["session_id"] for _ in forgeries]
        for amount, session_id in enumerate(sessions):
            assert server.call(session_id, "add", amount=amount)["result"] == amount
        server.kill()
    store = sqlite3.connect(tmp_path / "sessions.db")
    genuine = store.execute("SELECT rowid, body FROM blobs ORDER BY rowid DESC LIMIT 5").fetchall()
    assert len({body for _, body in genuine}) == 5
    with store:
        for (row, body), forged in zip(reversed(genuine), forgeries, strict=True):
            store.execute("UPDATE blobs SET body = ? WHERE rowid = ?", (forged(body), row))
    store.close()
    with server_process.served(tmp_path) as server:
        for session_id in sessions:
            for method in ("get_environment", "diff_environment"):
                damaged(server.rpc, method, session_id=session_id)
            damaged(server.rpc, "get_environment", session_id=session_id, format="snapshot")
            damaged(server.rpc, "reset_session", session_id=session_id, version=1)
            damaged(server.call, session_id, "total")
            damaged(server.call, session_id, "add", amount=1)
            damaged(server.rpc, "fork_session", session_id=session_id)
            assert server.rpc("get_session", session_id=session_id)["version"] == 1
            # The previous version is undamaged, so the session can continue there.
            assert server.rpc("reset_session", session_id=session_id)["version"] == 2
            assert server.call(session_id, "add", amount=5)["result"] == 5
    assert not trap.exists()
    pickle.loads(payload).close()
    assert trap.exists(), "the trap itself must work"


def damaged(call, /, *args, **kwargs):
    with pytest.raises(RpcError) as error:
        call(*args, **kwargs)
    assert (error.value.code, error.value.data) == (-32012, {"type": "StateDamagedError"})
    assert "/" not in error.value.message


FATAL = '''
"""A function that ends its process."""

import os

from toolpack_server import Toolpack

toolpack = Toolpack("fatal")


@toolpack.function
def end(really: bool) -> str:
    """End the process.

    :param really: Else nothing is done.
    """
    if really:
        os._exit(1)
    return "alive"
'''


def test_new_call_ids_do_not_let_an_agent_end_more_workers(tmp_path):
    (tmp_path / "packs").mkdir()
    (tmp_path / "packs" / "fatal.py").write_text(FATAL)
    flags = ["--pack-dir", str(tmp_path / "packs"), "--packs", "fatal"]
    with server_process.served(tmp_path, *flags) as server:
        session = server.rpc("create_session")

        def call(number, really):
            params = {"function": "end", "kwargs": {"really": really}, "call_id": f"c{number}"}
            body = {"jsonrpc": "2.0", "id": 1, "method": "run_function", "params": params}
            return server.http.post(session["agent_path"], json=body).json()["result"]

        for number in range(3):
            # Successful calls in between don't clear the agent.
            assert call(f"{number}-before", really=False)["result"] == "alive"
            with pytest.raises(httpx.TransportError):
                call(number, really=True)
            wait_until(lambda: is_ready(server), "another worker")
        for number in (3, 4):
            assert "has ended its process 3 times, and isn't run again" in call(number, really=True)["error"]
        other = server.rpc("create_session")["session_id"]  # the function is refused only in this session
        assert server.call(other, "end", really=False)["result"] == "alive"


def is_ready(server):
    try:
        return server.http.get("/readyz").status_code == 200
    except httpx.TransportError:
        return False
