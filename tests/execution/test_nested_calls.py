"""Nested calls, which stand in place of arguments: each is in the record of the outer call, with its result."""

import contextlib
import json

import pytest
from serving import IN_BOTH, PACKS, gate, refused

from toolpack_server.base.errors import InvalidParamsError
from toolpack_server.execution.snapshot import Snapshot
from toolpack_server.execution.world import ExecutionContext, World
from toolpack_server.features.replay.bundle_format import record_of
from toolpack_server.packs.loading import load_catalog
from toolpack_server.sessions.nested import MAX_NESTED_CALLS
from toolpack_server.wiring.installed import load_features
from toolpack_server.wiring.service import all_record_kinds

pytestmark = IN_BOTH


def nested(function, **args):
    return {"$call": {"function": function, "args": args}}


@pytest.fixture
def bench(make_bench):
    return make_bench(max_result_bytes=4 * 4096)


@contextlib.contextmanager
def hold_call(waited_for):
    try:
        yield
    finally:
        waited_for.set()


def last(bench, session_id):
    return bench.rpc("get_trace", session_id=session_id)[-1]


def of(record):
    """Return the nested calls of a record."""
    return [(each["function"], each["result"], each["error"], each.get("parent")) for each in record["nested"]]


def test_nested_calls_are_recorded_in_the_order_they_ran(bench):
    session_id = bench.create()
    bench.result(session_id, "add", amount=5)
    assert "nested" not in last(bench, session_id)
    value = nested("add", amount=nested("total"))
    assert bench.result(session_id, "add", amount=nested("echo", value=value)) == 20
    record = last(bench, session_id)
    assert of(record) == [("total", 5, None, 1), ("add", 10, None, 2), ("echo", 10, None, None)]
    assert [each["kwargs"] for each in record["nested"]] == [{}, {"amount": nested("total")}, {"value": value}]
    assert record["kwargs"] == {"amount": nested("echo", value=value)}


def test_nested_results_are_recorded_before_later_changes(bench):
    session_id = bench.create()
    bench.result(session_id, "append_to", target=nested("get_ledger"), amount=7)
    ((_, result, _, _),) = of(last(bench, session_id))
    assert result["entries"] == []


@pytest.mark.parametrize(
    ("function", "kwargs", "returned"),
    [
        ("add", {"amount": nested("add_then", how="raise")}, [None]),
        ("add_then", {"how": nested("echo", value="raise")}, ["raise"]),
        ("echo", {"value": nested("none", value=nested("total"))}, [None, None]),
        ("none", {"value": nested("total")}, [None]),
        ("echo", {"value": nested("total"), "more": nested("total")}, [0, 0]),
    ],
)
def test_a_failed_calls_record_has_its_nested_calls(bench, function, kwargs, returned):
    session_id = bench.create()
    error = bench.call(session_id, function, **kwargs)["error"]
    outcomes = [(each["result"], each["error"]) for each in last(bench, session_id)["nested"]]
    assert outcomes == [("", error) if result is None else (result, None) for result in returned]


def test_a_missed_deadline_hides_no_nested_call(bench):
    session_id = bench.create()
    with hold_call(gate("late")):
        envelope = bench.call(session_id, "add_and_spin", name=nested("echo", value=nested("echo", value="late")))
    assert envelope["error"].startswith("TimeoutError: ")
    assert of(last(bench, session_id)) == [
        ("echo", "", envelope["error"], 1),
        ("echo", "", envelope["error"], None),
    ]


def test_long_values_are_cut_but_all_nested_calls_recorded(bench):
    session_id = bench.create()
    big = "x" * 3000
    assert bench.call(session_id, "fail", text=nested("echo", value=nested("echo", value=big)))["error"]
    record = last(bench, session_id)
    assert [(each["function"], list(each["kwargs"])) for each in record["nested"]] == [("echo", ["$cut"])] * 2
    assert all(list(each["result"]) == ["$cut"] for each in record["nested"])
    kwargs = {f"number {number}": nested("echo", value="x" * 900) for number in range(MAX_NESTED_CALLS)}
    assert bench.call(session_id, "echo", **kwargs)["error"].startswith("ValidationError: ")
    assert len(last(bench, session_id)["nested"]) == MAX_NESTED_CALLS


def test_a_nested_result_without_json_is_shown_by_type(bench):
    session_id = bench.create()
    assert bench.result(session_id, "echo", value=nested("add_and_return", what="none")) is None
    assert bench.call(session_id, "echo", value=nested("add_and_return", what="object"))["error"]
    assert of(last(bench, session_id)) == [("add_and_return", {"$type": "object"}, None, None)]


def test_a_one_time_iterator_is_left_to_the_outer_function(bench):
    session_id = bench.create()
    assert bench.result(session_id, "echo", value=nested("add_and_return", what="iterator")) == [1_000_000]
    assert of(last(bench, session_id)) == [("add_and_return", {"$type": "generator"}, None, None)]


def test_nested_results_share_the_memory_limit_of_one(bench):
    world = World(None, Snapshot({}, {}), ExecutionContext(bench.service.codec, 100), None, nested_bytes_left=100)
    for _ in range(3):
        world.add_nested_result("x" * 60)
    complete, *others = map(json.loads, world.nested)
    assert complete == "x" * 60
    assert [each.keys() for each in others] == [{"$cut"}] * 2


def test_too_many_nested_calls_are_refused_before_they_run(bench):
    session_id = bench.create()
    many = {f"number {number}": nested("add", amount=1) for number in range(MAX_NESTED_CALLS + 1)}
    text = f"ValidationError: {MAX_NESTED_CALLS + 1} calls are nested in this call; {MAX_NESTED_CALLS} are allowed: "
    assert bench.call(session_id, "echo", **many)["error"] == text + "send some of them first."
    assert bench.call(session_id, "echo", **many)["error"].startswith(text)
    assert "nested" not in last(bench, session_id)
    assert bench.result(session_id, "total") == 0
    request = {"session_id": session_id, "function": "echo", "kwargs": many, "raise_on_error": True}
    assert refused(-32004, bench.rpc, "run_function", **request).data["errors"][0]["type"] == "too_many_calls"


def test_a_bundle_with_inconsistent_nested_calls_is_refused(bench):
    session_id = bench.create()
    bench.result(session_id, "add", amount=nested("echo", value=nested("total")))
    moved = bench.rpc("import_bundle", bundle=bench.rpc("export_bundle", session_id=session_id)["bundle"])
    (record,) = bench.rpc("get_trace", session_id=moved["session_id"])
    assert of(record) == [("total", 0, None, 1), ("echo", 0, None, None)]
    kinds = all_record_kinds(load_features())
    record_of(record, kinds)
    for parent in (0, 2, -1, "1"):
        first, second = record["nested"]
        with pytest.raises(InvalidParamsError):
            record_of({**record, "nested": [{**first, "parent": parent}, second]}, kinds)


def test_toolpacks_exchange_copies(make_bench):
    bench = make_bench(load_catalog((PACKS,), ("shop", "ledger")), packs=("shop", "ledger"))
    session_id = bench.create("shop", "ledger")
    bench.result(session_id, "pay", to="Ann")
    paid = [{"to": "Ann", "amount": 1}]
    for how in ("append", "clear"):
        bench.result(session_id, "change_argument", value=nested("payments"), how=how)
        assert bench.result(session_id, "payments") == paid
        assert bench.rpc("get_environment", session_id=session_id, pointer="/shop/till/paid") == paid
    bench.result(session_id, "pay", to="Bob")
    assert bench.result(session_id, "payments") == [*paid, {"to": "Bob", "amount": 1}]


def test_a_replay_runs_nested_calls_again(bench):
    session_id = bench.create()
    bench.result(session_id, "add", amount=nested("add", amount=nested("echo", value=3)))
    bench.call(session_id, "none", value=nested("total"))
    replayed = bench.rpc("replay_session", session_id=session_id)
    assert (replayed["complete"], replayed.get("diverged")) == (True, None)
    first, second = (
        bench.rpc("get_trace", session_id=each) for each in (session_id, replayed["session"]["session_id"])
    )
    assert [record["nested"] for record in first] == [record["nested"] for record in second]
