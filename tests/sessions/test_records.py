"""Records have a size limit, so long values in them are cut. A repeated call still gets the whole answer."""

import json
from typing import get_args

import pytest
from serving import RpcError

from toolpack_server.execution.failure import Failure
from toolpack_server.protocol import results

LIMIT = 4096
BIG = "x" * 100_000


@pytest.fixture(params=["memory", "sqlite"])
def bench(request, store_url, make_bench):
    return make_bench(store=store_url(request.param), max_result_bytes=4 * LIMIT, max_list_bytes=4 * LIMIT)


def stored_bytes(bench, session_id):
    return sum(len(record.body) for record in bench.store.records(session_id, -1, 1000))


def trace(bench, session_id):
    return bench.rpc("get_trace", session_id=session_id)


def test_the_arguments_of_a_function_that_does_not_exist_are_cut(bench):
    session_id = bench.create()
    assert bench.call(session_id, "nothing" * 1000, value=BIG)["error"].startswith("ToolNotFoundError: ")
    record = trace(bench, session_id)[0]
    assert record["kwargs"]["value"]["$cut"]["bytes"] == len(BIG) + 2
    assert len(record["function"]) <= 200
    assert stored_bytes(bench, session_id) < LIMIT


def test_only_large_arguments_are_cut_unless_there_are_too_many(bench):
    session_id = bench.create()
    bench.call(session_id, "echo", value=BIG, other=[1], name="x")
    bench.call(session_id, "echo", **{f"argument {number}": "x" * 900 for number in range(100)})
    bench.call(session_id, "echo", value=BIG[: LIMIT - 100], other=BIG[: LIMIT - 100], name="x")
    first, second, third = (record["kwargs"] for record in trace(bench, session_id))
    assert (first["other"], first["name"], list(first["value"])) == ([1], "x", ["$cut"])
    assert list(second) == ["$cut"]
    assert (list(third["value"]), list(third["other"]), third["name"]) == (["$cut"], ["$cut"], "x")
    assert stored_bytes(bench, session_id) < 4 * LIMIT


def test_a_cut_value_has_a_distinguishing_digest(bench):
    session_id = bench.create()
    for value in (BIG, BIG, BIG + "y"):
        bench.call(session_id, "nothing", value=value)
    first, same, other = (record["kwargs"]["value"]["$cut"] for record in trace(bench, session_id))
    assert first == same
    assert first["digest"] != other["digest"]


@pytest.mark.parametrize(
    ("function", "kwargs"),
    [
        ("echo", {"value": BIG}),
        ("add_then", {"how": BIG}),
        ("nothing", {"value": BIG}),
        ("fail", {"text": BIG}),
        ("add", {BIG: 1, "amount": "x"}),
    ],
)
def test_the_repeat_of_a_call_gets_the_whole_answer(bench, function, kwargs):
    session_id = bench.create()
    params = {"session_id": session_id, "function": function, "kwargs": kwargs, "call_id": "c"}
    first = bench.rpc("run_function", **params)
    assert bench.rpc("run_function", **params) == first
    other = {**kwargs, next(iter(kwargs)): "other"}
    with pytest.raises(RpcError) as reused:
        bench.rpc("run_function", **{**params, "kwargs": other})
    assert reused.value.code == -32009
    assert len(json.dumps(trace(bench, session_id))) < 3 * LIMIT


def test_a_result_that_no_retry_can_get_is_stored_cut(bench):
    session_id = bench.create()
    result = bench.result(session_id, "repeat", text="x", times=10_000)
    assert len(result) == 10_000
    assert trace(bench, session_id)[0]["result"]["$cut"]["bytes"] == 10_002
    assert stored_bytes(bench, session_id) < LIMIT


def test_an_error_is_no_longer_than_a_result(make_bench):
    bench = make_bench(max_result_bytes=2000)
    envelope = bench.call(bench.create(), "fail", text=BIG)
    assert envelope["error"].startswith("LookupError: xxx")
    assert len(envelope["error"]) < 2100
    with pytest.raises(RpcError) as refused:
        bench.rpc("run_function", session_id=bench.create(), function="add", kwargs={BIG: 1}, raise_on_error=True)
    assert len(json.dumps(refused.value.data)) < 2100


def test_a_trace_page_has_a_size_and_continues_after_it(bench):
    session_id = bench.create()
    for number in range(30):
        bench.call(session_id, "echo", value=f"{number} {'x' * 1000}")
    indices, pages = [], 0
    while page := bench.rpc("get_trace", session_id=session_id, after=indices[-1] if indices else -1):
        assert len(json.dumps(page)) < 6 * LIMIT
        indices += [record["index"] for record in page]
        pages += 1
    assert indices == list(range(30))
    assert pages > 3


def test_a_session_list_page_has_a_size_and_continues(bench):
    ids = {bench.create(labels={"name": "x" * 3000}) for _ in range(12)}
    session_ids, pages = [], 0
    while page := bench.rpc("list_sessions", after=session_ids[-1] if session_ids else ""):
        assert len(json.dumps(page)) < 6 * LIMIT
        session_ids += [session["session_id"] for session in page]
        pages += 1
    assert set(session_ids) == ids
    assert len(session_ids) == 12
    assert pages > 2


def test_too_many_forks_for_an_answer_are_refused_first(bench):
    session_id = bench.create(labels={"name": "x" * 3000})
    with pytest.raises(RpcError) as refused:
        bench.rpc("fork_session", session_id=session_id, count=20)
    assert refused.value.code == -32007
    assert "request at most " in refused.value.message
    assert bench.store.count() == 1
    assert len(bench.rpc("fork_session", session_id=session_id, count=4)) == 4


def test_all_labels_together_have_a_limit(bench):
    bench.create(labels={str(number): "x" * 4000 for number in range(4)})
    with pytest.raises(RpcError) as refused:
        bench.create(labels={str(number): "é" * 2000 for number in range(5)})
    assert refused.value.code == -32602
    assert "The labels have 20005 bytes together; at most 16384 are allowed" in refused.value.data["detail"]


def test_a_calls_record_has_a_machine_readable_error(bench):
    session_id = bench.create()
    calls = [
        ("add", {"amount": 1}),
        ("nothing", {}),
        ("add", {"amount": "x"}),
        ("add_then", {"how": "raise"}),
        ("add_and_return", {"what": "much"}),
        ("add_and_await", {}),
    ]
    for function, kwargs in calls:
        bench.call(session_id, function, **kwargs)
    records = trace(bench, session_id)
    failures = ["not_found", "arguments", "raised", "too_large", "deadline"]
    assert [record.get("failure") for record in records] == [None, *failures]
    assert [record["error"] is None for record in records] == [record.get("failure") is None for record in records]


def test_the_results_types_name_each_kind_of_failure():
    assert get_args(results.Failure) == tuple(Failure)
