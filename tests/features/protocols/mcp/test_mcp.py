"""MCP at a session's `mcp_path`: requests of the legacy and the modern protocol versions, written by hand.

Some answers are compared byte by byte with the expected text.
"""

import base64
import json
from importlib.metadata import version

import http_endpoint
import mcp_endpoint
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mcp_endpoint import LEGACY, META, MODERN, refusal

ERAS = ("2025-06-18", MODERN)
INFO = {"name": "toolpack-server", "title": "Toolpack Server", "version": version("toolpack-server")}
VERSIONS = [MODERN, *LEGACY]


@pytest.fixture(scope="module")
def server():
    with mcp_endpoint.served() as served:
        yield served


# The methods of each era


@pytest.mark.parametrize("version", LEGACY)
def test_initialize_answers_the_requested_legacy_version(mcp, version):
    reply = mcp.legacy("initialize", protocolVersion=version, capabilities={}, clientInfo={"name": "x", "version": "1"})
    assert reply.status_code == 200
    assert reply.headers["content-type"] == "application/json"
    assert "mcp-session-id" not in reply.headers
    info = json.dumps(INFO, separators=(",", ":"))
    assert reply.text == (
        f'{{"jsonrpc":"2.0","id":7,"result":{{"protocolVersion":"{version}","capabilities":{{"tools":{{}}}},'
        f'"serverInfo":{info}}}}}'
    )


@pytest.mark.parametrize("version", [MODERN, "2031-01-01", None, 5, ["2025-06-18"]])
def test_initialize_answers_the_newest_legacy_version_otherwise(mcp, version):
    reply = mcp.legacy("initialize", protocolVersion=version)
    assert reply.json()["result"]["protocolVersion"] == "2025-11-25"


def test_discover_lists_all_versions(mcp):
    reply = mcp.modern("server/discover")
    assert reply.status_code == 200
    assert reply.json()["result"] == {
        "supportedVersions": VERSIONS,
        "capabilities": {"tools": {}, "extensions": {"io.modelcontextprotocol/tasks": {}}},
        "ttlMs": 60000,
        "cacheScope": "private",
        "resultType": "complete",
        "_meta": {"io.modelcontextprotocol/serverInfo": INFO},
    }


def test_ping_is_legacy_only_and_needs_the_key_of_a_session(mcp):
    assert mcp.legacy("ping").text == '{"jsonrpc":"2.0","id":7,"result":{}}'
    body = '{"jsonrpc":"2.0","id":"a","method":"ping"}'
    reply = mcp.post(body, path="/mcp/nobody")
    refusal(reply, 200, -33001)
    assert reply.json()["id"] == "a"


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize(
    "method",
    [
        *("initialize", "ping", "server/discover", "resources/list", "resources/read", "completion/complete"),
        *("logging/setLevel", "subscriptions/listen", "tasks/list", "list_functions", "create_session", ""),
    ],
)
def test_method_of_the_other_era_is_not_found(mcp, era, method):
    if (era == MODERN) != (method in {"initialize", "ping"}) and method in {"initialize", "ping", "server/discover"}:
        return
    error = refusal(mcp.send(era, method), 404 if era == MODERN else 200, -32601)
    assert error["message"].startswith(f"Method not found: There is no method {method!r} here: ")
    assert "tools/call" in error["message"]


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("method", ["notifications/initialized", "notifications/cancelled", "tools/call", "nonsense"])
def test_notification_is_accepted_and_ignored(mcp, era, method):
    meta = {"_meta": META} if era == MODERN else {}
    params = {"name": "count", "arguments": {"number": 1}, "requestId": 7, **meta}
    reply = mcp.post({"jsonrpc": "2.0", "method": method, "params": params})
    assert (reply.status_code, reply.content) == (202, b"")
    assert reply.headers["content-length"] == "0"
    assert mcp.counts() == []


@pytest.mark.parametrize("era", ERAS)
def test_tools_equal_the_functions_in_mcp_format(mcp, era):
    result = mcp.send(era, "tools/list").json()["result"]
    assert result.pop("tools") == mcp.rpc("list_functions", format="mcp")["result"]
    hints = {"ttlMs": 60000, "cacheScope": "private", "resultType": "complete"}
    assert result == (hints | {"_meta": {"io.modelcontextprotocol/serverInfo": INFO}} if era == MODERN else {})


def test_tools_list_has_one_page(mcp):
    error = refusal(mcp.legacy("tools/list", cursor="2"), 200, -32602)
    assert error["message"] == "Invalid params: There is one page of tools: omit the cursor."
    assert mcp.legacy("tools/list", cursor=None).json()["result"]["tools"]


@pytest.mark.parametrize("era", ERAS)
def test_unknown_parameters_are_ignored(mcp, era):
    unknown = {"inputResponses": {}, "task": {"ttl": 1}, "logLevel": "debug", "session_id": "x"}
    called = mcp.send(era, "tools/call", name="count", arguments={"number": 1}, **unknown)
    assert called.json()["result"]["isError"] is False


# Results


@pytest.mark.parametrize("era", ERAS)
def test_results_of_all_kinds(mcp, era):
    end = {"resultType": "complete", "_meta": {"io.modelcontextprotocol/serverInfo": INFO}} if era == MODERN else {}

    def result(name, **arguments):
        result_body = mcp.call(era, name, **arguments)
        for key, value in end.items():
            assert result_body.pop(key) == value
        return result_body

    def text(result_body):
        return [{"type": "text", "text": result_body}]

    result_body = "This is a simple text response for testing."
    assert result("test_simple_text") == {"content": text(result_body), "isError": False}
    structured = {"counts": [3]}
    assert result("count", number=3) == {
        "content": text('{"counts":[3]}'),
        "structuredContent": structured,
        "isError": False,
    }
    error = "RuntimeError: This tool intentionally returns an error for testing"
    assert result("test_error_handling") == {"content": text(error), "isError": True}
    wrong = result("count", number="many")
    assert wrong["isError"] is True
    assert wrong["content"][0]["text"].startswith("ValidationError: 1 validation error")
    blocks = result("test_multiple_content_types")
    assert [block["type"] for block in blocks["content"]] == ["text", "image", "resource", "resource_link"]
    assert "structuredContent" not in blocks
    assert result("test_audio_content")["content"][0]["mimeType"] == "audio/wav"


@pytest.mark.parametrize("value", [None, 17, 1.5, True, [1, "two"], "", 'say "hi"\n', {"a": None}, {}])
def test_any_value_is_sent_as_text_and_objects_also_as_structure(mcp, value):
    result = mcp.call("2025-11-25", "echo", value=value)
    expected = value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))
    assert result["content"] == [{"type": "text", "text": expected}]
    assert result.get("structuredContent") == (value if isinstance(value, dict) else None)


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize(
    ("value", "exact"),
    [
        *((number, True) for number in (2**53 - 1, 1 - 2**53, 0.30000000000000004, 1e300, -1e-300, "9" * 20)),
        *((number, False) for number in (2**53 + 1, -(2**53) - 1, 2**64 + 1, 10**300)),
        ('\\": 12345678901234567890, "', True),
    ],
)
def test_integer_beyond_javascripts_range_is_only_in_the_text(mcp, era, value, exact):
    for echoed in ({"a": value}, {"a": [{"b": value}, 1]}):
        result = mcp.call(era, "echo", value=echoed)
        assert json.loads(result["content"][0]["text"]) == echoed
        assert result.get("structuredContent") == (echoed if exact else None)


def test_json_rpc_returns_the_list_of_content_blocks(mcp):
    blocks = mcp.rpc("run_function", function="test_image_content")["result"]
    assert blocks == mcp.call(MODERN, "test_image_content")["content"]


GOOD = [
    {"type": "text", "text": ""},
    {"type": "text", "text": "hi", "annotations": {"audience": ["assistant"], "priority": 0}, "more": 1},
    {"type": "image", "data": "", "mimeType": "image/png"},
    {"type": "resource", "resource": {"uri": "file:///a", "text": "b"}},
    {"type": "resource", "resource": {"uri": "x:y", "blob": "YQ=="}},
    {"type": "resource_link", "uri": "https://example.org", "name": "n", "size": 3},
]
BAD = [
    ({"type": "video", "data": ""}, "result[0]"),
    ({"text": "no type"}, "result[0]"),
    ({"type": "text"}, "result[0].text"),
    ({"type": "text", "text": 5}, "result[0].text"),
    ({"type": "image", "data": "not base64!", "mimeType": "image/png"}, "result[0].data"),
    ({"type": "audio", "data": "YQ=="}, "result[0].mimeType"),
    ({"type": "resource", "resource": {"uri": "no uri", "text": ""}}, "result[0].resource.uri"),
    ({"type": "resource_link", "uri": "https://example.org"}, "result[0].name"),
    ({"type": "text", "text": "", "annotations": {"priority": 2}}, "result[0].annotations.priority"),
]


@pytest.mark.parametrize("block", GOOD, ids=json.dumps)
def test_content_blocks_are_returned_unchanged(mcp, block):
    assert mcp.call(MODERN, "note_content", blocks=[block])["content"] == [block]


@pytest.mark.parametrize(("block", "location"), BAD, ids=lambda value: json.dumps(value)[:60])
def test_invalid_content_block_fails_and_changes_nothing(mcp, block, location):
    result = mcp.call(MODERN, "note_content", blocks=[block])
    assert result["isError"] is True
    assert result["content"][0]["text"].startswith(
        f"ResultError: the function is annotated -> Content, but {location} isn't an MCP content block: "
    )
    assert mcp.counts() == []


def test_empty_list_of_blocks_is_content(mcp):
    assert mcp.call(MODERN, "note_content", blocks=[])["content"] == []


@pytest.mark.parametrize("era", ERAS)
def test_unknown_tool_is_a_protocol_error_and_recorded(mcp, era):
    error = refusal(mcp.send(era, "tools/call", name="nothing", arguments={}), 200, -32602)
    assert error["message"] == "ToolNotFoundError: The requested function `nothing` is not available."
    assert [record["function"] for record in mcp.rpc("get_trace")] == ["nothing"]


@pytest.mark.parametrize("value", [{"$call": {"function": "count", "args": {"number": 1}}}, {"$call": 1}])
def test_nested_call_is_rejected(mcp, value):
    result = mcp.call(MODERN, "count", number=value)
    assert result["isError"] is True
    assert result["content"][0]["text"].startswith("ValidationError: argument `number` is a nested call")
    assert mcp.rpc("get_trace") == []
    assert mcp.call(MODERN, "echo", value={"$call": 1, "more": 2})["isError"] is False


@pytest.mark.parametrize("arguments", [None, {}, "", "{}"])
def test_arguments_may_be_omitted(mcp, arguments):
    assert mcp.legacy("tools/call", name="test_simple_text", arguments=arguments).json()["result"]["isError"] is False
    assert mcp.legacy("tools/call", name="test_simple_text").json()["result"]["isError"] is False


@pytest.mark.parametrize(
    "params",
    [{}, {"name": 5}]
    + [{"name": "count", "_meta": {"toolpack-server/call_id": wrong}} for wrong in ("", "x" * 129, 5, [])],
)
def test_invalid_parameters_of_a_tool_call_are_rejected(mcp, params):
    error = refusal(mcp.legacy("tools/call", **params), 200, -32602)
    assert error["message"] == f"Invalid params: {error['data']['detail']}"


# One world for mcp_path and agent_path


def test_mcp_and_agent_path_share_one_world_and_trace(mcp):
    mcp.call(MODERN, "count", number=1)
    agents = mcp.session["agent_path"]
    body = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "run_function",
        "params": {"function": "count", "kwargs": {"number": 2}},
    }
    assert mcp.http.post(agents, json=body).json()["result"]["result"] == {"counts": [1, 2]}
    mcp.call("2024-11-05", "count", number=3)
    assert mcp.session["mcp_path"] == agents.replace("/agents/", "/mcp/")
    assert [record["kwargs"]["number"] for record in mcp.rpc("get_trace")] == [1, 2, 3]
    assert mcp.rpc("get_session")["version"] == 3


@pytest.mark.parametrize("era", ERAS)
def test_call_id_is_shared_by_mcp_and_agent_path(mcp, era):
    meta = {"toolpack-server/call_id": "c1"}
    first = mcp.call(era, "count", _meta=meta, number=1)
    assert mcp.call(era, "count", _meta=meta, number=1) == first
    params = {"function": "count", "kwargs": {"number": 1}, "call_id": "c1"}
    request = {"jsonrpc": "2.0", "id": 1, "method": "run_function", "params": params}
    repeated = mcp.post(request, path=mcp.session["agent_path"]).json()["result"]
    assert repeated["result"] == first["structuredContent"]
    assert mcp.counts() == [1]
    mcp.rpc("run_function", **params)  # The client's call_ids are separate.
    assert mcp.counts() == [1, 1]
    reused = mcp.legacy("tools/call", name="count", arguments={"number": 2}, _meta=meta)
    assert refusal(reused, 200, -33009)["data"] == {"type": "CallIdReusedError"}


def test_repeated_call_returns_its_content_blocks_again(mcp):
    meta = {"toolpack-server/call_id": "c2"}
    first = mcp.call(MODERN, "note_content", _meta=meta, blocks=GOOD)
    assert mcp.call(MODERN, "note_content", _meta=meta, blocks=GOOD) == first
    assert mcp.counts() == [len(GOOD)]


def test_request_id_is_not_a_call_id(mcp):
    for _ in range(2):
        mcp.call("2025-11-25", "count", number=1)  # Clients restart their ids at 0.
    assert mcp.counts() == [1, 1]
    assert {record.get("call_id") for record in mcp.rpc("get_trace")} == {None}


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("method", ["tools/list", "tools/call"])
def test_closed_session_is_an_error(mcp, era, method):
    mcp.rpc("close_session")
    error = refusal(mcp.send(era, method, name="count", arguments={"number": 1}), 200, -33001)
    assert error["message"].startswith(
        "No session has this id or address: it is unknown, closed or expired. Its creator"
    )
    assert error["data"] == {"type": "SessionNotFoundError"}


def test_handshake_with_a_closed_session_fails(mcp):
    mcp.rpc("close_session")
    refusal(mcp.legacy("initialize", protocolVersion="2025-11-25"), 200, -33001)
    refusal(mcp.modern("server/discover"), 200, -33001)
    large = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {"x": "y" * 100_000}})
    assert mcp.post(large).json()["id"] is None  # For an unknown session a large body isn't read.


# Invalid messages


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", -32700),
        (b"{", -32700),
        (b'{"jsonrpc":"2.0","id":1,"method":"ping"} x', -32700),
        (b'{"a": NaN}', -32700),
        (b"\xff", -32700),
        (b"[]", -32600),
        (b'[{"jsonrpc":"2.0","id":1,"method":"ping"}]', -32600),
        (b"5", -32600),
        (b"null", -32600),
        (b"{}", -32600),
        (b'{"jsonrpc":"1.0","id":1,"method":"ping"}', -32600),
        (b'{"jsonrpc":"2.0","id":null,"method":"ping"}', -32600),
        (b'{"jsonrpc":"2.0","id":1.5,"method":"ping"}', -32600),
        (b'{"jsonrpc":"2.0","id":true,"method":"ping"}', -32600),
        (b'{"jsonrpc":"2.0","id":[],"method":"ping"}', -32600),
        (b'{"jsonrpc":"2.0","id":1,"result":{}}', -32600),
        (b'{"jsonrpc":"2.0","id":1,"method":5}', -32600),
        (b'{"jsonrpc":"2.0","id":1,"method":"ping","params":[]}', -32600),
        (b'{"jsonrpc":"2.0","id":1,"method":"ping","params":null}', -32600),
        (b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{"_meta":[]}}', -32602),
        (b'{"jsonrpc":"2.0","method":"x","params":"x"}', -32600),
        (b'{"jsonrpc":"2.0","id":1,"method":"ping","params":' + b'{"a":' * 200 + b"1" + b"}" * 201, -32600),
        (b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{"a":[' + b"0," * 260_000 + b"0]}}", -32600),
    ],
    ids=lambda value: str(value)[:60],
)
def test_invalid_message_is_rejected(mcp, body, code):
    refusal(mcp.post(body), 400, code)


def test_body_of_wrong_type_or_size_is_rejected_by_http(mcp):
    for content_type in ("text/plain", "application/x-www-form-urlencoded", ""):
        refusal(mcp.post(b"{}", {"Content-Type": content_type}), 415, -32000)
    assert mcp.post(
        b'{"jsonrpc":"2.0","id":1,"method":"ping"}', {"Content-Type": "Application/JSON; charset=utf-8"}
    ).json()
    refusal(mcp.post(b" " * (2**20 + 1)), 413, -32000)


def test_session_headers_of_a_client_are_ignored(mcp):
    headers = {"Mcp-Session-Id": "other", "Last-Event-ID": "3", "Authorization": "Bearer x", "Cookie": "a=b"}
    reply = mcp.legacy("tools/call", headers, name="count", arguments={"number": 1})
    assert reply.json()["result"]["isError"] is False
    assert not {"mcp-session-id", "set-cookie", "www-authenticate"} & set(reply.headers)


# Headers that repeat parts of a modern message


def test_headers_of_a_modern_request_must_match_its_body(mcp):
    for name, wrong in [
        ("MCP-Protocol-Version", "2025-11-25"),
        ("MCP-Protocol-Version", None),
        ("Mcp-Method", "tools/list"),
        ("Mcp-Method", "Tools/call"),
        ("Mcp-Method", None),
        ("Mcp-Name", "test_simple_text"),
        ("Mcp-Name", None),
        ("Mcp-Name", ""),
        ("Mcp-Name", "=?base64?Y291bnQ?="),
        ("Mcp-Name", "=?base64?!!!!?="),
        ("Mcp-Name", "=?base64?Y291bnR=?="),  # Decoders may disagree on this encoding.
        ("Mcp-Name", "=?base64?/w==?="),
    ]:
        reply = mcp.modern("tools/call", {name: wrong}, name="count", arguments={"number": 1})
        error = refusal(reply, 400, -32020)
        assert error["message"].startswith(f"The header {name} "), error
        assert reply.json()["id"] == 7
    assert mcp.counts() == []
    reply = mcp.modern("tools/call", {"Mcp-Name": "=?base64?Y291bnQ=?="}, name="count", arguments={"number": 1})
    assert reply.json()["result"]["isError"] is False
    assert mcp.modern("tools/list", {"Mcp-Name": "anything"}).status_code == 200


def test_duplicate_header_is_rejected(mcp):
    for name, value in {"MCP-Protocol-Version": MODERN, "mcp-method": "tools/list", "Mcp-Name": "count"}.items():
        twice = [("Content-Type", "application/json"), (name, value), (name, value)]
        reply = mcp.http.post(mcp.path, content=b"{}", headers=twice)
        assert f"The header {name.lower()} is duplicated" in refusal(reply, 400, -32000)["message"]


@pytest.mark.parametrize(
    "meta",
    [{key: wrong} for key in ("io.modelcontextprotocol/protocolVersion",) for wrong in (None, 5, [MODERN])]
    + [{"io.modelcontextprotocol/clientCapabilities": wrong} for wrong in (None, [], "x")],
)
def test_modern_request_requires_version_and_capabilities(mcp, meta):
    refusal(mcp.modern("tools/list", {"Mcp-Method": "wrong, but looked at later"}, meta), 400, -32602)


def test_version_header_alone_makes_a_request_modern(mcp):
    error = refusal(mcp.legacy("tools/list", {"MCP-Protocol-Version": MODERN}), 400, -32602)
    assert "io.modelcontextprotocol/protocolVersion" in error["message"]


@pytest.mark.parametrize("version", ["1999-01-01", "", *LEGACY])
def test_modern_request_of_an_unknown_version_gets_a_list(mcp, version):
    meta = {"io.modelcontextprotocol/protocolVersion": version}
    error = refusal(mcp.modern("nonsense", {"MCP-Protocol-Version": version}, meta), 400, -32022)
    assert error["data"] == {"supported": VERSIONS, "requested": version}


def test_legacy_request_of_an_unknown_version_gets_a_list(mcp):
    error = refusal(mcp.legacy("tools/list", {"MCP-Protocol-Version": "2024-01-01"}), 400, -32022)
    assert error["data"] == {"supported": VERSIONS, "requested": "2024-01-01"}
    for legacy_version in LEGACY:
        assert mcp.legacy("tools/list", {"MCP-Protocol-Version": legacy_version}).status_code == 200


@pytest.mark.parametrize("header", ["2099-01-01", MODERN, "nonsense", ""])
def test_initialize_ignores_the_version_header(mcp, header):
    reply = mcp.legacy("initialize", {"MCP-Protocol-Version": header}, protocolVersion="2025-06-18")
    assert reply.status_code == 200
    assert reply.json()["result"]["protocolVersion"] == "2025-06-18"


# Addresses and access


@pytest.mark.parametrize("method", ["GET", "DELETE", "PUT", "PATCH", "HEAD"])
@pytest.mark.parametrize("key", ["", "nobody"])
def test_only_post_is_accepted(mcp, method, key):
    reply = mcp.http.request(method, f"/mcp/{key}" if key else mcp.path, headers={"Accept": "text/event-stream"})
    assert reply.status_code == 405
    assert reply.headers["allow"] == "POST, OPTIONS"
    assert mcp.call(MODERN, "test_simple_text")  # An agent can't end its session.


@pytest.mark.parametrize("path", ["/mcp//", "/register", "/authorize", "/token"])
def test_other_paths_are_not_found(mcp, path):
    for reply in (mcp.http.get(path), mcp.http.post(path, json={})):
        refusal(reply, 404, -32000)


def test_oauth_discovery_is_not_found(mcp):
    for probe in ("oauth-protected-resource", "oauth-authorization-server", "openid-configuration"):
        for path in (f"/.well-known/{probe}{mcp.path}", f"/.well-known/{probe}", f"{mcp.path}/.well-known/{probe}"):
            refusal(mcp.http.get(path), 404, -32000)


@pytest.mark.parametrize(
    "origin", ["http://localhost:6274", "https://127.0.0.1", "http://[::1]:5173", "vscode://localhost"]
)
def test_pages_of_this_machine_may_read_answers(mcp, origin):
    reply = mcp.legacy("tools/list", {"Origin": origin})
    assert reply.status_code == 200
    assert reply.headers["access-control-allow-origin"] == origin
    assert reply.headers["vary"] == "Origin"
    refused = mcp.post(b"{", {"Origin": origin})
    assert refused.headers["access-control-allow-origin"] == origin
    assert mcp.http.get(mcp.path, headers={"Origin": origin}).headers["access-control-allow-origin"] == origin


@pytest.mark.parametrize("origin", ["https://example.org", "null", "", "localhost", "http://localhost.example.org"])
def test_pages_of_other_machines_are_rejected(mcp, origin):
    for reply in (mcp.legacy("tools/list", {"Origin": origin}), mcp.http.options(mcp.path, headers={"Origin": origin})):
        refusal(reply, 403, -32000)
        assert "access-control-allow-origin" not in reply.headers


def test_browser_may_send_a_preflight_request(mcp):
    headers = {
        "Origin": "http://localhost:6274",
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "content-type,mcp-protocol-version,mcp-param-region",
    }
    for path in (mcp.path, "/mcp/nobody"):
        reply = mcp.http.options(path, headers=headers)
        assert (reply.status_code, reply.content) == (204, b"")
        assert reply.headers["access-control-allow-origin"] == "http://localhost:6274"
        assert reply.headers["access-control-allow-methods"] == "POST"
        assert reply.headers["access-control-allow-headers"] == headers["Access-Control-Request-Headers"]
        assert reply.headers["access-control-max-age"] == "600"


def test_loopback_server_rejects_other_hosts(mcp):
    refusal(mcp.legacy("tools/list", {"Host": "evil.example.org"}), 403, -32000)


def test_key_alone_grants_access_on_a_server_with_tokens():
    token = "a-token-of-some-length"
    with http_endpoint.served("h11", catalog=mcp_endpoint.CATALOG, log_calls="off", tokens={"ann": token}) as endpoint:
        endpoint.http.headers["Authorization"] = f"Bearer {token}"
        mcp = mcp_endpoint.Mcp(endpoint)
        del endpoint.http.headers["Authorization"]
        assert mcp.legacy("tools/list").status_code == 200
        own = {"Host": "tools.example.org", "Origin": "https://tools.example.org"}
        reply = mcp.legacy("tools/list", own)
        assert reply.headers["access-control-allow-origin"] == "https://tools.example.org"
        refusal(mcp.legacy("tools/list", {**own, "Origin": "https://other.example.org"}), 403, -32000)


# Any input


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
NEARLY = st.fixed_dictionaries(
    {"jsonrpc": st.just("2.0"), "method": st.sampled_from(["tools/call", "tools/list", "initialize", "ping", "x"])},
    optional={
        "id": JSON,
        "params": JSON
        | st.fixed_dictionaries(
            {}, optional={"name": JSON, "arguments": JSON, "_meta": JSON | st.just(META), "protocolVersion": JSON}
        ),
    },
)
HEADER = st.sampled_from([None, MODERN, *LEGACY, "x", "tools/call", "count", "=?base64?YQ==?=", "=?base64?YQ?="])


@given(message=NEARLY | JSON, version=HEADER, method=HEADER, name=HEADER)
def test_any_message_gets_json_and_a_known_status(server, message, version, method, name):
    headers = {"MCP-Protocol-Version": version, "Mcp-Method": method, "Mcp-Name": name}
    reply = server.post(message, {key: value for key, value in headers.items() if value is not None})
    assert reply.status_code in {200, 202, 400, 404}
    if reply.status_code == 202:
        assert reply.content == b""
        assert "id" not in message
        return
    answer = reply.json()
    assert set(answer) in ({"jsonrpc", "id", "result"}, {"jsonrpc", "id", "error"})
    if "error" in answer:
        assert -33012 <= answer["error"]["code"] <= -32020
        assert "Traceback" not in reply.text
    else:
        assert answer["id"] == message["id"]


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text())
def test_any_text_can_be_a_header(server, text):
    encoded = f"=?base64?{base64.b64encode(text.encode()).decode()}?="
    reply = server.modern("tools/call", {"Mcp-Name": encoded}, name=text, arguments={})
    assert reply.json()["error"]["code"] == -32602
