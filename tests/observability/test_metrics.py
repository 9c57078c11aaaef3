"""Prometheus metrics: summed over workers, correct after a worker dies, with a bounded number of label values."""

import contextlib
import http.client
import json
import os
import re
import signal
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import server_process
import serving
from prometheus_client.parser import text_string_to_metric_families
from serving import wait_until

HEADERS = {"Authorization": "Bearer metrics-token", "Connection": "close", "Content-Type": "application/json"}
GAUGES = {"toolpack_waiting_calls", "toolpack_stuck_threads", "toolpack_cached_sessions", "toolpack_sessions"}
GAUGES |= {"toolpack_waiting_coroutines", "toolpack_waiting_coroutine_bytes"}


class Load:
    """A client that opens a connection for every request, so that all workers get some."""

    def __init__(self, url):
        self.url = url
        self.sent = Counter()
        self._lock = threading.Lock()

    def rpc(self, method, /, **params):
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        return json.loads(self._exchange("POST", "/rpc", json.dumps(body)))

    def _exchange(self, method, path, body=None):
        connection = http.client.HTTPConnection(self.url.rpartition("/")[2], timeout=serving.PATIENCE)
        with contextlib.closing(connection):
            connection.request(method, path, body, HEADERS)
            return connection.getresponse().read()

    def create(self):
        return self.rpc("create_session", toolpacks=["ledger"])["result"]["session_id"]

    def call(self, toolpack, outcome, function, session_id, /, **params):
        """Send a call, and record how the server must count it."""
        envelope = self.rpc("run_function", session_id=session_id, function=function, **params)
        with self._lock:
            self.sent[toolpack, function if toolpack else "", outcome] += 1
        return envelope

    def families(self):
        text = self._exchange("GET", "/metrics").decode()
        return {family.name: family for family in text_string_to_metric_families(text)}

    def counted(self, families=None):
        samples = (families or self.families())["toolpack_calls"].samples
        return Counter(
            {
                (sample.labels["toolpack"], sample.labels["function"], sample.labels["outcome"]): int(sample.value)
                for sample in samples
                if sample.name == "toolpack_calls_total"
            }
        )

    def sample(self, name, **labels):
        return sum(
            sample.value
            for family in self.families().values()
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )


def work(load, rounds=15):
    """Make calls with each outcome."""
    session = load.create()
    for number in range(rounds):
        load.call("ledger", "ok", "add", session, kwargs={"amount": 1})
        load.call("ledger", "ok", "total", session)
        load.call("ledger", "arguments", "add", session, kwargs={"amount": "x"})
        load.call("ledger", "raised", "add_then", session, kwargs={"how": "raise"})
        load.call("", "not_found", f'junk {number} \n"\\', session)
        load.call("", "refused", "add", session, expected_version=10**6)
        load.call("", "refused", f"junk {number}", "0" * 32)
    load.call("ledger", "deadline", "add_and_await", session)
    load.call("ledger", "too_large", "add_and_return", session, kwargs={"what": "much"})


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    variables = {"TOOLPACK_TOKENS": "prometheus:metrics-token", "TOOLPACK_LOG_CALLS": "off"}
    with server_process.served(tmp_path_factory.mktemp("metrics"), "--workers", "2", **variables) as running:
        yield running


def workers(server):
    return Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children").read_text().split()


def test_counters_are_summed_over_workers_and_survive_a_crash(server):
    load = Load(server.url)
    wait_until(lambda: len(workers(server)) == 2, "two workers")
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, [load] * 4))
    check_counted(load)

    killed_pid = workers(server)[0]
    os.kill(int(killed_pid), signal.SIGKILL)
    wait_until(lambda: len(set(workers(server)) - {killed_pid}) == 2, "the replacement")
    wait_until(lambda: is_served(load), "an answer")
    check_counted(load)
    work(load, 5)
    check_counted(load)

    calls = sum(load.sent.values())
    assert load.sample("toolpack_call_seconds_count") == calls
    assert load.sample("toolpack_call_seconds_bucket", le="+Inf") == calls
    by_ledger = sum(times for (toolpack, _, _), times in load.sent.items() if toolpack == "ledger")
    assert load.sample("toolpack_call_seconds_count", toolpack="ledger") == by_ledger
    assert load.sample("toolpack_call_seconds_sum", toolpack="ledger") >= 0.3 * 5  # five calls missed their deadline


def test_slow_function_is_identified_by_its_name(server):
    load = Load(server.url)
    session = load.create()
    before = seconds_of(load)
    load.call("ledger", "deadline", "add_and_await", session)
    for number in range(20):
        load.call("", "not_found", f"none {number}", session)
    wait_until(
        lambda: seconds_of(load)["ledger", "add_and_await"] >= before["ledger", "add_and_await"] + 0.3, "its time"
    )
    assert seconds_of(load).keys() == before.keys() | {("ledger", "add_and_await"), ("", "")}


def seconds_of(load):
    """Return the seconds of each function's calls, by its toolpack and name."""
    samples = load.families()["toolpack_call_seconds"].samples
    sums = [each for each in samples if each.name == "toolpack_call_seconds_sum"]
    return Counter({(each.labels["toolpack"], each.labels["function"]): each.value for each in sums})


def check_counted(load):
    # A worker counts a call when it sends the answer, and another worker may serve the metrics.
    wait_until(lambda: load.counted().total() >= load.sent.total(), "the last count")
    assert load.counted() == load.sent


def is_served(load):
    try:
        return load.families()
    except OSError:
        return None


def test_clients_cannot_add_label_values(server):
    load = Load(server.url)
    work(load, 2)
    before = load.counted().keys()
    session = load.create()
    for number in range(20):
        load.rpc("run_function", session_id=session, function=f"none {number}")
        load.rpc("run_function", session_id=f"none {number}", function="add")
        load.rpc(f"none {number}")
    assert load.counted().keys() == before
    assert {(toolpack, outcome) for toolpack, _, outcome in before if not toolpack} == {
        ("", "not_found"),
        ("", "refused"),
    }


def test_gauges_commits_and_snapshots(server):
    load = Load(server.url)
    families = load.families()
    assert {name for name, family in families.items() if family.type == "gauge"} == GAUGES
    assert {
        "toolpack_calls",
        "toolpack_call_seconds",
        "toolpack_store_commit_seconds",
        "toolpack_snapshot_bytes",
    } <= set(families)
    assert all(family.documentation.endswith(".") for family in families.values())
    assert not any(re.search(r"pid", str(sample.labels)) for family in families.values() for sample in family.samples)

    sessions = load.sample("toolpack_sessions")
    commits, snapshots = (
        load.sample("toolpack_store_commit_seconds_count"),
        load.sample("toolpack_snapshot_bytes_count"),
    )
    session = load.create()
    load.call("ledger", "ok", "add", session, kwargs={"amount": 1})
    assert load.sample("toolpack_sessions") == sessions + 1
    assert load.sample("toolpack_store_commit_seconds_count") == commits + 1
    assert load.sample("toolpack_snapshot_bytes_count") == snapshots + 1
    wait_until(lambda: load.sample("toolpack_cached_sessions") >= 1, "the measurement")
    assert load.sample("toolpack_waiting_calls") == 0


def test_metrics_require_the_token(server):
    assert server.http.get("/metrics").status_code == 401
    reply = server.http.get("/metrics", headers=HEADERS)
    assert reply.headers["content-type"].startswith("text/plain; version=0.0.4")


def test_single_worker_in_memory_counts_too(tmp_path):
    with server_process.served(tmp_path, "--store", "memory:") as server:
        load = Load(server.url)
        work(load, 1)
        check_counted(load)


def test_metrics_are_served_without_the_store(tmp_path, redis_server_of_its_own):
    url, process_id = redis_server_of_its_own
    key = "a key that only this test knows"
    with server_process.served(tmp_path, "--store", url, TOOLPACK_SECRET_KEY=key) as server:
        load = Load(server.url)
        work(load, 1)
        os.kill(process_id, signal.SIGKILL)
        wait_until(lambda: server.http.get("/readyz").status_code == 503, "the loss of the store")
        families = load.families()
        assert "toolpack_sessions" not in families
        assert load.counted(families) == load.sent
        assert server.http.get("/healthz").status_code == 200


@pytest.fixture
def redis_server_of_its_own(tmp_path_factory):
    import redis_server  # noqa: PLC0415 - only for this test

    with redis_server.start(tmp_path_factory.mktemp("redis")) as started:
        yield started
