"""Every limit: its setting, its default, and a clear error that leaves the sessions unchanged."""

import asyncio
import contextlib
import dataclasses
import json
import re
import socket
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
import server_process
import serving
from http_endpoint import HEAD, PING, PROTOCOLS, answer, check_refusal, is_ended, read, request, served
from serving import Bench, Clock, RpcError, ledger, refused, result_of, wait_until

from toolpack_server import Toolpack
from toolpack_server.base.cache import BoundedCache
from toolpack_server.base.errors import VersionNotRetainedError
from toolpack_server.base.fixed_limits import FixedLimits
from toolpack_server.base.settings import Settings
from toolpack_server.engine.state import SessionState
from toolpack_server.execution.codec import Codec
from toolpack_server.execution.initial import ENTRY_BYTES, InitialEnvironments
from toolpack_server.execution.initial import build as build_initial
from toolpack_server.execution.world import ExecutionContext
from toolpack_server.packs.catalog import Catalog
from toolpack_server.rpc import parsing
from toolpack_server.sessions import factory, manager, quotas
from toolpack_server.testing.store_contract.model import SharedMemory

WAIT_SECONDS = 0.4
LIMITS = [name for name in Settings.variables().values() if name.startswith("max_") or name.endswith("timeout_seconds")]


# Limits of a request


def test_only_a_large_body_is_parsed_in_a_thread(monkeypatch):
    with Bench() as server:
        session = server.create("ledger")
        on_the_loop = []

        def loads(body):
            on_the_loop.append(asyncio._get_running_loop() is not None)  # another thread may take over the loop
            return json.loads(body)

        monkeypatch.setattr(parsing, "loads", loads)
        assert server.call(session, "echo", value="x" * 1000)["error"] is None
        assert server.call(session, "echo", value="x" * 200_000)["error"] is None
        assert result_of(server.answer(b" " * 100_000 + PING)) is not None
        refused(-32700, lambda: result_of(server.answer(b" " * 100_000)))
        assert on_the_loop == [True, False, False, False]


def test_the_depth_of_json_is_limited():
    with Bench(max_json_depth=8) as server:
        session = server.create("ledger")
        # The request, its params and the kwargs are three levels.
        assert server.call(session, "echo", value=[[[[[1]]]]])["result"] == [[[[[1]]]]]
        error = refused(-32600, server.call, session, "echo", value=[[[[[[1]]]]]])
        assert "more than 8 deep" in error.data["detail"]
        assert server.call(session, "echo", value="[" * 1000)["error"] is None  # brackets in a string add no levels


def test_the_number_of_json_values_is_limited():
    with Bench(max_json_values=1000) as server:
        session = server.create("ledger")
        assert server.call(session, "echo", value=[0] * 900)["error"] is None
        error = refused(-32007, server.call, session, "echo", value=[0] * 1100)
        assert "more than 1000 values" in error.message
        assert server.call(session, "echo", value='",\\' * 5000)["error"] is None  # commas in a string don't count
        assert server.version(session) == 2


@pytest.mark.parametrize("times", [100, 5000], ids=["small", "large"])
@pytest.mark.parametrize("value", ["{}", "[]", '""', "1000", "1.5"])
def test_a_body_counts_with_the_memory_of_its_values(value, times):
    body = b"[%b]" % b",".join([value.encode()] * times)
    values = json.loads(body)
    assert parsing.parsed_bytes(body) >= sys.getsizeof(values) + sum(map(sys.getsizeof, values))


def test_many_wrong_parameters_are_counted_not_listed():
    with Bench() as server:
        error = refused(-32602, server.rpc, "get_session", **{f"wrong {number}": 1 for number in range(10_000)})
        assert "parameters have 10001 errors" in error.data["detail"]
        assert len(error.data["detail"]) < 500


def test_the_length_of_a_batch_is_limited():
    with Bench(max_batch=3) as server:
        session = server.create("ledger")
        batch = [request("run_function", n, session_id=session, function="add", kwargs={"amount": 1}) for n in range(4)]
        assert len(json.loads(server.answer(json.dumps(batch[:3])))) == 3
        error = refused(-32007, lambda: result_of(server.answer(json.dumps(batch))))
        assert "4 requests; 3 are allowed" in error.message
        assert server.version(session) == 3


def test_the_answers_of_a_batch_are_limited_together():
    with Bench(max_body_bytes=5000) as server:
        session = server.create("ledger")
        call = {"session_id": session, "function": "echo", "kwargs": {"value": "x" * 2000}}
        batch = [request("run_function", number, **call) for number in range(6)]
        notification = {"jsonrpc": "2.0", "method": "x"}
        no_request = {"jsonrpc": "1.0", "id": {}, "method": "x"}
        answers = json.loads(server.answer(json.dumps([*batch, 1, no_request, notification])))
        assert [answer["id"] for answer in answers] == [*range(6), None, None]
        assert [answer.get("error", {}).get("code") for answer in answers] == [None] * 3 + [-32007] * 3 + [-32600] * 2
        assert "in another batch" in answers[5]["error"]["message"]
        assert server.version(session) == 3


SMALL = {"max_body_bytes": 1024, "max_result_bytes": 1024, "max_list_bytes": 1024}
ALLOWED = 6144  # number of bytes of an answer with these values


def test_one_answer_is_limited():
    with Bench(**SMALL) as server:
        session = server.create("ledger")
        for _ in range(400):
            server.call(session, "add", amount=10**17)
        error = refused(-32007, server.rpc, "get_environment", session_id=session)
        assert f"{ALLOWED} are allowed here" in error.message
        assert "TOOLPACK_MAX_BODY_BYTES" in error.message


def test_the_answers_of_a_batch_are_limited_as_one_answer():
    with Bench(**SMALL) as server:
        session = server.create("ledger")
        call = {"session_id": session, "function": "echo", "kwargs": {"value": "x" * 1000}}
        answers = json.loads(server.answer(json.dumps([request("run_function", n, **call) for n in range(3)])))
        assert [answer.get("error", {}).get("code") for answer in answers] == [None, -32007, -32007]
        assert server.version(session) == 1


def test_an_answer_gets_the_room_left_in_its_batch():
    with Bench(**SMALL) as server:
        session = server.create("ledger")
        for _ in range(300):
            server.call(session, "add", amount=10**17)
        body = request("get_environment", 1, session_id=session)
        size = len(server.answer(json.dumps(body)))
        echo = request("run_function", 2, session_id=session, function="echo", kwargs={"value": "x" * 900})
        assert ALLOWED - 900 < size < ALLOWED
        after, last = json.loads(server.answer(json.dumps([echo, body])))
        assert ("result" in after, last["error"]["code"]) == (True, -32007)


@pytest.mark.parametrize("text", ["x", '"', "\\", "\n", "\0", "é", "🙂"])
def test_a_calls_result_is_answered_despite_small_limits(text):
    with Bench(max_body_bytes=1024) as server:
        session = server.create("ledger")
        times = (2**20 - 2) // (len(json.dumps(text, ensure_ascii=False).encode()) - 2)
        params = {"function": "repeat", "kwargs": {"text": text, "times": times}}
        small = request("run_function", 1, session_id=session, function="echo", kwargs={"value": "x" * 900})
        large = [request("run_function", 2, session_id=session, **params)]
        envelope = json.loads(server.answer(json.dumps([small, *large])))[1]["result"]
        assert (envelope["error"], envelope["result"]) == (None, text * times)


# Limits of waiting calls


@contextlib.contextmanager
def busy_session(server, session):
    """Keep a session busy with a call that waits for a gate."""
    gate = ledger.gates["held"] = threading.Event()
    try:
        running = server.later_call(session, "add_and_hold", name="held")
        wait_until(lambda: server.sessions.load()[0] == 0 and not server.sessions.queues.is_idle(), "the call")
        yield
    finally:
        gate.set()
    assert running.result(serving.PATIENCE)["error"] is None


def test_waiting_calls_of_one_session_are_limited():
    with Bench(max_waiting_per_session=2) as server:
        session, other = server.create("ledger"), server.create("ledger")
        with busy_session(server, session):
            waiting = [server.later_call(session, "add", amount=1) for _ in range(2)]
            error = refused(-32006, server.call, session, "add", amount=1)
            assert error.data["retry_after_seconds"] > 0
            assert error.data["type"] == "OverloadedError"
            assert "nothing was changed" in error.message
            assert server.call(other, "add", amount=1)["result"] == 1
        assert [call.result(serving.PATIENCE)["result"] for call in waiting] == [4, 5]
        assert server.version(session) == 3


def test_waiting_calls_in_total_are_limited():
    with Bench(max_waiting=2) as server:
        sessions = [server.create("ledger") for _ in range(3)]
        with busy_session(server, sessions[0]):
            waiting = [server.later_call(sessions[0], "add", amount=1) for _ in range(2)]
            error = refused(-32006, server.call, sessions[1], "add", amount=1)
            assert error.data["retry_after_seconds"] > 0
        assert all(call.result(serving.PATIENCE)["error"] is None for call in waiting)
        assert server.call(sessions[1], "add", amount=1)["result"] == 1


def test_one_owners_waiting_calls_leave_room_for_others():
    def call(owner):
        return {"owner": owner, "session_id": sessions[owner], "function": "add", "kwargs": {"amount": 1}}

    with Bench(max_waiting=4, tokens={"ann": "a" * 16, "bob": "b" * 16}) as server:
        sessions = {owner: server.create("ledger", owner=owner) for owner in ("ann", "bob")}
        gates = [ledger.gates.setdefault(owner, threading.Event()) for owner in sessions]
        hold = [
            server.later("run_function", **{**call(owner), "function": "add_and_hold", "kwargs": {"name": owner}})
            for owner in sessions
        ]
        try:
            wait_until(lambda: server.sessions.load()[0] == 0 and not server.sessions.queues.is_idle(), "the calls")
            waiting = [server.later("run_function", **call("ann")) for _ in range(2)]
            error = refused(-32006, server.rpc, "run_function", **call("ann"))
            assert error.message == "2 of your calls wait already; nothing was changed. Send it later."
            waiting += [server.later("run_function", **call("bob")) for _ in range(2)]
            assert "Too many calls" in refused(-32006, server.rpc, "run_function", **call("bob")).message
        finally:
            for gate in gates:
                gate.set()
        assert all(call.result(serving.PATIENCE)["error"] is None for call in [*hold, *waiting])
        assert server.rpc("run_function", **call("ann"))["error"] is None


def test_a_call_waits_for_its_session_up_to_a_limit():
    with Bench(queue_timeout_seconds=0.1) as server:
        session = server.create("ledger")
        with busy_session(server, session):
            error = refused(-32006, server.call, session, "add", amount=1)
            assert "0.1 s" in error.message
            assert error.data["retry_after_seconds"] > 0
        assert server.version(session) == 1


# Limits of stored data


def test_the_sessions_of_one_owner_are_limited():
    with Bench(max_sessions=3) as server:
        session = server.create("ledger", owner="ann")
        server.create("ledger", owner="ann")
        error = refused(-32007, server.rpc, "fork_session", owner="ann", session_id=session, count=2)
        assert "3 are allowed: close some first" in error.message
        assert "retry_after_seconds" not in error.data  # waiting doesn't help, so clients don't retry
        server.rpc("fork_session", owner="ann", session_id=session)
        refused(-32007, server.create, "ledger", owner="ann")
        server.create("ledger", owner="bob")
        server.rpc("close_session", owner="ann", session_id=session)

        def can_create():
            with contextlib.suppress(RpcError):
                return server.create("ledger", owner="ann")

        wait_until(can_create, "the next count")


@pytest.fixture(params=["memory", "sqlite", "redis"])
def any_store(request, store_url):
    """Return the URL of a store of each kind."""
    return store_url(request.param)


def test_the_bytes_of_a_session_are_limited(any_store):
    with Bench(store=any_store, max_session_bytes=50_000) as server:
        session = server.create("ledger")
        text = "x" * 9_000
        envelopes = [server.call(session, "unknown", text=text) for _ in range(10)]
        full = [each for each in envelopes if each["error"].startswith("TooLargeError: the session stores ")]
        assert 4 <= len(envelopes) - len(full) <= 5
        assert "50000 are allowed" in full[0]["error"]
        assert len(server.rpc("get_trace", session_id=session)) == len(envelopes) - len(full)
        assert server.call(session, "add", amount=1)["result"] == 1  # a small call still fits
        assert server.call(server.create("ledger"), "unknown", text=text)["error"].startswith("ToolNotFoundError")


def test_trimmed_versions_do_not_count_for_ever():
    with Bench(max_session_bytes=160_000, keep_versions=1) as server:
        session = server.create("ledger")
        for _ in range(3 * 64):
            assert server.call(session, "add", amount=1)["error"] is None


def test_the_bytes_of_an_owner_are_limited(any_store):
    with Bench(store=any_store, max_owner_bytes=100_000) as server:
        sessions = [server.create("ledger", owner="ann") for _ in range(3)]
        text = "x" * 30_000
        errors = [server.call(session, "unknown", {"owner": "ann"}, text=text)["error"] for session in sessions * 2]
        assert [error.split(":")[0] for error in errors] == ["ToolNotFoundError"] * 3 + ["TooLargeError"] * 3
        assert "this owner stores 9" in errors[-1]
        environment = {"ledger": {"ledger": {"entries": [], "anything": text}}}
        refused(-32007, server.create, "ledger", owner="ann", environment=environment)
        error = refused(
            -32007, server.rpc, "fork_session", owner="ann", session_id=sessions[0], count=20, labels={"a": text[:999]}
        )
        assert "close some sessions first" in error.message
        server.create("ledger", owner="bob", environment=environment)
        server.rpc("close_session", owner="ann", session_id=sessions[0])

        def can_call():
            return server.call(sessions[1], "unknown", {"owner": "ann"}, text=text)["error"].startswith("ToolNot")

        wait_until(can_call, "the next count")


def test_bytes_freed_elsewhere_count_a_second_later(any_store, monkeypatch):
    clock = Clock(monkeypatch, quotas)
    with Bench(store=any_store, max_owner_bytes=100_000) as server:
        sessions = [server.create("ledger", owner="ann") for _ in range(3)]

        def call(session):
            return server.call(session, "unknown", {"owner": "ann"}, text="x" * 30_000)["error"].split(":")[0]

        assert [call(session) for session in sessions * 2] == ["ToolNotFoundError"] * 3 + ["TooLargeError"] * 3
        server.store.delete([sessions[0]])  # as another server may do
        server.store.clean_up()
        clock.move(quotas.RECOUNT_FULL_SECONDS / 2)
        assert call(sessions[1]) == "TooLargeError"
        clock.move(quotas.RECOUNT_FULL_SECONDS)
        assert call(sessions[1]) == "ToolNotFoundError"
        assert call(sessions[1]) == "TooLargeError"


def test_an_owners_limits_hold_for_all_workers_together(monkeypatch):
    monkeypatch.setattr(quotas, "RECOUNT_SECONDS", 3600)
    monkeypatch.setattr(factory, "RECOUNT_SECONDS", 3600)
    store, max_bytes, sessions = SharedMemory(), 1_000_000, 500
    limits = {"store": store, "max_owner_bytes": max_bytes, "max_sessions": sessions}
    with contextlib.ExitStack() as opened:
        workers = [opened.enter_context(Bench(**limits)) for _ in range(4)]
        session_id = workers[0].create("ledger")
        for each in workers:
            each.create("ledger")  # each worker has counted the stored bytes, and found almost none
        # The workers use up the remaining bytes one after the other.
        for each in workers:
            with contextlib.suppress(RpcError):
                while True:
                    each.create("ledger")
        assert sessions <= store.count("") <= sessions * 1.1
        for each in workers:
            while each.call(session_id, "unknown", text="x" * 6000)["error"].startswith("ToolNotFoundError"):
                pass
        assert max_bytes < store.stored_bytes("") + 7000
        assert store.stored_bytes("") <= max_bytes * 1.1


def test_the_bytes_of_retained_versions_are_limited_at_any_time(any_store):
    with Bench(store=any_store, max_session_bytes=640_000, keep_versions=1000) as server:
        environment = {"ledger": {"ledger": {"anything": "x" * 5000}}}
        session = server.create("ledger", environment=environment)
        for number in range(40):
            server.result(session, "add", amount=1)
            kept_versions = [version for version in range(1, number + 2) if _is_kept(server.store, session, version)]
            blobs = {blob for version in kept_versions for blob in server.store.parts_at(session, version).values()}
            size = sum(map(len, server.store.blobs([*blobs]).values()))
            assert size <= 20_000 + 20_000 + 2 * 6000  # twice the limit between two checks, and the newest
        assert 3 <= len(kept_versions) < 10


def _is_kept(store, session, version):
    try:
        return bool(store.parts_at(session, version))
    except VersionNotRetainedError:
        return False


def test_the_size_of_an_environment_is_limited():
    with Bench(max_environment_bytes=2**16) as server:
        session = server.create("ledger")
        envelope = server.call(session, "add_then", how="grow")
        assert envelope["error"].startswith("TooLargeError: the environment of 'ledger' has grown to 3")
        assert "65536 are " in envelope["error"]
        error = refused(-32007, server.call, session, "add_then", {"raise_on_error": True}, how="grow")
        assert error.data["type"] == "TooLargeError"
        assert server.version(session) == 0
        assert server.result(session, "total") == 0
        refused(-32007, server.create, "ledger", environment={"ledger": {"ledger": {"anything": "x" * 70_000}}})


def test_the_size_of_a_result_is_limited():
    with Bench(max_result_bytes=2**16) as server:
        session = server.create("ledger")
        envelope = server.call(session, "add_and_return", what="much")
        assert envelope["error"] == "TooLargeError: the result has 3000002 bytes as JSON; 65536 are allowed."
        refused(-32007, server.call, session, "add_and_return", {"raise_on_error": True}, what="much")
        assert server.version(session) == 0


def state(name, blob=b"", *, live=False):
    """Return a worker's cached state of a session."""
    with Bench() as server:
        session_id = server.create("ledger")
        session, head = server.store.get(session_id)
    state_of_session = SessionState(dataclasses.replace(session, id=name), head)
    state_of_session.blobs = {"ledger": blob}
    state_of_session.live = {"ledger": ledger.LedgerEnvironment()} if live else {}
    return state_of_session


def test_the_session_cache_has_a_memory_limit():
    sizes = [state("a").size(), state("a", b"x" * 1000).size(), state("a", b"x" * 1000, live=True).size()]
    assert sizes[0] >= 1000
    assert sizes[1] == sizes[0] + 1000
    assert sizes[2] > sizes[1] + 1000  # objects take more memory than their bytes
    small, large = state("a"), state("large", b"x" * 3 * sizes[0])
    cache = BoundedCache(3 * sizes[0], SessionState.size)
    for name in "abc":
        cache.put(name, state(name))
    assert (len(cache), cache.size) == (3, 3 * sizes[0])
    cache.put("a", small)  # a new entry replaces the old entry of its session, and is the most recently used one
    assert cache.get("a") is small
    assert (len(cache), cache.size) == (3, 3 * sizes[0])
    cache.put("d", state("d"))
    assert [name for name in "abcd" if cache.get(name)] == ["a", "c", "d"]
    assert cache.pop("c").session.id == "c"
    assert cache.pop("c") is None
    assert (len(cache), cache.size) == (2, 2 * sizes[0])
    cache.put("e", state("e"))
    assert [name for name in "abcde" if cache.get(name)] == ["a", "d", "e"]
    cache.put("large", large)  # this entry would leave no room for other entries
    assert [name for name in ["a", "d", "e", "large"] if cache.get(name)] == ["a", "d", "e"]
    cache.put("d", large)
    assert [name for name in "ade" if cache.get(name)] == ["a", "e"]
    assert (len(cache), cache.size) == (2, 2 * sizes[0])
    cache.put_all({"large": large, "larger": large})
    assert [name for name in ["a", "e", "large", "larger"] if cache.get(name)] == ["large", "larger"]
    cache.put("a", small)
    assert cache.get("a") is small
    assert (len(cache), cache.size) == (1, sizes[0])


def test_an_evicted_session_is_read_again():
    with Bench(cache_bytes=0) as server:
        session = server.create("ledger")
        assert [server.call(session, "add", amount=1)["result"] for _ in range(3)] == [1, 2, 3]
        assert server.sessions.load()[2] == 0


class Shops:
    """Initial environments of a toolpack that counts its builds."""

    def __init__(self, fitting):
        self.built = []

        def build(name: str = "") -> ledger.LedgerEnvironment:
            """Build the environment.

            :param name: A value in the environment: another name gives another environment.
            """
            self.built.append(name)
            return ledger.LedgerEnvironment(ledger={"anything": name})

        codec = Codec(Catalog({"shop": Toolpack("shop", build, [ledger.add])}), serving.KEY, 2**20, serving.NO_VOLUMES)
        build_one = partial(build_initial, ExecutionContext(codec, 2**20))
        built = InitialEnvironments(build_one, 0).get("shop", {"name": "a"})
        size = sum(ENTRY_BYTES + len(blob) for _, blob in built.values())
        self.initial = InitialEnvironments(build_one, fitting * size)
        self.built.clear()

    def get(self, names):
        """Get environments, and return the names of those that were built."""
        self.built.clear()
        for name in names:
            self.initial.get("shop", {"name": name})
        return "".join(self.built)


def test_initial_environments_are_cached_with_an_lru_limit():
    shops = Shops(2)
    assert shops.get("aabb") == "ab"
    assert shops.get("ac") == "c"
    assert shops.get("ab") == "b"
    assert shops.get("abab") == ""
    assert shops.get("cdefghfghfgh") == "cdefghfghfgh"
    assert shops.get("hghg") == ""


def test_a_too_large_initial_environment_is_not_cached():
    shops = Shops(0.5)
    assert shops.get("aab") == "aab"


def test_concurrent_builds_share_one_initial_environment():
    at_once = threading.Barrier(2)

    def build() -> ledger.LedgerEnvironment:
        """Build it."""
        at_once.wait(serving.PATIENCE)
        return ledger.LedgerEnvironment()

    codec = Codec(Catalog({"shop": Toolpack("shop", build, [ledger.add])}), serving.KEY, 2**20, serving.NO_VOLUMES)
    initial = InitialEnvironments(partial(build_initial, ExecutionContext(codec, 2**20)), 2**20)
    with ThreadPoolExecutor(2) as pool:
        one, other = pool.map(lambda _: initial.get("shop", {}), range(2))
    assert one == other == initial.get("shop", {})


def test_agents_keys_are_remembered_only_up_to_a_number(monkeypatch):
    monkeypatch.setattr(manager, "MAX_CACHED_AGENTS", 3)
    with Bench() as server:
        keys = [server.rpc("create_session", toolpacks=["ledger"])["agent_path"].rpartition("/")[2] for _ in range(8)]
        for key in keys + keys:
            assert server.rpc("run_function", agent_key=key, function="add", kwargs={"amount": 1})["error"] is None
            assert 1 <= len(server.sessions._agents) <= 3
        # An unknown key isn't cached at all.
        cached = dict(server.sessions._agents)
        for number in range(5):
            refused(-32001, server.rpc, "list_functions", agent_key=str(number))
        assert server.sessions._agents == cached


def test_a_remembered_agents_key_is_not_looked_up_again():
    with Bench() as server:
        key = server.rpc("create_session", toolpacks=["ledger"])["agent_path"].rpartition("/")[2]
        server.rpc("list_functions", agent_key=key)
        server.store.find_agent = lambda _: pytest.fail("it is known")
        server.rpc("list_functions", agent_key=key)


def test_a_body_of_exactly_the_limit_fits():
    with Bench(max_result_bytes=1024) as server:
        session = server.create("ledger")
        assert server.call(session, "echo", value="x" * 1022)["error"] is None  # and two quotes
        assert server.call(session, "echo", value="x" * 1023)["error"].startswith("TooLargeError: the result has 1025 ")
    with Bench(max_environment_bytes=2**16) as server:
        error = server.call(server.create("ledger"), "add_then", how="grow")["error"]
        size = int(re.search(r"grown to (\d+) bytes", error)[1])
    for less, is_kept in ((0, True), (1, False)):
        with Bench(max_environment_bytes=size - less) as server:
            assert (server.call(server.create("ledger"), "add_then", how="grow")["error"] is None) is is_kept
    with Bench(max_json_values=1000) as server:
        session = server.create("ledger")
        # Beside these values, the answer has six more commas and brackets.
        fitting = next(n for n in range(1000, 900, -1) if not answers_7(server, session, n))
        assert server.call(session, "echo", value=[0] * fitting)["error"] is None
        empty_answer = json.dumps(
            request("run_function", session_id=session, function="echo", kwargs={"value": [0] * fitting})
        )
        assert sum(map(empty_answer.count, ",[{")) == 1000


def answers_7(server, session, count):
    """Return whether a result with this number of values is refused as too large."""
    try:
        server.call(session, "echo", value=[0] * count)
    except RpcError as error:
        return error.code == -32007
    return False


# Connections


@pytest.fixture(scope="module", params=["httptools", "h11"])
def endpoint(request):
    patient = 3 * serving.PATIENCE
    with served(request.param, max_body_bytes=100_000, max_connections=20, receive_seconds=patient) as running:
        yield running


HURRY = {"headers": {"receive_seconds": 3 * WAIT_SECONDS}, "body": {"receive_seconds": WAIT_SECONDS}}


@pytest.mark.parametrize("announced", [b"Content-Length: 100001", b"Content-Length: 999999999999"])
def test_a_body_announced_as_too_large_is_refused_at_once(endpoint, announced):
    with endpoint.connect(HEAD + announced + b"\r\n\r\n") as connection:
        message = check_refusal(answer(connection), 413)
        assert "100000 bytes" in message
        assert "TOOLPACK_MAX_BODY_BYTES" in message


def test_a_body_in_chunks_is_refused_as_soon_as_it_is_too_large(endpoint):
    with endpoint.connect(
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n", b"ea60\r\n" + b" " * 60_000 + b"\r\n"
    ) as connection:
        connection.sendall(b"ea60\r\n" + b" " * 60_000 + b"\r\n")
        assert "100000 bytes" in check_refusal(answer(connection), 413)


@pytest.mark.parametrize("http", PROTOCOLS)
def test_a_connection_that_is_idle_is_closed_after_a_while(http):
    with (
        served(http, keep_alive=1) as endpoint,
        endpoint.connect(HEAD + b"Content-Length: %d\r\n\r\n" % len(PING) + PING) as connection,
    ):
        assert answer(connection)[0] == 200
        assert is_ended(connection)


@pytest.mark.parametrize(
    ("part", "pieces"),
    [
        ("headers", []),
        ("headers", [b"POST /rpc HT"]),
        ("headers", [HEAD, b"X: 1\r\n"]),
        ("body", [HEAD + b"Content-Length: 50\r\n\r\n", b"{"]),
        ("body", [HEAD + b"Transfer-Encoding: chunked\r\n\r\n5\r\n{"]),
    ],
)
def test_an_incomplete_request_times_out(endpoint, part, pieces):
    start = time.monotonic()
    with endpoint.hurried(**HURRY[part]), endpoint.connect(*pieces) as connection:
        assert f"The request's {part} did not come within 0.4 s" in check_refusal(answer(connection), 408)
        assert is_ended(connection)
    assert time.monotonic() - start > WAIT_SECONDS * 0.9


@pytest.mark.parametrize(("part", "second"), [("headers", b"POST"), ("body", HEAD + b"Content-Length: 50\r\n\r\n{")])
def test_a_second_request_has_the_same_time(endpoint, part, second):
    first = HEAD + b"Content-Length: %d\r\n\r\n" % len(PING) + PING
    with endpoint.connect(first) as connection:
        assert answer(connection)[0] == 200
        with endpoint.hurried(**HURRY[part]):
            connection.sendall(second)
            check_refusal(answer(connection), 408)

    def in_a_row():
        """Send the second request before the first is answered. Try again if this process was too slow."""
        with endpoint.connect(first + second) as connection:
            text = b"".join(iter(lambda: connection.recv(65536), b""))
        return text if text.startswith(b"HTTP/1.1 200") else None

    with endpoint.hurried(**HURRY[part]):
        assert b"HTTP/1.1 408" in wait_until(in_a_row, "the first answer")


def test_a_client_that_trickles_gets_no_more_time(endpoint):
    with endpoint.hurried(**HURRY["body"]), endpoint.connect(HEAD + b"Content-Length: 5000\r\n\r\n") as connection:
        connection.settimeout(0.02)

        def trickle():
            try:
                connection.sendall(b" ")
                return connection.recv(1)
            except TimeoutError:
                return None
            except ConnectionError:
                return True

        wait_until(trickle, "the end of its time")


@pytest.mark.parametrize("pieces", [b"X: 1\r\n" * 20_000, b"X: " + b"a" * 100_000])
def test_endless_headers_are_refused(endpoint, pieces):
    with endpoint.connect(HEAD) as connection:
        with contextlib.suppress(ConnectionError):
            connection.sendall(pieces)
        assert answer(connection)[0] in {400, 431}


def test_endless_trailers_are_refused(endpoint):
    with endpoint.connect(HEAD + b"Transfer-Encoding: chunked\r\n\r\n1\r\n \r\n0\r\n") as connection:
        with contextlib.suppress(ConnectionError):
            for _ in range(30):
                connection.sendall(b"X: 1\r\n" * 5000)
        assert answer(connection)[0] in {400, 431}


def test_the_limit_of_open_files_is_logged_once(tmp_path, monkeypatch):
    command = server_process.command
    limited = ["sh", "-c", 'ulimit -n 60 && exec "$@"', "sh"]
    monkeypatch.setattr(server_process, "command", lambda *arguments: [*limited, *command(*arguments)])
    variables = server_process.http_on(
        "h11", tmp_path
    )  # uvloop closes a connection that it can't accept, and logs nothing
    with server_process.served(tmp_path, "--store", "memory:", **variables) as server:
        port = int(server.url.rpartition(":")[2])
        with contextlib.ExitStack() as stack:
            for _ in range(100):
                stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=serving.PATIENCE))
            wait_until(lambda: "Too many" in (tmp_path / "server.log").read_text(), "a line in the log")
            connection = socket.create_connection(("127.0.0.1", port), timeout=serving.PATIENCE)
        with connection:  # asyncio retries, so the connection is accepted after others were closed
            connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            assert connection.recv(100).startswith(b"HTTP/1.1 200")
        at_start, line = (tmp_path / "server.log").read_text().splitlines()
    assert "allows 60 open files" in at_start
    assert "TOOLPACK_MAX_CONNECTIONS" in at_start
    assert "Too many open files" in line


def test_a_client_may_close_its_side_after_sending(endpoint):
    with endpoint.connect(HEAD + b"Content-Length: %d\r\n\r\n" % len(PING) + PING) as connection:
        connection.shutdown(socket.SHUT_WR)
        assert answer(connection)[0] == 200
        assert is_ended(connection)


UPGRADE = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: %b\r\nHTTP2-Settings: AAMAAABk\r\n"
WHOLE = b"Content-Length: %d\r\n\r\n" % len(PING) + PING
IN_CHUNKS = b"Transfer-Encoding: chunked\r\n\r\n5\r\n%b\r\n%x\r\n%b\r\n0\r\n\r\n" % (PING[:5], len(PING) - 5, PING[5:])


@pytest.mark.parametrize("echoed", ["together", "after the answer", "byte by byte"])
@pytest.mark.parametrize("body", [WHOLE, IN_CHUNKS], ids=["whole", "in chunks"])
@pytest.mark.parametrize("protocol_name", [b"h2c", b"websocket", b"TLS/1.0, h2c"])
def test_a_request_to_upgrade_is_answered_as_without_it(endpoint, protocol_name, body, echoed):
    with endpoint.connect(HEAD + WHOLE) as connection:
        expected = answer(connection)
    first = HEAD + UPGRADE % protocol_name + body
    with endpoint.connect() as connection:
        for piece in map(bytes, zip(first)) if echoed == "byte by byte" else [first]:
            connection.sendall(piece)
        if echoed == "together":
            connection.sendall(HEAD + WHOLE)
        head, *replies = read(connection, more_follows=True)
        assert tuple(replies) == expected
        assert b"connection: close" not in head
        if echoed != "together":
            connection.sendall(HEAD + WHOLE)
        assert answer(connection) == expected


def test_a_get_that_asks_for_an_upgrade_is_answered(endpoint):
    for protocol_name in (b"h2c", b"websocket"):
        with endpoint.connect(
            b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n" + UPGRADE % protocol_name + b"\r\n"
        ) as client:
            assert client.recv(100).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("half_closed", [True, False])
def test_requests_that_come_together_are_answered_in_order(endpoint, half_closed):
    bodies = [json.dumps(request("list_sessions", number)).encode() for number in range(300)]
    with endpoint.connect() as connection:
        connection.sendall(b"".join(HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body for body in bodies))
        if half_closed:
            connection.shutdown(socket.SHUT_WR)
        for number in range(300):
            assert read(connection, more_follows=True)[2]["id"] == number
        if half_closed:
            assert is_ended(connection)


def test_pipelined_requests_are_buffered_up_to_a_limit(endpoint):
    session = endpoint.rpc("create_session", toolpacks=["ledger"])["session_id"]
    gate = ledger.gates["behind"] = threading.Event()
    call = {"session_id": session, "function": "add_and_hold", "kwargs": {"name": "behind"}}
    body = json.dumps(request("run_function", **call)).encode()
    before, requests = endpoint.open(), b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" * 100_000
    try:
        with endpoint.connect(HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body) as connection:
            (ours,) = wait_until(lambda: endpoint.open() - before, "the connection")
            connection.setblocking(False)
            wait_until(lambda: refuses_more(connection, requests), "the end of reading")
            assert len(ours._unparsed) < 2**20
            assert len(getattr(ours, "pipeline", ())) < 20
    finally:
        gate.set()


def refuses_more(connection, data):
    try:
        connection.send(data)
    except BlockingIOError:
        time.sleep(0.05)  # the server may still read
        try:
            connection.send(data)
        except BlockingIOError:
            return True
    return False


@pytest.mark.parametrize("http", PROTOCOLS)
def test_a_client_that_reads_nothing_is_cut_off(http):
    with served(http) as endpoint:
        session = endpoint.rpc("create_session", toolpacks=["ledger"])["session_id"]
        endpoint.rpc("run_function", session_id=session, function="add_then", kwargs={"how": "grow"})
        # an answer that is larger than the system's buffers for a client
        body = json.dumps([request("get_environment", number, session_id=session) for number in range(5)]).encode()
        before = endpoint.open()
        with endpoint.hurried(**HURRY["body"]), endpoint.connect() as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            (ours,) = wait_until(lambda: endpoint.open() - before, "the connection")
            connection.sendall(HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body)
            wait_until(lambda: ours not in endpoint.open(), "its end")


@pytest.mark.parametrize("ending", ["close", "reset"])
def test_a_client_that_leaves_loses_only_the_answer(endpoint, ending):
    session = endpoint.rpc("create_session", toolpacks=["ledger"])["session_id"]
    gate = ledger.gates[ending] = threading.Event()
    call = {"session_id": session, "function": "add_and_hold", "kwargs": {"name": ending}, "call_id": "lost"}
    body = json.dumps(request("run_function", **call)).encode()
    before = ledger.runs.count("add_and_hold")
    connection = endpoint.connect(HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body)
    wait_until(lambda: ledger.runs.count("add_and_hold") > before, "the call")
    if ending == "reset":
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
    connection.close()
    gate.set()
    (record,) = wait_until(lambda: endpoint.rpc("get_trace", session_id=session), "the record")
    assert (record.get("call_id"), record["result"], record["error"]) == ("lost", 3, None)
    assert endpoint.rpc("run_function", **call) == {"result": 3, "error": None}
    assert endpoint.rpc("get_session", session_id=session)["version"] == 1


def test_settings_are_read_from_the_environment(monkeypatch):
    for name in LIMITS:
        monkeypatch.setenv(f"TOOLPACK_{name.upper()}", "123456")  # large enough for a database
    for name in FixedLimits.model_fields:  # operators don't need to know these
        monkeypatch.setenv(f"TOOLPACK_{name.upper()}", "123456")
    settings = Settings()
    assert {getattr(settings, name) for name in LIMITS} == {123456}
    assert {name: getattr(settings, name) for name in FixedLimits.model_fields} == FixedLimits().model_dump()
