"""A worker's caches of sessions: if another worker makes an entry stale, answers stay right.

`engine/state.py` lists the cached values, the requests that make them stale, and the checks that detect stale values.
Each cached value has a test here.
"""

import random
import sys
import threading

import pytest
import serving
from serving import PACKS, Bench, ledger, open_store, refused, wait_until

from toolpack_server import Task, TaskEnvironment, Toolpack
from toolpack_server.packs.catalog import Catalog
from toolpack_server.packs.loading import load_catalog
from toolpack_server.stores.base import Lease
from toolpack_server.testing.store_contract.model import SharedMemory
from tools import database_histories, files_histories

VOLUMES = ("stall", "papers")
WITH_VOLUMES = load_catalog((PACKS,), VOLUMES)
PINNED = {"seed": "x", "clock": "2026-03-02T09:30:00Z"}
IN_PROCESSES = {"isolation": "process", "pack_dir": (PACKS,), "packs": VOLUMES}

needs_executors = pytest.mark.skipif(sys.platform != "linux", reason="executors need Linux")


@pytest.fixture
def worker_pair(isolation):  # noqa: ARG001 - must be set before
    """Return two workers that share a store."""
    store = SharedMemory()
    with Bench(store=store) as first, Bench(store=store) as second:
        yield first, second


def bench_with_volumes(store, **settings):
    return Bench(WITH_VOLUMES, store=store, **IN_PROCESSES, **settings)


def change_volumes(bench, session_id, number):
    bench.result(session_id, "place_order", product=1, quantity=1)
    bench.result(session_id, "write", path=f"{number}.txt", text="new")


def states(bench, session_id):
    return [record.get("state") for record in bench.rpc("get_trace", session_id=session_id)]


# Its existence


@serving.in_both
def test_a_session_that_another_worker_has_closed_is_gone(worker_pair):
    first, second = worker_pair
    session = first.rpc("create_session", toolpacks=["ledger"])
    session_id, key = session["session_id"], session["agent_path"].removeprefix("/agents/")
    first.result(session_id, "add", amount=1)
    assert first.rpc("run_function", agent_key=key, function="total")["result"] == 1
    second.rpc("close_session", session_id=session_id)
    refused(-32001, first.call, session_id, "add", {"call_id": "x"}, amount=1)
    refused(-32001, first.rpc, "run_function", agent_key=key, function="total")
    for method in ("get_session", "get_environment", "reset_session", "fork_session", "close_session"):
        refused(-32001, first.rpc, method, session_id=session_id)


@pytest.mark.parametrize("params", [{"function": "total"}, {}, None], ids=["call", "list", "closed here"])
def test_an_agents_key_of_a_closed_session_is_forgotten(worker_pair, params):
    first, second = worker_pair
    session = first.rpc("create_session", toolpacks=["ledger"])
    key = session["agent_path"].removeprefix("/agents/")
    assert first.rpc("run_function", agent_key=key, function="total")["result"] == 0
    assert key in first.sessions._agents
    (first if params is None else second).rpc("close_session", session_id=session["session_id"])
    if params is not None:
        refused(-32001, first.rpc, "run_function" if params else "list_functions", agent_key=key, **params)
    assert key not in first.sessions._agents


# Its state: index, version, parts, environments


@serving.in_both
def test_commits_of_other_workers_are_visible(worker_pair):
    first, second = worker_pair
    session_id = first.create("ledger")
    total = 0
    for turn in range(12):
        bench = worker_pair[turn % 3 % 2]
        total += turn
        assert bench.result(session_id, "add", amount=turn) == total
        assert worker_pair[turn % 2].version(session_id) == turn + 1
    second.rpc("reset_session", session_id=session_id, version=3)
    assert first.result(session_id, "add", amount=5) == 0 + 1 + 2 + 5
    refused(-32005, first.call, session_id, "add", {"expected_version": 12}, amount=1)
    path = [
        [record["index"] for record in each.rpc("get_trace", session_id=session_id, path=True)] for each in worker_pair
    ]
    assert path == [[0, 1, 2, 13]] * 2


def test_a_call_id_that_another_worker_has_used_is_known(worker_pair):
    first, second = worker_pair
    session_id = first.create("ledger")
    runs = ledger.runs.count("add")
    answers = [each.call(session_id, "add", {"call_id": "once"}, amount=7) for each in (first, second, first)]
    assert answers == [{"result": 7, "error": None}] * 3
    assert ledger.runs.count("add") == runs + 1
    for each in worker_pair:
        refused(-32009, each.call, session_id, "add", {"call_id": "once"}, amount=8)


def test_a_refused_commit_leaves_no_call_id(worker_pair):
    first, _ = worker_pair
    session_id = first.create("ledger")
    assert first.call(session_id, "add", {"call_id": "a"}, amount=1)["result"] == 1
    commit, first.store.commit = first.store.commit, lambda commits: [False] * len(commits)
    try:
        refused(-32006, first.call, session_id, "add", {"call_id": "b"}, amount=1)
    finally:
        first.store.commit = commit
    assert [each.call(session_id, "add", {"call_id": "b"}, amount=1)["result"] for each in worker_pair] == [2, 2]


def test_a_worker_presumed_dead_commits_nothing(worker_pair):
    first, second = worker_pair
    session_id = first.create("ledger")
    first.result(session_id, "add", amount=1)
    gate = ledger.gates["taken"] = threading.Event()
    runs = ledger.runs.count("add_and_hold")
    call = first.later_call(session_id, "add_and_hold", {"call_id": "x"}, name="taken")
    wait_until(lambda: ledger.runs.count("add_and_hold") > runs, "the call")
    (lease,) = first.store.claim([session_id], "another")
    assert isinstance(lease, Lease)

    def take():
        (lease,) = first.store.claim([session_id], second.sessions.queues.leases.holder)
        return not isinstance(lease, Lease) or first.store.claim([session_id], "another", {lease})

    wait_until(take, "the lease")
    gate.set()
    refused(-32006, call.result, serving.PATIENCE)
    assert second.version(session_id) == 1


# Counters and digests


def catalog_with_limit():
    pack = Toolpack("counted", TaskEnvironment)

    @pack.function(read_only=True)
    def look() -> int:
        """Look."""
        return 1

    pack.add_task(Task("three", "Look at most three times.", max_calls=3, evaluate=lambda rollout: bool(rollout.calls)))
    return Catalog({"counted": pack})


def test_calls_at_other_workers_count_for_an_agents_limit():
    store = SharedMemory()
    with Bench(catalog_with_limit(), store=store) as first, Bench(catalog_with_limit(), store=store) as second:
        session = first.rpc("create_session", task="counted/three")
        key = session["agent_path"].removeprefix("/agents/")
        called = [
            each.rpc("run_function", agent_key=key, function="look")["error"]
            for each in (first, second, first, first, second)
        ]
        assert called[:3] == [None] * 3
        assert [error.split(":")[0] for error in called[3:]] == ["EpisodeOverError"] * 2
        third = second.rpc("fork_session", session_id=session["session_id"])[0]["agent_path"].removeprefix("/agents/")
        assert first.rpc("run_function", agent_key=third, function="look")["error"].startswith("EpisodeOverError")


# Digests


@pytest.mark.heavy
@needs_executors
@pytest.mark.parametrize("version", [0, 3])
def test_a_worker_that_knows_no_digest_resets_a_seeded_session(store_url, version):
    store = store_url("sqlite")
    with bench_with_volumes(store) as first:
        session_id = first.create(*VOLUMES, **PINNED)
        change_volumes(first, session_id, 1)
        change_volumes(first, session_id, 2)
    with bench_with_volumes(store) as second:
        assert second.rpc("reset_session", session_id=session_id, version=version)["version"] == 5
        change_volumes(second, session_id, 3)
        state = states(second, session_id)
        assert len(state) == 7
        assert None not in state
        if version:
            assert state[4] == state[2]
        replayed = second.rpc("replay_session", session_id=session_id)
        assert (replayed["complete"], replayed.get("diverged")) == (True, None)
    with bench_with_volumes(store) as third:
        replayed = third.rpc("replay_session", session_id=session_id)
        assert (replayed["complete"], replayed.get("diverged")) == (True, None)


@needs_executors
def test_alternating_workers_store_the_same_digests(store_url):
    store = store_url("sqlite")
    stores = [open_store(store, exclusive=False) for _ in range(2)]
    with serving.moving(random.Random(3).choice, *stores, workers=1, catalog=WITH_VOLUMES, **IN_PROCESSES) as moving:
        session_id, alone = moving.create(*VOLUMES, **PINNED), moving.create(*VOLUMES, **PINNED)
        for each in (session_id, alone):
            change_volumes(moving, each, 1)
            change_volumes(moving, each, 2)
            moving.rpc("reset_session", session_id=each, version=2)
            change_volumes(moving, each, 3)
        assert states(moving, session_id) == states(moving, alone)
        replayed = moving.rpc("replay_session", session_id=session_id)
        assert (replayed["complete"], replayed.get("diverged")) == (True, None)


# Quotas and time


def test_bytes_stored_by_other_workers_count_in_a_session():
    store = SharedMemory()
    with Bench(store=store, max_session_bytes=90_000) as first, Bench(store=store, max_session_bytes=90_000) as second:
        session_id = first.create("ledger")
        errors = [
            each.call(session_id, "unknown", text="x" * 20_000)["error"].split(":")[0]
            for each in (first, second, first, second, first, second)
        ]
        assert errors == ["ToolNotFoundError"] * 4 + ["TooLargeError"] * 2


def test_a_session_renewed_by_another_worker_lives_on(worker_pair, clock):
    first, second = worker_pair
    session_id = first.create("ledger", ttl_seconds=100)
    first.result(session_id, "total")
    clock.move(90)
    second.result(session_id, "total")
    renewed = first.store.get(session_id)[0].expires_at
    refused(-32005, first.call, session_id, "add", {"expected_version": 9}, amount=1)
    first.rpc("get_trace", session_id=session_id)
    assert first.store.get(session_id)[0].expires_at >= renewed
    clock.move(20)
    store_time = first.store.count_time(clock.time())
    assert list(first.store.delete_expired(store_time.now, 10)) == []
    first.result(session_id, "total")
    assert first.store.get(session_id)[0].expires_at == pytest.approx(clock.time() + 105)


def test_each_sweep_adopts_the_time_of_the_store(worker_pair):
    first, _ = worker_pair
    with first.sweeping() as look:
        first.sessions.queues.clock.ahead += 5000
        look(2)
    assert abs(first.sessions.queues.clock.now() - first.store.count_time().now) < serving.PATIENCE


# All values, at each step


@pytest.mark.parametrize(
    "settings", [{}, pytest.param(IN_PROCESSES, marks=[needs_executors, pytest.mark.heavy])], ids=["thread", "process"]
)
@pytest.mark.parametrize("history", [database_histories.history, files_histories.history])
def test_databases_and_files_move_between_workers_and_servers(store_url, history, settings):
    store = store_url("sqlite")
    stores = [open_store(store, exclusive=False) for _ in range(2)]
    turns = random.Random(1)
    options = {"max_result_bytes": 2**26, "keep_versions": 1000, **settings}
    with serving.moving(turns.choice, *stores, catalog=WITH_VOLUMES, **options) as moving:
        for seed in range(2):
            history(moving, seed, steps=12)
