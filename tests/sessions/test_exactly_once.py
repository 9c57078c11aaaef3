"""A call with a call_id is committed once, even if it is repeated, sent concurrently, or sent again after a restart.

`test_guarantees.py` tests this through the protocol. This module tests it inside the server.
"""

import pytest
import serving
from serving import Bench, RpcError, ledger

pytestmark = serving.IN_BOTH


def send_call(bench, session_id, function="add", call_id="first", kwargs=None, **params):
    arguments = {"amount": 1} if kwargs is None else kwargs
    return bench.rpc(
        "run_function", session_id=session_id, function=function, kwargs=arguments, call_id=call_id, **params
    )


def times(function):
    return ledger.runs.count(function)


def test_a_read_only_call_is_deduplicated_like_any_other(stored_bench):
    session_id = stored_bench.create()
    assert send_call(stored_bench, session_id, "total", kwargs={})["result"] == 0
    stored_bench.result(session_id, "add", amount=10)
    assert send_call(stored_bench, session_id, "total", kwargs={})["result"] == 0


def test_agents_and_clients_have_separate_call_ids(stored_bench):
    session = stored_bench.rpc("create_session", toolpacks=["ledger"])
    addresses = ({"session_id": session["session_id"]}, {"agent_key": session["agent_path"].rpartition("/")[2]})
    call_ids = ("x", "agent:x", "client:x", "client:agent:x", "agent:client:agent:x")
    add = {"function": "add", "kwargs": {"amount": 1}}
    for _ in range(2):
        results = [
            stored_bench.rpc("run_function", call_id=call_id, **add, **address)["result"]
            for call_id in call_ids
            for address in addresses
        ]
        assert results == [*range(1, 11)]


def test_a_fork_starts_without_call_ids(stored_bench):
    session_id = stored_bench.create()
    assert [send_call(stored_bench, session_id)["result"] for _ in range(2)] == [1, 1]
    fork = stored_bench.rpc("fork_session", session_id=session_id)[0]["session_id"]
    assert [send_call(stored_bench, fork)["result"] for _ in range(2)] == [2, 2]
    assert send_call(stored_bench, session_id)["result"] == 1


def test_a_retry_of_a_failed_call_may_use_raise_on_error(stored_bench):
    session_id = stored_bench.create()
    failed = send_call(stored_bench, session_id, "add_then", kwargs={"how": "raise"})
    assert failed == {"result": "", "error": "LookupError: half of it is done"}
    with pytest.raises(RpcError) as raised:
        send_call(stored_bench, session_id, "add_then", kwargs={"how": "raise"}, raise_on_error=True)
    assert (raised.value.code, raised.value.message) == (-32002, "half of it is done")
    with pytest.raises(RpcError) as first:
        send_call(stored_bench, session_id, "add", "second", {"amount": "x"}, raise_on_error=True)
    assert send_call(stored_bench, session_id, "add", "second", {"amount": "x"})["error"].startswith(
        "ValidationError: "
    )
    with pytest.raises(RpcError) as repeated:
        send_call(stored_bench, session_id, "add", "second", {"amount": "x"}, raise_on_error=True)
    assert vars(repeated.value) == vars(first.value)
    assert repeated.value.code == -32004


def test_a_call_id_of_another_call_is_refused(bench):
    session_id = bench.create()
    send_call(bench, session_id)
    others = [("add", {"amount": 2}), ("add", {}), ("total", {"amount": 1})]
    for function, kwargs in [*others, ("add", {"amount": 1.0}), ("add", {"amount": True})]:
        with pytest.raises(RpcError) as refused:
            send_call(bench, session_id, function, kwargs=kwargs)
        refusal = refused.value.code, refused.value.data["type"]
        assert refusal == (-32009, "CallIdReusedError"), (function, kwargs)
    assert bench.version(session_id) == 1
    assert len(bench.rpc("get_trace", session_id=session_id)) == 1


def test_a_repeat_before_the_first_commit_is_answered(bench):
    session_id = bench.create()
    request = {"session_id": session_id, "function": "add", "kwargs": {"amount": 1}, "call_id": "first"}
    with bench.paused():
        calls = [bench.later("run_function", **request) for _ in range(3)]
    assert [call.result(serving.PATIENCE) for call in calls] == [{"result": 1, "error": None}] * 3
    assert len(bench.rpc("get_trace", session_id=session_id)) == 1


def test_reordered_kwargs_and_large_integers_are_the_same_call(stored_bench):
    session_id = stored_bench.create()
    value = {"b": [2**80, 1.5, None], "a": {"d": 1, "c": "é"}}
    other_order = {"a": {"c": "é", "d": 1}, "b": [2**80, 1.5, None]}
    assert send_call(stored_bench, session_id, "echo", kwargs={"value": value})["result"] == value
    assert send_call(stored_bench, session_id, "echo", kwargs={"value": other_order})["result"] == value


def test_call_ids_survive_a_restart(tmp_path, make_bench):
    store = f"sqlite:///{tmp_path / 'sessions.db'}"
    first = make_bench(store=store)
    session_id = first.create()
    send_call(first, session_id)
    send_call(first, session_id, "add_then", "failed", {"how": "raise"})
    first.close()
    second = make_bench(store=store)
    before = times("add")
    assert send_call(second, session_id) == {"result": 1, "error": None}
    assert (
        send_call(second, session_id, "add_then", "failed", {"how": "raise"})["error"]
        == "LookupError: half of it is done"
    )
    with pytest.raises(RpcError):
        send_call(second, session_id, kwargs={"amount": 3})
    assert times("add") == before
    assert second.result(session_id, "add", amount=1) == 2


def test_a_call_id_is_a_text(bench):
    with pytest.raises(RpcError) as refused:
        send_call(bench, bench.create(), call_id=5)
    assert refused.value.code == -32602


@pytest.mark.parametrize("call_id", ["'; DROP TABLE records; --", "\0", "é" * 128])
def test_a_call_id_may_be_any_text(stored_bench, call_id):
    session_id = stored_bench.create()
    assert send_call(stored_bench, session_id, call_id=call_id)["result"] == 1
    assert send_call(stored_bench, session_id, call_id=call_id)["result"] == 1
    assert stored_bench.rpc("get_trace", session_id=session_id)[0]["call_id"] == call_id


@pytest.mark.parametrize("how", ["append", "set", "clear"])
def test_arguments_are_recorded_as_sent_despite_changes(stored_bench, how):
    session_id = stored_bench.create()
    kwargs = {"value": [1], "how": how}
    first = send_call(stored_bench, session_id, "change_argument", kwargs=kwargs)
    assert first == {"result": None, "error": None}
    assert send_call(stored_bench, session_id, "change_argument", kwargs=kwargs) == first
    assert stored_bench.rpc("get_trace", session_id=session_id)[0]["kwargs"] == kwargs


def test_nested_arguments_are_recorded_as_sent(stored_bench):
    session_id = stored_bench.create()
    kwargs = {"value": {"$call": {"function": "change_argument", "args": {"value": [[1]], "how": "set"}}}}
    first = send_call(stored_bench, session_id, "echo", kwargs=kwargs)
    assert send_call(stored_bench, session_id, "echo", kwargs=kwargs) == first == {"result": None, "error": None}
    assert stored_bench.rpc("get_trace", session_id=session_id)[0]["kwargs"] == kwargs


@pytest.mark.parametrize("on_a_terminal", [False, True])
def test_the_log_has_the_arguments_as_they_were_sent(capfdbinary, monkeypatch, on_a_terminal):
    monkeypatch.setattr("sys.stderr.isatty", lambda: on_a_terminal)
    bench = Bench(log_calls="full")
    session_id = bench.create()
    send_call(bench, session_id, "change_argument", kwargs={"value": [1], "how": "set"})
    bench.close()
    assert b'{"value":[1],"how":"set"}' in capfdbinary.readouterr().err
