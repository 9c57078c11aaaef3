"""Handles of long calls, while the two servers on one Redis are killed: each call is committed at most once."""

import contextlib
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
import redis_server
import server_process
import serving
from mcp_handles import ENDED, HandleClient
from patience import PATIENCE

AWAY = (httpx.TransportError, AssertionError)  # the server is killed, starting, or refuses for now
SESSIONS_AT_ONCE = 24
LONG = 4  # seconds of a call that is cancelled at once, also by a slow machine


class Servers:
    """Two servers, one of which is killed and started again from time to time.

    Args:
        start: Starts the server with this number.
    """

    def __init__(self, stack, start):
        self._stack, self._start = stack, start
        self.running = [start(0), start(1)]
        self.kills = 0
        self._end = threading.Event()

    def client(self, chance, path):
        return HandleClient(chance.choice(self.running).http, path)

    def rpc(self, method, **params):
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                return random.choice(self.running).rpc(method, **params)
            except (*AWAY, serving.RpcError):
                assert time.monotonic() < deadline
                self._end.wait(0.1)

    def kill(self, chance):
        while not self._end.wait(chance.uniform(1, 6)):
            number = chance.randrange(2)
            self.running[number].kill()
            self.kills += 1
            self._end.wait(chance.uniform(0, 1))
            self.running[number] = self._start(number)

    def end(self):
        self._end.set()


def interleave(servers, seed):
    """Call, poll and cancel at random at both servers. Return the session, and all answers by call_id and handle."""
    chance = random.Random(seed)
    session = servers.rpc("create_session", toolpacks=["conformance"], call_id=f"interleaving {seed}")
    path, handles, ends = session["mcp_path"], [], {}

    def poll(call_id, handle):
        answer = servers.client(chance, path).get(handle)
        if answer["status"] in ENDED:
            ends.setdefault(call_id, []).append(answer)
        return answer["status"] in ENDED

    for number in range(chance.randint(1, 3)):
        with contextlib.suppress(*AWAY):
            call_id, seconds = f"call {number}", chance.choice([0, 0.6, 0.8, 1.2, LONG])
            answer = servers.client(chance, path).call("slow_compute", call_id, seconds=seconds, label=call_id)
            if answer["resultType"] == "task":
                handles.append((call_id, answer))
                if seconds == LONG:
                    servers.client(chance, path).cancel(answer)
            else:
                ends.setdefault(call_id, []).append({"status": "completed", "result": answer})
        for _ in range(chance.randint(0, 4)):
            time.sleep(chance.uniform(0, 0.4))
            if handles:
                call_id, handle = chance.choice(handles)
                with contextlib.suppress(*AWAY):
                    if chance.random() < 0.2:
                        servers.client(chance, path).cancel(handle)
                    else:
                        poll(call_id, handle)
    deadline = time.monotonic() + PATIENCE
    remaining = [*handles, *handles]  # each handle is polled twice after the end of its call
    while remaining:
        assert time.monotonic() < deadline, remaining
        with contextlib.suppress(*AWAY):
            if poll(*remaining[-1]):
                remaining.pop()
                continue
        time.sleep(0.1)
    return session["session_id"], ends


def check(servers, session_id, ends):
    """Compare a session's trace and world with all answers that its client got."""
    records = servers.rpc("get_trace", session_id=session_id)
    by_id = {record["call_id"]: record for record in records}
    assert len(by_id) == len(records), records
    committed = [record for record in records if record["error"] is None]
    counts = servers.rpc("get_environment", session_id=session_id, pointer="/conformance/tally/counts")
    assert len(counts) == len(committed), records
    for call_id, answers in ends.items():
        assert all(answer == answers[0] for answer in answers), answers
        status = "cancelled" if by_id[call_id].get("failure") == "cancelled" else "completed"
        assert answers[0]["status"] == status
        if status == "completed":
            text = by_id[call_id]["result"] if by_id[call_id]["error"] is None else by_id[call_id]["error"]
            assert answers[0]["result"]["content"][0]["text"] == text


def run(folder, count, seed):
    """Try `count` random interleavings. Return how many calls ended in each way, and the number of kills."""
    with contextlib.ExitStack() as stack:
        redis_folder = folder / "redis"
        redis_folder.mkdir()
        url, _ = stack.enter_context(redis_server.start(redis_folder))
        ports = [str(redis_server.free_port()) for _ in range(2)]

        def start(number):
            flags = ("--packs", "conformance", "--store", url, "--port", ports[number])
            return stack.enter_context(
                server_process.served(folder, *flags, TOOLPACK_LOG_CALLS="off", TOOLPACK_SECRET_KEY="k" * 64)
            )

        servers = Servers(stack, start)
        killer = threading.Thread(target=servers.kill, args=[random.Random(seed)])
        killer.start()
        try:
            with ThreadPoolExecutor(SESSIONS_AT_ONCE) as threads:
                sessions = [*threads.map(lambda number: interleave(servers, f"{seed} {number}"), range(count))]
        finally:
            servers.end()
            killer.join(PATIENCE)
        serving.wait_until(lambda: all(map(server_process._is_ready, servers.running)), "both servers")
        for session_id, ends in sessions:
            check(servers, session_id, ends)
        statuses = [answers[0]["status"] for _, ends in sessions for answers in ends.values()]
        return {status: statuses.count(status) for status in ENDED}, servers.kills


@pytest.mark.heavy
def test_random_interleavings_commit_each_call_once(tmp_path):
    statuses, kills = run(tmp_path, 24, 1)
    assert statuses["completed"]
    assert statuses["cancelled"]
    assert kills
