"""JSON-RPC 2.0: the specification (jsonrpc.org/specification), and the errors of docs/reference/protocol.md."""

import json
from typing import Any

import httpx

from toolpack_conformance.probes.probe import (
    ARGUMENTS,
    INVALID,
    NO_FUNCTION,
    NO_METHOD,
    PARAMETERS,
    PARSE,
    RAISED,
    SESSION_NOT_FOUND,
    probe,
)
from toolpack_conformance.target import Failed, Session, Target, check_response, expect, parse_json

_UNSUPPORTED_MEDIA = 415
_NOT_IN_A_DOUBLE = 2**53 + 1


def _send(target: Target, body: Any) -> httpx.Response:
    return target.post(body if isinstance(body, bytes) else json.dumps(body).encode())


def _check_error(reply: Any, request_id: Any, code: int, what: str) -> None:
    check_response(reply, request_id)
    expect(reply.get("error", {}).get("code"), code, f"the code for {what}")


@probe("JSON-RPC 2.0")
def invalid_json_is_refused(target: Target) -> None:
    """Invalid JSON is answered with a parse error and the id null."""
    for body in (
        b'{"jsonrpc": "2.0", "method": "foobar, "params": "bar", "baz]',
        b'[{"jsonrpc": "2.0", "method": "list_toolpacks", "id": "1"}, {"jsonrpc": "2.0", "method"]',
        b'{"jsonrpc": "2.0", "id": 1, "method": "list_toolpacks", "params": {"a": NaN}}',
        b'{"jsonrpc": "2.0", "id": 1, "method": "list_toolpacks", "params": {"\xff": 1}}',
        b'{"jsonrpc": "2.0", "id": 1, "method": "list_toolpacks"} {}',
        b"",
    ):
        _check_error(parse_json(_send(target, body)), None, PARSE, repr(body[:60]))


@probe("JSON-RPC 2.0")
def invalid_requests_are_refused(target: Target) -> None:
    """JSON that isn't a valid request is answered with the error for invalid requests."""
    bodies: tuple[Any, ...] = ({"jsonrpc": "2.0", "method": 1, "params": "bar"}, [], 1, "text", None)
    for body in bodies:
        _check_error(parse_json(_send(target, body)), None, INVALID, json.dumps(body))
    for request in (
        {"id": 1, "method": "list_toolpacks"},
        {"jsonrpc": "1.0", "id": 1, "method": "list_toolpacks"},
        {"jsonrpc": 2.0, "id": 1, "method": "list_toolpacks"},
        {"jsonrpc": "2.0", "id": 1},
        {"jsonrpc": "2.0", "id": 1, "method": None},
    ):
        reply = parse_json(_send(target, request))
        # The id can be null if it couldn't be determined. Some servers send null for all invalid requests.
        expected_id = reply.get("id") if isinstance(reply, dict) and reply.get("id") == 1 else None
        _check_error(reply, expected_id, INVALID, json.dumps(request))


@probe("JSON-RPC 2.0")
def batch_members_are_answered(target: Target) -> None:
    """Each request in a batch gets its own answer. Notifications get none."""
    replies = parse_json(_send(target, [1, 2, 3]))
    if not isinstance(replies, list) or len(replies) != 3:  # noqa: PLR2004 - one per member
        raise Failed("the response to [1,2,3] isn't a list of three responses")
    for reply in replies:
        _check_error(reply, None, INVALID, "a member of [1,2,3]")
    single = parse_json(_send(target, [{"jsonrpc": "2.0", "id": 1, "method": "list_toolpacks"}]))
    expect(isinstance(single, list) and len(single), 1, "the number of responses to a batch of one request")
    session = target.create()
    add = {"method": "run_function", "params": {"session_id": session.id, "function": "add", "kwargs": {"amount": 1}}}
    batch: list[Any] = [
        {"jsonrpc": "2.0", "id": "1", **add},
        {"jsonrpc": "2.0", **add},
        {"foo": "boo"},
        {"jsonrpc": "2.0", "id": "5", "method": "foo.get", "params": {"name": "myself"}},
        {"jsonrpc": "2.0", "id": "9", **add},
    ]
    replies = parse_json(_send(target, batch))
    if not isinstance(replies, list) or not all(isinstance(reply, dict) for reply in replies):
        raise Failed("the response to a batch isn't a list of responses")
    by_id = {reply.get("id"): reply for reply in replies}
    expect(
        [len(replies), len(by_id)], [4, 4], "the numbers of responses, and of their ids, for a batch of four requests"
    )
    _check_error(by_id.get(None), None, INVALID, 'a member {"foo": "boo"}')
    _check_error(by_id.get("5"), "5", NO_METHOD, "a member with an unknown method")
    results = [by_id.get(name, {}).get("result", {}).get("result") for name in ("1", "9")]
    expect([*results, session.total], [1, 3, 3], "the results of the other members, and the total")


@probe("JSON-RPC 2.0")
def unknown_methods_and_parameters(target: Target) -> None:
    """Unknown methods and wrong parameters are answered with the standard's error codes."""
    session = target.create()
    for method in ("foobar", "GET_SESSION", "rpc.foobar", ""):
        expect(target.code(method), NO_METHOD, f"the code of the method {method!r}")
    for method, params in (
        ("get_session", {"session": "x"}),
        ("get_session", {"session_id": 5}),
        ("get_session", {"session_id": session.id, "other": 1}),
        ("get_session", [session.id, 1]),
        ("get_session", {}),
        ("get_session", []),
        ("run_function", {"session_id": session.id}),
        ("create_session", {"toolpacks": ["no such"]}),
        ("create_session", {"toolpacks": "conform"}),
        ("get_environment", {"session_id": session.id, "pointer": "/no/such"}),
    ):
        expect(target.code(method, params), PARAMETERS, f"the code of {method} with {json.dumps(params)}")


@probe("JSON-RPC 2.0")
def ids_are_returned(target: Target) -> None:
    """The response has the request's id unchanged: a string, a number or null, with a result or an error."""
    for request_id in ("a", "1", "", "é", 1, 0, -3, 10**12, _NOT_IN_A_DOUBLE, -_NOT_IN_A_DOUBLE, None):
        for method in ("list_toolpacks", "foobar"):
            request = {"jsonrpc": "2.0", "id": request_id, "method": method}
            response = _send(target, request)
            if not response.content:
                raise Failed(f"a request with the id {request_id!r} has no response")
            check_response(parse_json(response), request_id)


@probe("JSON-RPC 2.0")
def parameters_by_position(target: Target) -> None:
    """Parameters can be passed by position, in the protocol's order."""
    session = target.create()
    expect(target.result("get_session", [session.id])["session_id"], session.id, "the session by position")
    envelope = target.result("run_function", [session.id, "add", {"amount": 2}])
    expect(envelope["result"], 2, "the result of run_function by position")
    expect(target.code("run_function", [session.id, "ad", {}, True]), NO_FUNCTION, "the code with raise_on_error")
    expect(target.result("reset_session", [session.id, 0])["version"], 2, "the version of reset_session by position")
    agents = target.result("run_function", ["add", {"amount": 3}], session.agent_path)
    expect(agents["result"], 3, "the result of run_function by position at the agent's path")


@probe("JSON-RPC 2.0")
def notifications_get_no_answer(target: Target) -> None:
    """A notification is executed and gets no answer, not even an error. This also holds in batches."""
    session = target.create()
    call = {"session_id": session.id, "function": "add", "kwargs": {"amount": 1}}
    notification = {"jsonrpc": "2.0", "method": "run_function", "params": call}
    unknown = {"jsonrpc": "2.0", "method": "foobar"}
    wrong = {"jsonrpc": "2.0", "method": "get_session", "params": {"session_id": "x"}}
    for body in (notification, [notification, notification], unknown, wrong, [unknown, wrong]):
        expect(_send(target, body).content, b"", f"the response to {json.dumps(body)[:80]}")
    replies = parse_json(_send(target, [notification, {**notification, "id": 1}]))
    expect(
        isinstance(replies, list) and len(replies),
        1,
        "the number of responses to a notification and a request in a batch",
    )
    expect(session.total, 5, "the total after all of them")


@probe("JSON-RPC 2.0")
def errors_have_protocol_codes(target: Target) -> None:
    """Errors have HTTP status 200, and the codes and data of the protocol."""
    session = target.create()
    run = {"session_id": session.id, "raise_on_error": True}
    for method, params, code, members in (
        ("foobar", {}, NO_METHOD, ["detail"]),
        ("get_session", {}, PARAMETERS, ["detail"]),
        ("get_session", {"session_id": "x"}, SESSION_NOT_FOUND, ["type"]),
        ("run_function", {**run, "function": "add_and_fail", "kwargs": {"amount": 1}}, RAISED, ["type"]),
        ("run_function", {**run, "function": "ad"}, NO_FUNCTION, ["type", "similar"]),
        ("run_function", {**run, "function": "add"}, ARGUMENTS, ["type", "errors"]),
    ):
        response = _send(target, {"jsonrpc": "2.0", "id": 7, "method": method, "params": params})
        reply = parse_json(response)
        _check_error(reply, 7, code, method)
        expect(response.status_code, 200, f"the HTTP status of the error {code}")
        missing = [member for member in members if member not in (reply["error"].get("data") or {})]
        expect(missing, [], f"the members that the data of the error {code} lacks")
    raised = target.error("run_function", {**run, "function": "add_and_fail", "kwargs": {"amount": 1}})
    expect(raised["data"]["type"], "ValueError", "the type in the data of the error of a function")
    expect("add" in target.error("run_function", {**run, "function": "ad"})["data"]["similar"], True, "similar has add")


@probe("JSON-RPC 2.0")
def other_content_is_refused(target: Target) -> None:
    """A request that isn't sent as application/json, such as a web page's form, isn't executed."""
    session = target.create()
    call = {"session_id": session.id, "function": "add", "kwargs": {"amount": 1}}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "run_function", "params": call}).encode()
    for path, content_type in (("/rpc", "text/plain"), (session.agent_path, "application/x-www-form-urlencoded")):
        status = target.post(body, path, content_type).status_code
        expect(status, _UNSUPPORTED_MEDIA, f"the HTTP status for {content_type}")
    expect(session.total, 0, "the total after these requests")


@probe("JSON-RPC 2.0")
def the_methods_are_described(target: Target) -> None:
    """rpc.discover and GET /openrpc.json return an OpenRPC document with the methods."""
    for document in (target.result("rpc.discover"), parse_json(target.post(b"", "/openrpc.json", http_method="GET"))):
        names = {method["name"] for method in document.get("methods", ())} if isinstance(document, dict) else set()
        missing = {"create_session", "run_function", "list_functions", "fork_session", "reset_session"} - names
        expect(sorted(missing), [], "the methods that the document lacks")
        expect("openrpc" in document, True, "whether the document says which version of OpenRPC it has")


@probe("JSON-RPC 2.0")
def functions_are_described(target: Target) -> None:
    """list_functions describes each function, in the formats of the protocol."""
    session = target.create()
    functions = {each["name"]: each for each in _list_functions(session)}
    expect([functions[name]["read_only"] for name in ("add", "total")], [False, True], "read_only of add and total")
    add = functions["add"]
    expect([add["toolpack"], sorted(add["parameters"]["properties"])], ["conform", ["amount"]], "toolpack, parameters")
    for name, key in (("mcp", "inputSchema"), ("anthropic", "input_schema")):
        listed = {each["name"]: each for each in _list_functions(session, format=name)}
        expect(sorted(listed["add"][key]["properties"]), ["amount"], f"the parameters of add in the format {name}")
    openai = {each["function"]["name"]: each["function"] for each in _list_functions(session, format="openai")}
    expect(sorted(openai["add"]["parameters"]["properties"]), ["amount"], "the parameters of add in the format openai")
    toolpacks = {each["name"]: each for each in target.result("list_toolpacks")}
    expect(sorted(toolpacks["conform"]["functions"]), sorted(functions), "the functions of the toolpack")
    expect(toolpacks["conform"]["tasks"], 2, "the number of the toolpack's tasks")


def _list_functions(session: Session, **params: Any) -> Any:
    envelope = session.ask("list_functions", **params)
    expect(envelope["error"], None, "the error in the envelope of list_functions")
    return envelope["result"]
