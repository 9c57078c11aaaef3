"""MCP: a session's functions are the tools at its mcp_path, with or without `initialize` (docs/reference/mcp.md)."""

import json
from typing import Any

from toolpack_conformance.mcp_client import VERSION, McpClient
from toolpack_conformance.probes.atomic import nested
from toolpack_conformance.probes.probe import INVALID, NO_METHOD, PARAMETERS, PARSE, probe
from toolpack_conformance.target import Session, Target, expect

_LEGACY = ("2025-11-25", VERSION, "2025-03-26", "2024-11-05")
_MODERN = "2026-07-28"
_META = {"io.modelcontextprotocol/protocolVersion": _MODERN, "io.modelcontextprotocol/clientCapabilities": {}}
_CALL_ID = "toolpack-server/call_id"
_ACCEPTED, _BAD_REQUEST, _FORBIDDEN, _NOT_FOUND = 202, 400, 403, 404
_HEADER_MISMATCH, _UNSUPPORTED_VERSION = -32020, -32022


def _client(session: Session) -> McpClient:
    return McpClient(session.target, session.mcp_path)


def _texts(answer: dict[str, Any]) -> list[Any]:
    return [answer.get("isError", False), *[block.get("text") for block in answer["content"]]]


@probe("MCP")
def a_client_is_greeted(target: Target) -> None:
    """A client that sends initialize gets the requested version, or else one that the server supports."""
    session = target.create()
    for version in _LEGACY:
        greeting = McpClient(target, session.mcp_path, version).greeting
        expect(greeting.get("protocolVersion"), version, "the version in the result of initialize")
        expect("tools" in greeting["capabilities"], True, "whether the capabilities have tools")
        expect(isinstance(greeting["serverInfo"]["name"], str), True, "whether serverInfo contains a name")
    other = McpClient(target, session.mcp_path, "1999-01-01")
    expect(
        other.greeting.get("protocolVersion") in _LEGACY, True, "whether the version in the response is a known version"
    )
    notified = [other.notified.status_code, other.notified.content]
    expect(notified, [_ACCEPTED, b""], "the HTTP status and the body of the response to a notification")
    expect(other.ask("ping"), {}, "the result of ping")
    reply = other.reply("ping", request_id="a text")
    expect(reply["id"], "a text", "the id of a response to a request whose id is a text")


@probe("MCP")
def tools_are_listed_and_called(target: Target) -> None:
    """An MCP client lists the session's functions as tools and calls them in the session's environment."""
    session = target.create()
    mcp = _client(session)
    listed = mcp.ask("tools/list")["tools"]
    types = {tool["inputSchema"]["type"] for tool in listed}
    expect(types, {"object"}, "the types of the tools' inputSchema")
    tools = {tool["name"]: tool for tool in listed}
    native = sorted(each["name"] for each in session.ask("list_functions")["result"])
    expect(sorted(tools), native, "the names of the tools")
    schema = tools["add"]["inputSchema"]
    expect([[*schema["properties"]], schema.get("required")], [["amount"], ["amount"]], "the parameters of add")
    expect(bool(tools["add"].get("description")), True, "whether add has a description")
    hints = [(tools[name].get("annotations") or {}).get("readOnlyHint", False) for name in ("add", "total")]
    expect(hints, [False, True], "readOnlyHint of add and total")
    session.run("add", {"amount": 1})
    expect(_texts(mcp.call("add", {"amount": 2})), [False, "3"], "isError and the content of the response")
    expect(_texts(mcp.call("repeat", {"text": "ab", "times": 2})), [False, "abab"], "isError and content for a text")
    mcp.call("append", {"number": 4})
    expect(json.loads(_texts(mcp.call("second", {}))[1]), [4], "the content for a list")
    expect(session.contents(), [3, [4], "", 3], "the session's total, list, note and version")
    by = [record["by"] for record in session.calls()][:3]
    expect(by, ["client", "agent", "agent"], "the senders (`by`) of the calls in the trace")


@probe("MCP")
def a_tools_failure_is_an_error(target: Target) -> None:
    """A failing tool is answered with isError and the error's text, and changes nothing."""
    session = target.create()
    mcp = _client(session)
    failed = _texts(mcp.call("add_and_fail", {"amount": 2}))
    expect(failed, [True, "ValueError: failed after adding 2"], "isError and the content for a tool that fails")
    for name, arguments in (
        ("add", {"amount": "many"}),
        ("add", {}),
        ("add", {"amount": 1, "other": 1}),
        ("add", {"amount": nested("add", amount=1)}),
    ):
        expect(mcp.call(name, arguments).get("isError"), True, f"isError of {name} with {json.dumps(arguments)}")
    expect(session.contents(), [0, [], "", 0], "the total, the list, the note and the version after failed tools")


@probe("MCP")
def invalid_requests_get_mcp_errors(target: Target) -> None:
    """Unknown tools, methods and versions, wrong parameters, batches and invalid messages are refused."""
    session = target.create()
    mcp = _client(session)
    expect(mcp.code("tools/call", {"name": "nothing", "arguments": {}}), PARAMETERS, "the code for an unknown tool")
    expect(mcp.code("tools/call", {"arguments": {}}), PARAMETERS, "the code for a tool without a name")
    for method in ("reset_session", "run_function", "get_environment", "resources/list", "Tools/list"):
        expect(mcp.code(method), NO_METHOD, f"the code of {method}")
    one = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
    for body, code in ((b"{", PARSE), ([one], INVALID), (5, INVALID), ({**one, "jsonrpc": "1.0"}, INVALID)):
        response = mcp.post(body)
        actual = [response.status_code, response.json().get("error", {}).get("code")]
        expect(actual, [_BAD_REQUEST, code], f"the HTTP status and the code for {body!r}")
    response = mcp.post(one, {"MCP-Protocol-Version": "1999-01-01"})
    expect(response.status_code, _BAD_REQUEST, "the HTTP status for a version that isn't known")
    expect(session.version, 0, "the version after these requests")


@probe("MCP")
def version_2026_is_supported(target: Target) -> None:
    """A client of version 2026-07-28, which sends its version with each message, can use the same path."""
    session = target.create()
    mcp = _client(session)
    headers = {"MCP-Protocol-Version": _MODERN, "Mcp-Method": "server/discover"}
    discovery = mcp.ask("server/discover", {"_meta": _META}, headers)
    expect(
        _MODERN in discovery["supportedVersions"], True, "whether 2026-07-28 is among the versions of server/discover"
    )
    headers = {"MCP-Protocol-Version": _MODERN, "Mcp-Method": "tools/list"}
    listed = mcp.ask("tools/list", {"_meta": _META}, headers)
    expect("add" in {tool["name"] for tool in listed["tools"]}, True, "whether the tools have add")
    expect(listed.get("resultType"), "complete", "the resultType of tools/list")
    call = {"name": "add", "arguments": {"amount": 2}, "_meta": _META}
    headers = {"MCP-Protocol-Version": _MODERN, "Mcp-Method": "tools/call", "Mcp-Name": "add"}
    expect(_texts(mcp.ask("tools/call", call, headers)), [False, "2"], "isError and the content of the response")
    request = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call}
    unknown = {"jsonrpc": "2.0", "id": 1, "method": "nothing", "params": {"_meta": _META}}
    other = {**_META, "io.modelcontextprotocol/protocolVersion": "1999-01-01"}
    for message, extra, status, code in (
        (request, {**headers, "Mcp-Name": "total"}, _BAD_REQUEST, _HEADER_MISMATCH),
        (unknown, {**headers, "Mcp-Method": "nothing"}, _NOT_FOUND, NO_METHOD),
        (
            {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {"_meta": other}},
            {"MCP-Protocol-Version": "1999-01-01", "Mcp-Method": "tools/list"},
            _BAD_REQUEST,
            _UNSUPPORTED_VERSION,
        ),
    ):
        response = mcp.post(message, extra)
        actual = [response.status_code, response.json().get("error", {}).get("code")]
        expect(
            actual,
            [status, code],
            f"the HTTP status and the code for {message['method']} with {json.dumps(extra)}",
        )
    expect(session.total, 2, "the total after these requests")


@probe("MCP")
def a_tool_is_called_once(target: Target) -> None:
    """A repeated tool call with the same toolpack-server/call_id runs once. Message ids don't have this effect."""
    session = target.create()
    mcp = _client(session)
    repeated = {"name": "add", "arguments": {"amount": 2}, "_meta": {_CALL_ID: "a"}}
    answers = [mcp.ask("tools/call", repeated) for _ in range(2)]
    expect([_texts(answer) for answer in answers], [[False, "2"]] * 2, "isError and the content of both responses")
    call = {"name": "add", "arguments": {"amount": 10}}
    same_id = [mcp.reply("tools/call", call, request_id=7)["result"] for _ in range(2)]
    expect(
        [_texts(answer)[1] for answer in same_id], ["12", "22"], "the content of two responses with one message's id"
    )
    wrong = {**call, "_meta": {_CALL_ID: ""}}
    expect(mcp.code("tools/call", wrong), PARAMETERS, "the code with an empty call_id")
    expect(session.total, 22, "the total after these calls")


@probe("MCP")
def an_mcp_client_is_an_agent(target: Target) -> None:
    """No answer to an MCP client contains the session's id, and the client can't close the session."""
    session = target.create(task="conform/three")
    mcp = _client(session)
    replies = [
        mcp.greeting,
        mcp.ask("tools/list"),
        mcp.call("add_and_fail", {"amount": 1}),
        mcp.reply("tools/call", {"name": "nothing"}),
        mcp.reply("nothing"),
        mcp.reply("prompts/list"),
    ]
    text = json.dumps(replies)
    for secret, name in ((session.id, "the session's id"), ("conform/three", "its task"), ("solved", "the solution")):
        expect(secret in text, False, f"whether a response to an MCP client contains {name}")
    expect(
        "Make the total 3." in mcp.greeting.get("instructions", ""), True, "whether the instructions have the prompt"
    )
    mcp.end()
    expect([session.total, _texts(mcp.call("add", {"amount": 1}))], [0, [False, "1"]], "the session after a DELETE")


@probe("MCP")
def pages_of_other_origins_are_refused(target: Target) -> None:
    """A web page of another origin can't call tools."""
    session = target.create()
    call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "add", "arguments": {"amount": 1}}}
    response = _client(session).post(call, {"Origin": "https://other.example"})
    expect([response.status_code, session.total], [_FORBIDDEN, 0], "the HTTP status, and the total after the request")
