"""JSON-RPC 2.0: rules that the specification's examples don't cover. `test_guarantees.py` has the examples."""

import asyncio
import json

import pytest
import serving
from hypothesis import HealthCheck, given, settings
from serving import RpcError

from toolpack_server.base.errors import InvalidParamsError, OverloadedError
from toolpack_server.rpc.caller import Caller
from toolpack_server.rpc.codes import describe
from toolpack_server.rpc.jsonrpc import JsonRpc
from toolpack_server.rpc.method import Method
from tools.fuzz.values import Target, bodies

PARSE = {"code": -32700, "message": "Parse error"}
INVALID = {"code": -32600, "message": "Invalid Request"}
UNKNOWN = {"code": -32601, "message": "Method not found"}


def answer(bench, body):
    reply = bench.answer(body)
    return None if reply is None else json.loads(reply)


def shape(reply):
    """Return a reply without its `data.detail`. It must exist, but the specification leaves its text open."""
    if isinstance(reply, list):
        return [shape(member) for member in reply]
    if "error" in reply:
        data = reply["error"].pop("data")
        assert isinstance(data["detail"], str)
        assert data["detail"]
    return reply


def error(kind, request_id=None):
    return {"jsonrpc": "2.0", "error": kind, "id": request_id}


def call(session_id, request_id=1, amount=1):
    params = {"session_id": session_id, "function": "add", "kwargs": {"amount": amount}}
    return {"jsonrpc": "2.0", "method": "run_function", "params": params, "id": request_id}


def test_every_parameter_can_be_passed_by_position(bench):
    session_id = bench.create()
    params = [session_id, "add", {"amount": 1}, True, "id", 7, 5.0]
    body = {"jsonrpc": "2.0", "method": "run_function", "params": params, "id": 1}
    assert answer(bench, json.dumps(body))["error"]["code"] == -32005
    params[5] = 0
    assert answer(bench, json.dumps(body))["result"]["result"] == 1
    params.append(1)
    assert answer(bench, json.dumps(body))["error"]["code"] == -32602


def test_a_method_that_does_not_exist_is_an_error(bench):
    assert shape(answer(bench, '{"jsonrpc": "2.0", "method": "foobar", "id": "1"}')) == error(UNKNOWN, "1")


@pytest.mark.parametrize(
    "body",
    [
        "{",
        '{"jsonrpc": "2.0", "method": "rpc.discover", "id": NaN}',
        '{"jsonrpc": "2.0", "method": "rpc.discover", "id": "\\ud800"}',
        b"\xff",
        b'\xef\xbb\xbf{"jsonrpc": "2.0", "method": "rpc.discover", "id": 1}',
        "[" * 100_000,
        "1" * 5_000,
    ],
)
def test_a_body_that_is_not_json_is_an_error(bench, body):
    assert shape(answer(bench, body)) == error(PARSE)


@pytest.mark.parametrize(
    "body",
    [
        "{}",
        '{"jsonrpc": "2.0", "method": "rpc.discover", "params": null, "id": 1}',
        '{"jsonrpc": "2.0", "method": "rpc.discover", "params": 5, "id": 1}',
        '{"jsonrpc": "2.0", "method": "rpc.discover", "id": {}}',
        '{"jsonrpc": "2.0", "method": "rpc.discover", "id": []}',
        '{"jsonrpc": "2.0", "method": "rpc.discover", "id": true}',
        '{"jsonrpc": "2.0", "method": "rpc.discover", "params": ' + "[" * 200 + "]" * 200 + ', "id": 1}',
    ],
)
def test_a_value_that_is_not_a_request_is_an_error(bench, body):
    assert shape(answer(bench, body)) == error(INVALID)


def test_a_bad_member_of_a_batch_fails_alone_and_order_is_kept(bench):
    session_id = bench.create()
    notification = call(session_id, amount=10)
    del notification["id"]
    batch = [
        call(session_id, "1", 1),
        notification,
        call(session_id, "2", 100),
        {"foo": "boo"},
        {"jsonrpc": "2.0", "method": "foo.get", "params": {"name": "myself"}, "id": "5"},
        {"jsonrpc": "2.0", "method": "get_session", "params": [session_id], "id": "9"},
    ]
    first, second, third, fourth, fifth = shape(answer(bench, json.dumps(batch)))
    assert first == {"jsonrpc": "2.0", "result": {"result": 1, "error": None}, "id": "1"}
    assert second == {"jsonrpc": "2.0", "result": {"result": 111, "error": None}, "id": "2"}
    assert third == error(INVALID)
    assert fourth == error(UNKNOWN, "5")
    assert (fifth["id"], fifth["result"]["version"]) == ("9", 3)


def test_a_batch_larger_than_allowed_is_refused_as_a_whole(bench):
    session_id = bench.create()
    reply = answer(bench, json.dumps([call(session_id)] * 1001))
    assert (reply["error"]["code"], reply["error"]["data"], reply["id"]) == (-32007, {"type": "TooLargeError"}, None)
    assert bench.version(session_id) == 0


# A request may have the id null, 0 or "". Only a notification has no id at all.
@pytest.mark.parametrize("request_id", ["1.5", "1e2", "12345678901234567890123", '"\\u00e9\\u0000"', "null", "0", '""'])
def test_an_id_is_returned_unchanged(bench, request_id):
    body = f'{{"jsonrpc": "2.0", "method": "list_sessions", "id": {request_id}}}'
    response = answer(bench, body)
    id_value = json.loads(request_id)
    assert response == {"jsonrpc": "2.0", "result": [], "id": id_value}
    assert type(response["id"]) is type(id_value)


WRONG = [
    ("get_session", {}),
    ("get_session", {"session_id": 1}),
    ("get_session", {"session_id": "x", "more": 1}),
    ("get_session", []),
    ("get_session", ["x", "y"]),
    ("rpc.discover", [1]),
    ("run_function", {"session_id": "x", "function": [], "kwargs": []}),
    ("run_function", {"session_id": "x", "function": "add", "raise_on_error": 1}),
    ("run_function", {"session_id": "x", "function": "add", "expected_version": -1}),
    ("list_functions", {"format": "cobol"}),
    ("get_trace", {"session_id": "x", "limit": 0}),
    ("get_trace", {"session_id": "x", "after": 10**30}),
    ("get_environment", {"session_id": "x", "version": 10**30}),
    ("close_session", {"labels": []}),
    ("create_session", {"ttl_seconds": 0}),
    ("create_session", {"ttl_seconds": 1e300}),
    ("create_session", {"labels": {"a": 1}}),
    ("create_session", {"toolpacks": "ledger"}),
    ("fork_session", {"session_id": "x", "count": 0}),
]


def test_wrong_parameters_are_reported_by_name(bench):
    for method, params in WRONG:
        body = json.dumps({"jsonrpc": "2.0", "method": method, "params": params, "id": 1})
        refused = answer(bench, body)["error"]
        reported = refused["code"], refused["message"], set(refused["data"])
        assert reported == (-32602, "Invalid params", {"detail"}), (method, params)
        detail = refused["data"]["detail"]
        assert isinstance(params, list) or not params or any(name in detail for name in params)
        misnamed = any(words in detail for words in ("Field required", "Extra inputs", "at most"))
        assert misnamed == ("parameters are" in detail or "are accepted" in detail), (method, params)


@pytest.mark.parametrize(
    ("method", "params", "detail"),
    [
        ("close_session", {}, "session_id, labels: pass one of them: session_id"),
        ("close_session", {"labels": {}}, "session_id, labels: pass one of them: session_id"),
        (
            "close_session",
            {"session_id": "x", "labels": {"a": "b"}},
            "session_id, labels: pass one of them: session_id",
        ),
        ("get_environment", {"session_id": "x", "format": "snapshot", "pointer": "/a"}, "pointer, after, limit: a "),
        ("get_environment", {"session_id": "x", "format": "snapshot", "limit": 1}, "pointer, after, limit: a snapshot"),
    ],
)
def test_parameters_that_exclude_each_other_are_refused(bench, method, params, detail):
    body = json.dumps({"jsonrpc": "2.0", "method": method, "params": params, "id": 1})
    refused = answer(bench, body)["error"]
    assert refused["code"] == -32602
    assert refused["data"]["detail"].startswith(detail)


def test_an_error_without_utf_8_is_reported():
    assert describe(InvalidParamsError("a \ud800")) == (-32602, "Invalid params", {"detail": "a ?"})
    assert describe(OverloadedError("b \udfff", 2.5)) == (
        -32006,
        "b ?",
        {"type": "OverloadedError", "retry_after_seconds": 2.5},
    )


@pytest.mark.parametrize(
    ("where", "kind"),
    [("a thread", ZeroDivisionError), ("a thread", SystemExit), ("the event loop", ZeroDivisionError)],
)
def test_an_internal_error_is_in_the_log_but_not_in_the_answer(bench, caplog, where, kind):
    session_id = bench.create()

    def fail(*_arguments):
        raise kind("a secret text")

    if where == "a thread":
        bench.store.get = fail
    else:
        bench.sessions.read = fail
    with pytest.raises(RpcError) as fault:
        bench.rpc("get_session", session_id=session_id)
    assert (fault.value.code, fault.value.message) == (-32603, "Internal error")
    assert fault.value.data == {"detail": "The server failed to handle this request; its log says why."}
    assert "a secret text" in caplog.text


def test_errors_of_the_server_have_a_code_a_message_and_a_type(bench):
    with pytest.raises(RpcError) as unknown:
        bench.rpc("get_session", session_id="unknown")
    assert vars(unknown.value) == {
        "code": -32001,
        "message": "No session has this id or address: it is unknown, closed or expired. Its creator can create a new "
        "one with create_session.",
        "data": {"type": "SessionNotFoundError"},
    }


class Twice:
    """Two JSON-RPC servers with methods that return their parameters: ours, and one that uses only jsonrpcserver."""

    def __init__(self, bench, monkeypatch, methods):
        async def echo(request, caller, app):
            del caller, app
            params = request.model_dump()
            if len(str(params)) % 5 == 0:
                raise OverloadedError("on purpose")
            return params

        for method in methods:
            monkeypatch.setattr(method, "handle", echo)
            monkeypatch.setattr(method, "log_fields", Method.log_fields)
        self._both = [JsonRpc(methods, bench.service, bench.service.parser) for _ in range(2)]
        self._both[1]._begin = {}

    def answers(self, body):
        caller = Caller("", "0" * 32)
        return [asyncio.run(rpc.answer(caller, body)) for rpc in self._both]


CASES = [
    {"method": "get_session", "params": {"session_id": "1"}, "id": 1},
    {"method": "get_session", "params": {"session_id": "1"}},
    {"method": "get_session", "params": {"session_id": 1}, "id": None},
    {"method": "get_session", "params": {"session": "1", "call": 1, "self": 2, "": 3}, "id": "1"},
    {"method": "get_session", "params": {}, "id": 10**30},
    {"method": "get_session", "params": ["1"], "id": 1},
    {"method": "get_session", "params": ["1", 2], "id": 1},
    {"method": "get_session", "params": [], "id": 1},
    {"method": "get_session", "id": 1},
    {"method": "get_session", "params": None, "id": 1},
    {"method": "list_toolpacks", "id": 1},
    {"method": "list_toolpacks", "params": {}, "id": 1},
    {"method": "foobar", "params": {"a": 1}, "id": 1},
    {"method": "foobar", "params": {"a": 1}},
    {"method": "run_function", "params": {"function": "add", "kwargs": {"amount": 10**25}}, "id": 1.5},
]


@pytest.mark.parametrize("methods", [serving.CLIENTS_METHODS, serving.AGENTS_METHODS], ids=["clients", "agents"])
def test_the_fast_path_answers_like_jsonrpcserver(bench, monkeypatch, methods):
    twice = Twice(bench, monkeypatch, methods)
    cases = [{"jsonrpc": "2.0", **case} for case in CASES]
    for body in [*map(json.dumps, cases), json.dumps(cases)]:
        straight, dispatched = twice.answers(body.encode())
        assert straight == dispatched, body

    @settings(deadline=None, database=None, derandomize=True, suppress_health_check=[*HealthCheck])
    @given(bodies(Target("1" * 32, "2" * 32, "3" * 32), agent=methods is serving.AGENTS_METHODS))
    def send(body):
        straight, dispatched = twice.answers(body)
        assert straight == dispatched

    send()
