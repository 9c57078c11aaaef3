"""HTTP around JSON-RPC: a request that reaches JSON-RPC gets the status 200.

Other requests get another status and a body in a common form.
"""

import asyncio
import contextlib
import json
import re

import http_endpoint
import httpx
import pytest
import server_process
import serving
from serving import RpcError, result_of
from starlette.exceptions import HTTPException
from starlette.requests import Request

from toolpack_server.base import companions
from toolpack_server.base.errors import SettingsError
from toolpack_server.web.app import create_app

BODY = b'{"jsonrpc": "2.0", "method": "list_sessions", "id": 1}'
JSON = {"Content-Type": "application/json"}
TOKENS = {"TOOLPACK_TOKENS": "ann:ann-secret,bob:bob-secret"}


@pytest.fixture(scope="module", params=["httptools", "h11"])
def server(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("server")
    variables = {"TOOLPACK_MAX_BODY_BYTES": "100000", **server_process.http_on(request.param, folder)}
    with server_process.served(folder, "--store", "memory:", **variables) as running:
        yield running


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("guarded")
    with server_process.served(folder, "--store", "memory:", **TOKENS) as running:
        yield running


def refusal(response, status):
    assert response.status_code == status
    assert response.headers["content-type"] == "application/json"
    body = response.json()
    message = body["error"].pop("message")
    assert message
    assert body == {"jsonrpc": "2.0", "id": None, "error": {"code": -32000, "data": {"status": status}}}
    return message


def bearer(token):
    return {**JSON, "Authorization": f"Bearer {token}"}


@pytest.mark.parametrize(
    "media_type",
    ["application/json", "application/json; charset=utf-8", "Application/JSON;charset=UTF-8", "application/json ;a=b"],
)
def test_the_json_media_type_is_accepted_with_any_parameters(server, media_type):
    reply = server.http.post("/rpc", content=BODY, headers={"Content-Type": media_type})
    assert (reply.status_code, reply.json()) == (200, {"jsonrpc": "2.0", "result": [], "id": 1})
    assert reply.headers["content-type"] == "application/json"


@pytest.mark.parametrize(
    "media_type", ["text/plain", "application/x-www-form-urlencoded", "application/jsonp", "", None]
)
def test_other_media_types_are_415(server, media_type):
    headers = {} if media_type is None else {"Content-Type": media_type}
    assert "application/json" in refusal(server.http.post("/rpc", content=BODY, headers=headers), 415)


def test_too_large_a_body_is_413_with_or_without_its_length(server):
    large = BODY + b" " * 100_000
    refusal(server.http.post("/rpc", content=large, headers=JSON), 413)
    refusal(server.http.post("/rpc", content=iter([large[:50_000], large[50_000:]]), headers=JSON), 413)
    fitting = BODY.ljust(100_000)
    assert server.http.post("/rpc", content=iter([fitting[:9], fitting[9:]]), headers=JSON).json()["result"] == []


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nothing", 404),
        ("POST", "/nothing", 404),
        ("POST", "/rpc/", 404),
        ("POST", "/agents", 404),
        ("POST", "/agents/x/y", 404),
        ("GET", "/rpc", 405),
        ("PUT", "/rpc", 405),
        ("GET", "/agents/x", 405),
        ("POST", "/healthz", 405),
        ("DELETE", "/openrpc.json", 405),
    ],
)
def test_other_paths_are_404_and_other_methods_405(server, method, path, status):
    response = server.http.request(method, path, content=BODY, headers=JSON)
    message = refusal(response, status)
    assert ("allow" in response.headers) is (status == 405)
    if status == 405:
        assert message == f"This path doesn't accept {method}: use {response.headers['allow']}."
    else:
        assert "POST" in message


@pytest.mark.parametrize("http", ["httptools", "h11"])
def test_head_is_answered_at_once_and_without_a_body(http):
    # The server must send the answer at its end. It keeps an idle connection open for longer than the test waits.
    with http_endpoint.served(http, keep_alive=10 * serving.PATIENCE) as endpoint, endpoint.connect() as connection:
        for path, status in (("/healthz", 200), ("/readyz", 200), ("/console/", 200), ("/rpc", 405), ("/nothing", 404)):
            connection.sendall(f"HEAD {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            text = connection.recv(65536)
            assert text.startswith(b"HTTP/1.1 %d " % status)
            assert text.endswith(b"\r\n\r\n")


def test_json_rpc_responses_are_200_and_notifications_204(server):
    assert server.http.post("/rpc", content=b"{", headers=JSON).status_code == 200
    assert (
        server.http.post("/rpc", content=b'{"jsonrpc": "2.0", "method": "x", "id": 1}', headers=JSON).status_code == 200
    )
    quiet = server.http.post("/rpc", content=b'{"jsonrpc": "2.0", "method": "list_sessions"}', headers=JSON)
    assert (quiet.status_code, quiet.content) == (204, b"")
    several = server.http.post("/rpc", content=b'[{"jsonrpc": "2.0", "method": "list_sessions"}]', headers=JSON)
    assert (several.status_code, several.content) == (204, b"")


def test_healthz_and_readyz_answer_200(server, guarded):
    for running in (server, guarded):
        assert running.http.get("/healthz").text == "ok"
        assert running.http.get("/readyz").text == "ready"


@pytest.mark.parametrize("host", ["localhost", "localhost:8000", "127.0.0.1", "127.9.9.9:1", "[::1]:8000"])
def test_loopback_hosts_are_served(server, host):
    assert server.http.post("/rpc", content=BODY, headers=JSON | {"Host": host}).status_code == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example:80", "10.0.0.1", "[::1", "a@localhost@b"]
)
def test_other_hosts_are_403(server, host):
    refusal(server.http.post("/rpc", content=BODY, headers=JSON | {"Host": host}), 403)
    refusal(server.http.post("/agents/x", content=BODY, headers=JSON | {"Host": host}), 403)
    refusal(server.http.get("/openrpc.json", headers={"Host": host}), 403)


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "https://127.0.0.1.evil.example", "http://[", "garbage"]
)
def test_other_origins_are_403(server, origin):
    refusal(server.http.post("/rpc", content=BODY, headers=JSON | {"Origin": origin}), 403)
    refusal(server.http.post("/agents/x", content=BODY, headers=JSON | {"Origin": origin}), 403)


@pytest.mark.parametrize("origin", ["http://localhost:3000", "http://127.0.0.1", "https://[::1]:5"])
def test_loopback_origins_are_served(server, origin):
    assert server.http.post("/rpc", content=BODY, headers=JSON | {"Origin": origin}).status_code == 200


@pytest.mark.parametrize(
    "authorization", [None, "Bearer wrong", "Bearer", "Bearer \t.", "Basic ann-secret", "ann-secret", "Bearer \xff"]
)
def test_without_a_known_token_it_is_401(guarded, authorization):
    headers = JSON if authorization is None else JSON | {"Authorization": authorization.encode("latin-1")}
    for response in (
        guarded.http.post("/rpc", content=BODY, headers=headers),
        guarded.http.get("/openrpc.json", headers=headers),
    ):
        refusal(response, 401)
        assert response.headers["www-authenticate"] == "Bearer"


def test_the_token_is_checked_before_anything_else(guarded):
    refusal(guarded.http.post("/rpc", content=BODY * 10, headers={"Content-Type": "text/plain"}), 401)


def test_sessions_belong_to_a_token_and_agents_need_none(guarded):
    def rpc(token, method, **params):
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        return result_of(guarded.http.post("/rpc", json=body, headers=bearer(token)).content)

    session = rpc("ann-secret", "create_session", toolpacks=["ledger"])
    with pytest.raises(RpcError) as unknown:
        rpc("bob-secret", "get_session", session_id=session["session_id"])
    assert unknown.value.code == -32001
    assert rpc("bob-secret", "list_sessions") == []
    body = {"jsonrpc": "2.0", "id": 1, "method": "run_function", "params": ["add", {"amount": 3}]}
    ran = guarded.http.post(session["agent_path"], json=body)
    assert ran.json()["result"] == {"result": 3, "error": None}
    assert rpc("ann-secret", "get_session", session_id=session["session_id"])["version"] == 1
    body["method"] = "get_session"
    assert guarded.http.post(session["agent_path"], json=body).json()["error"]["code"] == -32601
    body["method"] = "list_functions"
    body["params"] = []
    assert guarded.http.post("/agents/" + "0" * 32, json=body).json()["error"]["code"] == -32001


def test_other_hosts_are_served_where_tokens_or_keys_guard(guarded):
    others = {"Host": "tools.example", "Origin": "https://page.example"}
    headers = bearer("bob-secret") | others
    assert guarded.http.post("/rpc", content=BODY, headers=headers).status_code == 200
    session = guarded.http.post(
        "/rpc", json=http_endpoint.request("create_session", toolpacks=["ledger"]), headers=headers
    ).json()
    path = session["result"]["agent_path"]
    assert guarded.http.post(path, json=http_endpoint.request("list_functions"), headers=others).status_code == 200


@contextlib.contextmanager
def asking(**settings):
    """Send requests to an application without an HTTP library, which might refuse the request first."""
    bench = serving.Bench(**settings)
    application = create_app(bench.service)
    application.state.gateway.ready = True

    def ask(method, path, headers, *messages):
        messages_sent, body = [], iter(messages or [{"type": "http.request", "body": BODY, "more_body": False}])

        async def receive():
            return next(body)

        async def send(message):
            messages_sent.append(message)

        scope = {"type": "http", "method": method, "path": path, "raw_path": path.encode(), "query_string": b"",
                 "headers": headers, "http_version": "1.1", "scheme": "http"}  # fmt: skip
        bench._run(application(scope, receive, send))
        return messages_sent[0]["status"], messages_sent[1]["body"]

    try:
        yield ask, bench
    finally:
        bench.close()


@pytest.fixture
def app():
    with asking() as (ask, _):
        yield ask


@pytest.mark.parametrize("announced", [True, False])
@pytest.mark.parametrize("pieces", [1, 2, 5])
def test_a_body_may_have_exactly_as_many_bytes_as_allowed(announced, pieces):
    with asking(max_body_bytes=5000) as (ask, _):
        for size, status in ((5000, 200), (5001, 413)):
            body = BODY.ljust(size)
            headers = [(b"host", b"localhost"), (b"content-type", b"application/json")]
            headers += [(b"content-length", b"%d" % size)] * announced
            steps = [*range(0, size, size // pieces)][:pieces]
            chunks = [body[start:end] for start, end in zip(steps, [*steps[1:], size], strict=True)]
            messages = [{"type": "http.request", "body": chunk, "more_body": True} for chunk in chunks]
            messages[-1]["more_body"] = False
            assert ask("POST", "/rpc", headers, *messages)[0] == status


def test_a_body_that_is_cut_off_is_not_carried_out():
    with asking() as (ask, bench):
        session_id = bench.create()
        call = {"jsonrpc": "2.0", "method": "close_session", "params": [session_id], "id": 1}
        headers = [(b"host", b"localhost"), (b"content-type", b"application/json")]
        first = {"type": "http.request", "body": json.dumps(call).encode(), "more_body": True}
        status, body = ask("POST", "/rpc", headers, first, {"type": "http.disconnect"})
        assert (status, json.loads(body)["error"]["message"]) == (400, "The body was cut off.")
        assert bench.version(session_id) == 0


def test_an_application_is_ready_only_while_it_runs(make_bench):
    bench = make_bench()
    app = create_app(bench.service)

    async def run():
        states = [app.state.gateway.ready]
        async with app.router.lifespan_context(app):
            states.append(app.state.gateway.ready)
        return [*states, app.state.gateway.ready]

    assert bench._run(run()) == [False, True, False]


def test_an_open_application_without_tokens_is_refused(make_bench):
    bench = make_bench(host="0.0.0.0")
    with pytest.raises(SettingsError, match="tokens are needed"):
        create_app(bench.service)


@pytest.mark.parametrize("scheme", ["bearer", "BEARER", "Bearer"])
def test_the_scheme_of_a_token_is_case_insensitive(guarded, scheme):
    headers = JSON | {"Authorization": f"{scheme} ann-secret"}
    assert guarded.http.post("/rpc", content=BODY, headers=headers).status_code == 200


ONCE = {
    b"host": b"127.0.0.1",
    b"origin": b"http://localhost",
    b"authorization": b"Bearer x",
    b"content-type": b"application/json",
    b"content-length": b"%d" % len(BODY),
}


@pytest.mark.parametrize(
    "where", [("POST", "/rpc"), ("POST", "/agents/x"), ("GET", "/openrpc.json"), ("GET", "/metrics")]
)
@pytest.mark.parametrize("name", ONCE)
def test_security_headers_may_appear_only_once(app, where, name):
    headers = [*ONCE.items(), (b"accept", b"a"), (b"accept", b"b")]
    assert app(*where, headers)[0] == 200
    for twice in ([*headers, (name, ONCE[name])], [(name, b"other"), *headers]):
        status, body = app(*where, twice)
        error = json.loads(body)["error"]
        assert (status, error["code"], error["data"]) == (400, -32000, {"status": 400})
        assert error["message"] == f"The header {name.decode()} is duplicated: send it once."


def test_the_document_is_open_rpc_and_the_same_everywhere(server):
    document = server.http.get("/openrpc.json").json()
    assert document == server.rpc("rpc.discover")
    assert re.fullmatch(r"1\.\d+\.\d+", document["openrpc"])
    assert {"title", "version"} <= set(document["info"])
    names = [method["name"] for method in document["methods"]]
    assert {"create_session", "run_function", "rpc.discover"} <= {*names}
    codes = {error["code"] for error in document["components"]["errors"].values()}
    assert codes == {-32700, -32600, -32601, -32602, -32603, *range(-32014, -32000)}
    references = set(re.findall(r'"\$ref": "#/components/(\w+)/([^"/]+)"', json.dumps(document)))
    assert references
    assert all(name in document["components"][kind] for kind, name in references)
    for method in document["methods"]:
        assert {"name", "summary", "params", "result", "errors"} <= set(method)
        required = [parameter["required"] for parameter in method["params"]]
        assert required == sorted(required, reverse=True), "by position, those that are required come first"
        for parameter in method["params"]:
            assert parameter["name"]
            assert parameter["description"]
            assert isinstance(parameter["schema"], dict)


def test_parameters_are_in_the_documented_order(server):
    order = {m["name"]: [p["name"] for p in m["params"]] for m in server.rpc("rpc.discover")["methods"]}
    documented = {
        "create_session": ["toolpacks", "options", "environment", "ttl_seconds", "labels", "call_id"],
        "list_functions": ["session_id", "format"],
        "run_function": [
            "session_id", "function", "kwargs", "raise_on_error", "call_id", "expected_version", "timeout_seconds",
        ],
        "get_session": ["session_id"],
        "get_environment": ["session_id", "version", "pointer"],
        "diff_environment": ["session_id", "from_version", "to_version", "to_session_id"],
        "get_trace": ["session_id", "after", "limit", "path"],
        "fork_session": ["session_id", "version", "count", "labels", "ttl_seconds", "call_id"],
        "reset_session": ["session_id", "version", "call_id"],
        "close_session": ["session_id", "labels"],
        "list_sessions": ["labels", "after", "limit", "parent", "order"],
        "rpc.discover": [],
    }  # fmt: skip
    # New parameters come last, so clients that send parameters by position keep working.
    assert {name: order[name][: len(names)] for name, names in documented.items()} == documented


def test_many_clients_at_once(server):
    session_id = server.rpc("create_session", toolpacks=["ledger"])["session_id"]
    body = {"jsonrpc": "2.0", "id": 1, "method": "run_function", "params": [session_id, "add", {"amount": 1}]}
    with httpx.Client(base_url=server.url) as other:
        for _ in range(20):
            assert other.post("/rpc", json=body).json()["result"]["error"] is None
            assert server.http.post("/rpc", json=body).json()["result"]["error"] is None
    assert server.call(session_id, "total")["result"] == 40


@pytest.mark.heavy
def test_missing_protocol_says_how_to_install_it(bench, monkeypatch):
    assert create_app(bench.service).missing == ""
    monkeypatch.setattr(companions, "find_spec", lambda _: None)
    app = create_app(bench.service)
    request = Request({"type": "http", "app": app, "method": "GET", "path": "/nothing", "headers": []})
    reply = asyncio.run(app.exception_handlers[HTTPException](request, HTTPException(404)))
    assert json.loads(reply.body)["error"]["message"] == (
        "There is nothing at this path: POST to /rpc, or to an agent's /agents/<key> or /mcp/<key>. The paths of "
        "NeMo Gym, ORS, OpenEnv come with toolpack-trainers, which isn't installed: install the wheel of this version, "
        "or, in a clone of the repository, ./packages/toolpack-trainers."
    )
