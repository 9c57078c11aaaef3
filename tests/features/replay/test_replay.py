"""`replay_session` runs the records of a session again in a new session, and reports the first difference."""

import contextlib
import threading
import time
from typing import Annotated, Any

import pytest
import redis_server
import serving
from serving import PATIENCE, Bench, open_store, refused, wait_until

from toolpack_server import Depends, TaskEnvironment, Toolpack
from toolpack_server.base.errors import OverloadedError
from toolpack_server.packs.catalog import Catalog


class World(TaskEnvironment):
    numbers: list[int] = []  # noqa: RUF012 - pydantic copies it
    text: str = ""


class Code:
    """The behaviour of the functions. A test changes its attributes as an author changes code."""

    def __init__(self):
        self.by = 1
        self.text = "same"
        self.error: str | None = None
        self.seconds = 0.0
        self.gate = threading.Event()
        self.gate.set()
        self.key_order = ("a", "b")


def catalog_of(code: Code, *, read_only=False):
    toolpack = Toolpack("drift", World)
    numbers = Annotated[list[int], Depends("numbers")]

    @toolpack.function
    def add(numbers: numbers, amount: int) -> int:
        """Add a number.

        :param amount: The number to add.
        """
        numbers.append(amount * code.by)
        return sum(numbers)

    @toolpack.function(read_only=read_only)
    def look(numbers: numbers) -> dict[str, Any]:
        """Look."""
        values = {"a": code.text, "b": len(numbers)}
        return {name: values[name] for name in code.key_order}

    @toolpack.function
    def fail(numbers: numbers) -> None:
        """Fail."""
        numbers.append(999)
        if code.error:
            raise ValueError(code.error)

    @toolpack.function(timeout_seconds=0.2)
    def wait(numbers: numbers) -> str:
        """Wait."""
        numbers.append(7)
        until = time.monotonic() + code.seconds
        while time.monotonic() < until:
            pass
        return "waited"

    @toolpack.function
    def hold() -> None:
        """Wait until a gate is open."""
        code.gate.wait(serving.PATIENCE)

    @toolpack.function
    def echo(value: Any) -> Any:
        """Return the value.

        :param value: Anything.
        """
        return value

    return Catalog({"drift": toolpack})


@pytest.fixture
def code():
    return Code()


@contextlib.contextmanager
def benches(code, **settings):
    """Yield a server, and a function that starts another one with changed code on the same store."""
    with contextlib.closing(open_store("memory:")) as store, contextlib.ExitStack() as stack:

        def edited(**changes):
            return stack.enter_context(Bench(catalog_of(code, **changes), store=store, **settings))

        yield edited(), edited


@pytest.fixture
def bench(code, make_bench):
    return make_bench(catalog_of(code))


def replay(bench, session_id, **params):
    return bench.rpc("replay_session", session_id=session_id, **params)


def comparable_trace(bench, session_id):
    """Return the trace without members that may differ."""
    volatile = ("call_id", "started_at", "duration_ms")
    trace = bench.rpc("get_trace", session_id=session_id, limit=1000)
    return [{name: value for name, value in record.items() if name not in volatile} for record in trace]


def environment(bench, session_id):
    return bench.rpc("get_environment", session_id=session_id)


@pytest.mark.parametrize("rule", [{"result": "all is well"}, {"lost": "TimeoutError: no answer came"}])
def test_replay_compares_the_real_result_of_a_perturbed_call(bench, code, rule):
    session = bench.rpc("create_session", toolpacks=["drift"], perturbations={"rules": [rule]})
    look = {"function": "look", "kwargs": {}}
    envelope = bench.rpc("run_function", agent_key=session["agent_path"].removeprefix("/agents/"), **look)
    assert replay(bench, session["session_id"]).get("diverged") is None
    code.text = "other"
    report = replay(bench, session["session_id"])
    difference = {"recorded": '{"a":"same","b":0}', "replayed": '{"a":"other","b":0}'}
    assert report.get("diverged") == {"index": 0, "what": "result", **difference}
    replay_key = report["session"]["agent_path"].removeprefix("/agents/")
    assert bench.rpc("run_function", agent_key=replay_key, **look) == envelope


def busy(bench, code):
    """Create a session with calls of all kinds, resets and a call_id."""
    session_id = bench.create("drift", labels={"run": "1"})
    bench.call(session_id, "add", amount=1)
    bench.call(session_id, "look")
    bench.call(session_id, "none")
    bench.call(session_id, "add", amount="much")
    code.error = "it failed"
    bench.call(session_id, "fail")
    bench.call(session_id, "add", {"call_id": "x"}, amount=2)
    bench.call(session_id, "add", {"call_id": "x"}, amount=2)
    bench.rpc("reset_session", session_id=session_id, version=1)
    bench.call(session_id, "add", amount={"$call": {"function": "add", "args": {"amount": 3}}})
    bench.call(session_id, "echo", value=["😀", 2**70, 1.5, None, {"é": "\\"}])
    return session_id


def test_unchanged_code_gives_an_equal_session(bench, code):
    session_id = busy(bench, code)
    before = bench.rpc("get_trace", session_id=session_id)
    replayed = replay(bench, session_id)
    new = replayed["session"]["session_id"]
    assert {**replayed, "session": None} == {
        "session": None,
        "replayed": 9,
        "complete": True,
        "other_versions": {},
    }
    assert replayed["session"] == bench.rpc("get_session", session_id=new) | {
        "expires_at": replayed["session"]["expires_at"]
    }
    assert replayed["session"].get("parent") == {"session_id": session_id, "version": 0}
    assert replayed["session"]["labels"] == {"run": "1"}
    assert comparable_trace(bench, new) == comparable_trace(bench, session_id)
    assert environment(bench, new) == environment(bench, session_id)
    assert {record.get("call_id") for record in bench.rpc("get_trace", session_id=new)} == {None}
    assert bench.rpc("get_trace", session_id=session_id) == before
    assert bench.version(new) == bench.version(session_id)


def test_session_without_records_is_replayed(bench):
    session_id = bench.create("drift")
    replayed = replay(bench, session_id, labels={"a": "b"})
    assert (replayed["replayed"], replayed["complete"], replayed.get("diverged")) == (0, True, None)
    assert replayed["session"]["labels"] == {"a": "b"}


def test_replay_stops_at_the_first_difference(bench, code):
    session_id = busy(bench, code)
    code.text = "other"
    replayed = replay(bench, session_id)
    assert replayed["replayed"] == 2
    assert replayed["complete"] is False
    assert replayed.get("diverged") == {
        "index": 1,
        "what": "result",
        "recorded": '{"a":"same","b":1}',
        "replayed": '{"a":"other","b":1}',
    }
    new = replayed["session"]["session_id"]
    assert len(comparable_trace(bench, new)) == 2
    assert environment(bench, new)["drift"]["numbers"] == [1]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"by": 2}, {"index": 0, "what": "result", "recorded": "1", "replayed": "2"}),
        ({"error": "else"}, {"index": 4, "recorded": "ValueError: it failed", "replayed": "ValueError: else"}),
        ({"error": None}, {"index": 4, "what": "error", "recorded": "ValueError: it failed"}),
        ({"key_order": ("b", "a")}, None),
        ({"text": "x" * 5000}, {"index": 1, "replayed": '{"a":"' + "x" * 1994}),
    ],
)
def test_difference_is_reported_with_its_index_and_values(bench, code, change, expected):
    session_id = busy(bench, code)
    for name, value in change.items():
        setattr(code, name, value)
    diverged = replay(bench, session_id).get("diverged")
    assert diverged == (expected and diverged | expected)
    assert diverged is None or None not in diverged.values()


@pytest.mark.parametrize(("value", "other"), [(1, True), (1, 1.0), (0, False), ("1", 1), ([], {}), (None, "")])
def test_values_are_compared_as_json(bench, code, value, other):
    session_id = bench.create("drift")
    code.text = value
    bench.call(session_id, "look")
    code.text = other
    assert replay(bench, session_id).get("diverged")["what"] == "result"
    code.text = value
    assert replay(bench, session_id)["complete"]


def test_limit_ends_a_replay(bench, code):
    session_id = busy(bench, code)
    assert (report := replay(bench, session_id, limit=3))["replayed"] == 3
    assert (report["complete"], report.get("diverged")) == (False, None)
    assert replay(bench, session_id, limit=9)["complete"] is True
    refused(-32602, replay, bench, session_id, limit=0)


def test_many_records_are_replayed(bench):
    session_id = bench.create("drift")
    for amount in range(250):
        bench.call(session_id, "add", amount=amount)
    report = replay(bench, session_id)
    assert (report["replayed"], report["complete"]) == (250, True)
    assert environment(bench, report["session"]["session_id"]) == environment(bench, session_id)


def test_call_that_missed_its_deadline_is_not_run_again(bench, code):
    session_id = bench.create("drift")
    bench.call(session_id, "add", amount=1)
    code.seconds = 60
    assert bench.call(session_id, "wait")["error"].startswith("TimeoutError: `wait` took longer than 0.2 s")
    bench.call(session_id, "add", amount=2)
    code.seconds = 0
    report = replay(bench, session_id)
    assert report["complete"] is True
    assert comparable_trace(bench, report["session"]["session_id"]) == comparable_trace(bench, session_id)


def test_new_missed_deadline_is_a_difference(bench, code):
    session_id = bench.create("drift")
    bench.call(session_id, "wait")
    code.seconds = 60
    diverged = replay(bench, session_id).get("diverged")
    assert (diverged["what"], "recorded" in diverged) == ("error", False)
    assert diverged["replayed"].startswith("TimeoutError: `wait`")


def test_fork_is_replayed_from_its_own_start(bench):
    session_id = bench.create("drift")
    bench.call(session_id, "add", amount=5)
    fork = bench.rpc("fork_session", session_id=session_id)[0]["session_id"]
    bench.call(fork, "add", amount=6)
    bench.rpc("close_session", session_id=session_id)
    report = replay(bench, fork)
    assert report["complete"]
    assert environment(bench, report["session"]["session_id"])["drift"]["numbers"] == [5, 6]


def test_function_that_became_read_only_shifts_versions(code):
    with benches(code) as (bench, edited):
        session_id = bench.create("drift")
        for function in ("look", "look"):
            bench.call(session_id, function)
        bench.call(session_id, "add", amount=1)
        bench.call(session_id, "add", amount=2)
        bench.rpc("reset_session", session_id=session_id, version=3)
        bench.call(session_id, "add", amount=4)
        later = edited(read_only=True)
        report = replay(later, session_id)
        assert report["complete"] is True
        new = report["session"]["session_id"]
        assert later.version(new) == bench.version(session_id) - 2
        assert environment(later, new)["drift"]["numbers"] == [1, 4]


class Bigger(World):
    more: int = 3


def test_changed_classes_get_a_new_environment(code):
    with benches(code) as (bench, _):
        session_id = bench.create("drift")
        bench.call(session_id, "add", amount=1)
        fork = bench.rpc("fork_session", session_id=session_id)[0]["session_id"]
        functions = [each.function for each in catalog_of(code).toolpacks["drift"].functions.values()]
        later = Bench(Catalog({"drift": Toolpack("drift", Bigger, functions)}), store=bench.store)
        refused(-32008, later.call, session_id, "add", amount=1)
        report = replay(later, session_id)
        assert report["complete"] is True
        assert report["session"].get("parent") is None
        assert environment(later, report["session"]["session_id"])["drift"] == {"numbers": [1], "text": "", "more": 3}
        refused(-32008, replay, later, fork)
        other = Bench(Catalog({}), store=bench.store)
        refused(-32008, replay, other, session_id)
        assert len(bench.rpc("list_sessions")) == 3
        later.close()
        other.close()


def test_truncated_arguments_cannot_be_run_again(code, make_bench):
    bench = make_bench(catalog_of(code), max_result_bytes=4096)
    session_id = bench.create("drift")
    bench.call(session_id, "echo", value="x" * 900)
    bench.call(session_id, "echo", value="x" * 5000)
    report = replay(bench, session_id)
    assert report["replayed"] == 2
    assert report.get("diverged")["what"] == "error"
    assert "were cut from the trace" in report.get("diverged")["replayed"]


def test_truncated_results_and_errors_are_compared(code, make_bench):
    bench = make_bench(catalog_of(code), max_result_bytes=4096)
    session_id = bench.create("drift")
    code.text, code.error = "x" * 3000, "y" * 3000
    bench.call(session_id, "look")
    bench.call(session_id, "fail")
    assert replay(bench, session_id)["complete"]
    code.error = "y" * 3001
    assert replay(bench, session_id).get("diverged")["index"] == 1
    code.text = "x" * 2999 + "z"
    assert replay(bench, session_id).get("diverged")["index"] == 0


def test_rejected_call_leaves_no_session(code, make_bench):
    bench = make_bench(catalog_of(code), queue_timeout_seconds=0.2)
    session_id = bench.create("drift")
    bench.call(session_id, "add", amount=1)
    run = bench.sessions.run

    async def overloaded(*_):
        bench.sessions.run = run
        raise OverloadedError("Too much is waiting.")

    bench.sessions.run = overloaded
    refused(-32006, replay, bench, session_id)
    assert [each["session_id"] for each in bench.rpc("list_sessions")] == [session_id]
    assert replay(bench, session_id)["complete"]


def test_other_owners_and_agents_cannot_replay(bench):
    session_id = bench.create("drift", owner="ann")
    refused(-32001, replay, bench, session_id, owner="bob")
    path = bench.rpc("get_session", session_id=session_id, owner="ann")["agent_path"]
    refused(-32601, bench.rpc, "replay_session", agent_key=path.removeprefix("/agents/"))
    assert replay(bench, session_id, owner="ann")["complete"]


def test_replay_counts_towards_the_session_limit(code, make_bench):
    bench = make_bench(catalog_of(code), max_sessions=1)
    session_id = bench.create("drift")
    refused(-32007, replay, bench, session_id)


def test_replay_of_a_session_closed_meanwhile_fails(bench, code):
    session_id = bench.create("drift")
    for _ in range(150):
        bench.call(session_id, "hold")
    code.gate.clear()
    running = bench.later("replay_session", session_id=session_id)
    wait_until(lambda: len(bench.rpc("list_sessions")) == 2)
    bench.rpc("close_session", session_id=session_id)
    code.gate.set()
    refused(-32001, running.result, 20)
    assert bench.rpc("list_sessions") == []


@pytest.mark.parametrize("store", ["sqlite", "redis"])
def test_replay_works_in_the_other_stores(store, code, store_url, make_bench):
    bench = make_bench(catalog_of(code), store_url(store))
    session_id = busy(bench, code)
    report = replay(bench, session_id)
    assert report["complete"]
    assert comparable_trace(bench, report["session"]["session_id"]) == comparable_trace(bench, session_id)


def test_different_nested_result_is_a_difference(code, bench):
    session_id = bench.create("drift")
    kwargs = {"value": {"$call": {"function": "look", "args": {}}}, "unknown": 1}
    assert bench.call(session_id, "echo", **kwargs)["error"].startswith("ValidationError")
    assert replay(bench, session_id).get("diverged") is None
    code.text = "other"
    diverged = replay(bench, session_id).get("diverged")
    assert (diverged["what"], diverged["index"]) == ("nested", 0)
    assert ('"same"' in diverged["recorded"], '"other"' in diverged["replayed"]) == (True, True)


# Repeated requests


def test_repeated_request_runs_nothing_again(bench, code):
    session_id = busy(bench, code)
    first = replay(bench, session_id, call_id="one")
    new = first["session"]["session_id"]
    assert (first["replayed"], first["complete"]) == (9, True)
    assert environment(bench, new) == environment(bench, session_id)
    # Later calls in the two sessions don't matter.
    bench.call(session_id, "add", amount=1)
    bench.call(new, "add", amount=1)
    trace = bench.rpc("get_trace", session_id=new)
    repeated = replay(bench, session_id, call_id="one")
    assert repeated == first | {"session": first["session"] | {"expires_at": repeated["session"]["expires_at"]}}
    assert bench.rpc("get_trace", session_id=new) == trace
    refused(-32009, replay, bench, session_id, call_id="one", limit=5)
    refused(-32009, bench.rpc, "fork_session", session_id=session_id, call_id="one")
    assert replay(bench, session_id, call_id="two")["replayed"] == 10
    bench.rpc("close_session", session_id=session_id)
    refused(-32001, replay, bench, session_id, call_id="one")


def test_repeated_request_returns_the_same_difference(bench, code):
    session_id = busy(bench, code)
    code.by = 2
    first = replay(bench, session_id, call_id="one")
    code.by = 1
    assert replay(bench, session_id, call_id="one").get("diverged") == first.get("diverged") != None  # noqa: E711


def test_interrupted_request_continues_where_it_ended(bench, code):
    session_id = bench.create("drift")
    for _ in range(3):
        bench.call(session_id, "add", amount=1)
        bench.call(session_id, "hold")
    code.gate.clear()
    cut_off = bench.later("replay_session", session_id=session_id, call_id="one")
    wait_until(lambda: len(bench.rpc("list_sessions")) == 2)
    (new,) = {each["session_id"] for each in bench.rpc("list_sessions")} - {session_id}
    wait_until(lambda: len(bench.rpc("get_trace", session_id=new)) == 1)
    cut_off.cancel()
    others = [bench.later("replay_session", session_id=session_id, call_id="one") for _ in range(2)]
    code.gate.set()
    for report in [each.result(serving.PATIENCE) for each in others]:
        assert (report["session"]["session_id"], report["replayed"], report["complete"]) == (new, 6, True)
    assert comparable_trace(bench, new) == comparable_trace(bench, session_id)
    assert environment(bench, new)["drift"]["numbers"] == [1, 1, 1]


def test_simultaneous_requests_to_two_workers_run_once(redis_url, code):
    url = redis_server.emptied(redis_url)
    with Bench(catalog_of(code), store=url) as first, Bench(catalog_of(code), store=url) as second:
        session_id = busy(first, code)
        bundle = first.rpc("export_bundle", session_id=session_id)["bundle"]
        futures = [each.later("replay_session", session_id=session_id, call_id="one") for each in (first, second)]
        for mode in ("exact", "replay"):
            futures += [each.later("import_bundle", bundle=bundle, mode=mode, call_id=mode) for each in (first, second)]
        reports = [future.result(PATIENCE) for future in futures]
        new = [each.get("session", each)["session_id"] for each in reports]
        assert new[::2] == new[1::2]
        assert {each["session_id"] for each in first.rpc("list_sessions")} == {session_id, *new}
        assert len({*new}) == 3
        for each in new:
            assert comparable_trace(second, each) == comparable_trace(first, session_id)


def test_calls_with_deadlines_and_nested_calls_are_repeated(bench, code):
    session_id = bench.create("drift")
    code.seconds = 60
    bench.call(session_id, "wait")
    code.seconds = 0
    bench.call(session_id, "add", amount={"$call": {"function": "add", "args": {"amount": 3}}})
    first = replay(bench, session_id, call_id="one")
    assert first["complete"] is True
    assert comparable_trace(bench, first["session"]["session_id"]) == comparable_trace(bench, session_id)
    assert replay(bench, session_id, call_id="one")["complete"] is True
