"""Access: tokens and the file of their hashes, loopback without tokens, and the agent's address.

Replies to unauthorised requests are identical to the byte, whether or not the address exists. No file, log line or
answer contains a secret.
"""

import base64
import json
import re
import socket
import subprocess
from pathlib import Path

import pytest
import server_process
import serving
from http_server import running
from patience import PATIENCE
from serving import AGENTS_METHODS, CLIENTS_METHODS, PACKS, result_of

from toolpack_server import client as python_client
from toolpack_server.base.errors import HttpRefusedError, SettingsError
from toolpack_server.base.settings import Settings
from toolpack_server.cli.serve import serve
from toolpack_server.web.auth import TokenGate, new_token

ANN, BOB, FILED = "ann-s3cret-token", "bob-s3cret-token", "filed-s3cret-token"
JSON = {"Content-Type": "application/json"}
UNKNOWN = "0" * 32


def request(method, number=1, **params):
    return {"jsonrpc": "2.0", "id": number, "method": method, "params": params}


class Client:
    """Sends requests with one token, or none."""

    def __init__(self, server, token=None):
        self.http = server.http
        self.headers = JSON | ({"Authorization": f"Bearer {token}"} if token else {})

    def post(self, path, body, **headers):
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self.http.post(path, content=content, headers=self.headers | headers)

    def rpc(self, method, **params):
        return result_of(self.post("/rpc", request(method, **params)).content)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("guarded")
    token, line = new_token("filed")
    (folder / "tokens").write_text(f"# who may come in\n\n{line}\n")
    (folder / "filed").write_text(token)
    return folder


@pytest.fixture(scope="module")
def server(folder):
    with server_process.served(
        folder,
        "--store", "memory:",
        TOOLPACK_TOKENS=f"ann:{ANN},bob:{BOB}",
        TOOLPACK_TOKENS_FILE=str(folder / "tokens"),
        TOOLPACK_LOG_CALLS="json",
    ) as running:  # fmt: skip
        yield running


@pytest.fixture
def ann(server):
    return Client(server, ANN)


@pytest.fixture
def bob(server):
    return Client(server, BOB)


# The file of hashes


def test_a_token_of_the_file_is_accepted(server, folder):
    filed = Client(server, (folder / "filed").read_text())
    assert filed.rpc("list_sessions") == []


def test_a_hash_is_no_token(server, folder):
    digest = (folder / "tokens").read_text().strip().rpartition(":")[2]
    assert Client(server, digest).post("/rpc", request("list_sessions")).status_code == 401


def gate(tmp_path, text, **settings):
    (tmp_path / "tokens").write_text(text)
    return TokenGate(Settings(tokens_file=tmp_path / "tokens", **settings))


def owner(gate, token):
    return gate.owner({b"authorization": f"Bearer {token}".encode()})


def test_the_command_prints_a_line_that_works(tmp_path):
    process = subprocess.run(server_process.command("token", "carol"), capture_output=True, text=True, check=True)
    token = process.stderr.rpartition(" ")[2].strip()
    assert token not in process.stdout
    assert len(token) >= 32
    gate_of_file = gate(tmp_path, process.stdout)
    assert owner(gate_of_file, token) == "carol"
    with pytest.raises(HttpRefusedError):
        owner(gate_of_file, token + "x")


def test_only_a_known_token_is_accepted(tmp_path):
    token, line = new_token("carol")
    gate_of_file = gate(tmp_path, line)
    for wrong in (*map(str, range(3000)), token[:-1], token + "x", token.swapcase(), line, line.rpartition(":")[2]):
        with pytest.raises(HttpRefusedError) as refused:
            owner(gate_of_file, wrong)
        assert refused.value.status == 401
    assert owner(gate_of_file, token) == "carol"


@pytest.mark.parametrize("digit", [0, 31, -1])
def test_a_hash_is_compared_whole(tmp_path, digit):
    token, line = new_token("carol")
    name, digits = line.split(":")
    other = [*digits]
    other[digit] = "1" if digits[digit] == "0" else "0"
    with pytest.raises(HttpRefusedError):
        owner(gate(tmp_path, f"{name}:{''.join(other)}"), token)


def test_a_name_may_have_several_tokens_in_the_file(tmp_path):
    (one, first), (other, second) = new_token("carol"), new_token("carol")
    gate_of_file = gate(tmp_path, f"{first}\r\n  # old\n{second}\n")
    assert owner(gate_of_file, one) == owner(gate_of_file, other) == "carol"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "has no token"),
        ("# nobody\n", "has no token"),
        ("carol\n", "Line 1 of the tokens file is not name:hash"),
        (f"ann:{'0' * 64}\ncarol:s3cret\n", "Line 2 of the tokens file is not name:hash"),
        (f":{'0' * 64}\n", "Line 1"),
        (f"ann:{'0' * 63}\n", "Line 1 of the tokens file is not name:hash"),
        (f"ann:{'0' * 65}\n", "Line 1 of the tokens file is not name:hash"),
        (f"ann:{'A' * 64}\n", "Line 1 of the tokens file is not name:hash"),
        (f"ann:{'0' * 64}\nbob:{'0' * 64}\n", "Line 2 of the tokens file has the token of another owner"),
    ],
)
def test_an_error_in_the_file_names_only_the_line(tmp_path, text, says):
    with pytest.raises(SettingsError) as wrong:
        gate(tmp_path, text)
    assert says in str(wrong.value)
    assert "s3cret" not in str(wrong.value)
    assert str(tmp_path) not in str(wrong.value)


def test_blanks_and_a_byte_order_mark_are_no_part_of_a_line(tmp_path):
    token, line = new_token("carol")
    assert owner(gate(tmp_path, f"\ufeff {line.replace(':', ' : ')} \r\n"), token) == "carol"


def test_a_missing_file_is_an_error(tmp_path):
    with pytest.raises(SettingsError, match=r"can't be read: No such file or directory\. Correct TOOLPACK_TOKENS_FILE"):
        TokenGate(Settings(tokens_file=tmp_path / "none"))


@pytest.mark.parametrize("name", ["", "#x", " x", "x\n", "a\nb", "\x1b"])
def test_an_unusable_name_is_refused(name):
    with pytest.raises(SettingsError, match="A name is printable text"):
        new_token(name)


# Sessions from the time without tokens


def with_tokens(tmp_path, *tokens):
    settings = {"store": f"sqlite:///{tmp_path}/sessions.db", "data_dir": tmp_path, "log_calls": "off"}
    return running(serving.CATALOG, **settings, tokens=dict(token.split(":") for token in tokens))


def test_sessions_without_owner_are_logged_and_reachable(tmp_path, caplog):
    def list_ids(url, token):
        with python_client.Client(url, token=token) as client:
            return [session["session_id"] for session in client.list_sessions()]

    def warnings():
        return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]

    with with_tokens(tmp_path) as url, python_client.Client(url) as client:
        session = client.create_session(["ledger"])
        client.run_function(session["session_id"], "add", {"amount": 2})
    assert warnings() == []
    with with_tokens(tmp_path, f"ann:{ANN}") as url:
        (warning,) = serving.wait_until(warnings, "the log")
        assert list_ids(url, ANN) == []
    assert warning.startswith("1 session was created without a token, so no owner can use it")
    assert "nobody:TOKEN" in warning
    caplog.clear()
    with with_tokens(tmp_path, f"ann:{ANN}", f"nobody:{BOB}") as url:
        assert list_ids(url, BOB) == [session["session_id"]]
        with python_client.AgentClient(url + session["agent_path"]) as agent:
            assert agent.run_function("total")["result"] == 2
        with python_client.Client(url, token=BOB) as client:
            bundle = client.export_bundle(session["session_id"])["bundle"]
        with python_client.Client(url, token=ANN) as client:
            assert client.import_bundle(bundle)["version"] == 1
        assert len(list_ids(url, ANN)) == 1
    assert warnings() == []


# Sessions of two owners


def made_up(schema):
    """Return a value that fits the schema of a parameter."""
    return schema["enum"][0] if "enum" in schema else {"string": "x", "integer": 0, "object": {}}[schema["type"]]


def every_method(session_id):
    """Return a request for each method on one session, and variants for methods that check the session first."""
    parameters = {}
    for method in CLIENTS_METHODS:
        schema = method.model_json_schema()
        if "session_id" in method.model_fields:
            needed = {name: made_up(schema["properties"][name]) for name in schema.get("required", [])}
            parameters[method.declared.name] = needed | {"session_id": session_id}
    assert len(parameters) > 14
    run = {"session_id": session_id, "function": "add", "kwargs": {"amount": 1}}
    return [
        *parameters.items(),
        ("get_environment", {"session_id": session_id, "version": 99, "pointer": "/none"}),
        ("get_trace", {"session_id": session_id, "after": 5}),
        ("reset_session", {"session_id": session_id, "version": 99}),
        ("run_function", run),
        ("run_function", run | {"function": "none"}),
        ("run_function", run | {"kwargs": {}, "raise_on_error": True}),
        ("run_function", run | {"call_id": "recorded"}),
        ("run_function", run | {"call_id": "recorded", "function": "total"}),
        ("run_function", run | {"expected_version": 77}),
    ]


def test_other_and_unknown_sessions_get_identical_answers(ann, bob):
    session_id = ann.rpc("create_session", toolpacks=["ledger"])["session_id"]
    ann.rpc("run_function", session_id=session_id, function="add", kwargs={"amount": 1}, call_id="recorded")
    before = ann.rpc("get_trace", session_id=session_id), ann.rpc("get_environment", session_id=session_id)
    closed = ann.rpc("create_session", toolpacks=["ledger"])["session_id"]
    ann.rpc("close_session", session_id=closed)
    requests = [every_method(one) for one in (session_id, UNKNOWN, closed)]
    for anothers, unknown, closed_request in zip(*requests, strict=True):
        replies = [
            bob.post("/rpc", request(method, **params)) for method, params in (anothers, unknown, closed_request)
        ]
        assert {reply.status_code for reply in replies} == {200}
        assert len({reply.content for reply in replies}) == 1, anothers
        assert replies[0].json()["error"]["code"] == -32001, anothers
        names = [sorted(set(reply.headers) - {"x-request-id"}) for reply in replies]
        assert names[0] == names[1] == names[2]
    assert before == (ann.rpc("get_trace", session_id=session_id), ann.rpc("get_environment", session_id=session_id))
    assert bob.rpc("close_session", labels={"x": "y"}) == 0


def test_lists_and_closings_reach_only_own_sessions(ann, bob):
    mine = ann.rpc("create_session", toolpacks=["ledger"], labels={"run": "1"})["session_id"]
    his = bob.rpc("create_session", toolpacks=["ledger"], labels={"run": "1"})["session_id"]
    assert [session["session_id"] for session in bob.rpc("list_sessions", labels={"run": "1"})] == [his]
    assert bob.rpc("close_session", labels={"run": "1"}) == 1
    assert ann.rpc("get_session", session_id=mine)["version"] == 0


# The agent's address


AGENTS = [method.declared.name for method in AGENTS_METHODS]


def test_an_agent_has_six_methods_and_learns_of_no_other(server, ann):
    session = ann.rpc("create_session", toolpacks=["ledger"])
    agent = Client(server)
    assert AGENTS == ["list_functions", "run_function", "get_task", "submit_answer", "say", "listen"]
    for method in {method.declared.name for method in CLIENTS_METHODS} - {*AGENTS}:
        error = agent.post(session["agent_path"], request(method)).json()["error"]
        assert (error["code"], error["message"]) == (-32601, "Method not found")
        assert error["data"] == {"detail": f"There is no method {method!r} here. Methods: {', '.join(AGENTS)}."}
    for method in AGENTS:
        for session_id in (session["session_id"], UNKNOWN, None):
            error = agent.post(session["agent_path"], request(method, session_id=session_id, function="add")).json()[
                "error"
            ]
            assert error["code"] == -32602
            assert "session_id: Extra inputs are not permitted" in error["data"]["detail"]
    assert ann.rpc("get_session", session_id=session["session_id"])["version"] == 0


def test_an_agent_may_send_batches(server, ann):
    session = ann.rpc("create_session", toolpacks=["ledger"])
    add = {"function": "add", "kwargs": {"amount": 2}}
    batch = [request("run_function", 1, **add), request("get_trace", 2), request("run_function", 3, **add), 4]
    replies = Client(server).post(session["agent_path"], batch).json()
    assert [answer["id"] for answer in replies] == [1, 2, 3, None]
    assert [answer.get("error", {}).get("code") for answer in replies] == [None, -32601, None, -32600]
    assert replies[2]["result"] == {"result": 4, "error": None}


def test_unknown_and_closed_keys_get_identical_answers(server, ann):
    session = ann.rpc("create_session", toolpacks=["ledger"])
    agent = Client(server)
    add = request("run_function", function="add", kwargs={"amount": 2})
    assert agent.post(session["agent_path"], add).json()["result"]["result"] == 2
    ann.rpc("close_session", session_id=session["session_id"])
    for body in (add, request("list_functions"), request("get_session"), request("run_function", function=1), [add]):
        paths = [
            session["agent_path"],
            f"/agents/{UNKNOWN}",
            "/agents/x",
            "/agents/%00%ff",
            f"/agents/{session['session_id']}",
        ]
        assert len({agent.post(path, body).content for path in paths}) == 1
    assert agent.post(session["agent_path"], add).json()["error"]["code"] == -32001


def test_an_agents_key_opens_nothing_else(server, ann):
    key = ann.rpc("create_session", toolpacks=["ledger"])["agent_path"].rpartition("/")[2]
    assert Client(server, key).post("/rpc", request("list_sessions")).status_code == 401
    with pytest.raises(serving.RpcError) as unknown:
        ann.rpc("get_session", session_id=key)
    assert unknown.value.code == -32001


# Without tokens


@pytest.fixture(scope="module")
def local(tmp_path_factory):
    with server_process.served(tmp_path_factory.mktemp("local"), "--store", "memory:") as running:
        yield running


def exchange(server, *lines):
    """Send headers verbatim, and return the status and the body."""
    port = int(server.url.rpartition(":")[2])
    body = json.dumps(request("list_sessions")).encode()
    head = ["POST /rpc HTTP/1.1", "Content-Type: application/json", "Connection: close", f"Content-Length: {len(body)}"]
    with socket.create_connection(("127.0.0.1", port), timeout=serving.PATIENCE) as connection:
        connection.sendall("\r\n".join([*head, *lines, "", ""]).encode("latin-1") + body)
        text = b""
        while data := connection.recv(65536):
            text += data
    return int(text.split()[1]), json.loads(text.partition(b"\r\n\r\n")[2])


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "127.0.0.1:8000", "localhost", "LOCALHOST:1", "LocalHost", "[::1]", "[::1]:8000", "127.1.2.3"]
)
def test_names_of_this_machine_are_served(local, host):
    assert exchange(local, f"Host: {host}")[0] == 200


@pytest.mark.parametrize(
    "host",
    [
        "", "localhost.evil.com", "127.0.0.1.evil", "evil.com:127.0.0.1", "user@127.0.0.1", "127.0.0.1@evil.com",
        "user:127.0.0.1@evil.com", "localhost.",
        "127.0.0.1.", "127.0.0.1/evil.com", "evil.com/127.0.0.1", "127.0.0.1#evil",
        "localhost\\evil.com", "localhost evil.com", "localhost,evil.com", "xn--localhost", "0.0.0.0", "[::]",
        "[::1].evil",
        "[::1", "::1]", "[evil]", "[::ffff:1.2.3.4]", "192.168.0.1", "2130706433", "0x7f.1", "127.1", "localhost:80:80",
        "localhost:x", "\xb9\xb2\xb7.0.0.1",
    ],
)  # fmt: skip
def test_other_names_are_403_with_one_shape(local, host):
    status, body = exchange(local, f"Host: {host}")
    assert (status, body["error"]["code"], body["error"]["data"]) == (403, -32000, {"status": 403})


@pytest.mark.parametrize("hosts", [("127.0.0.1", "evil.com"), ("evil.com", "127.0.0.1"), ("127.0.0.1", "127.0.0.1")])
def test_two_host_headers_are_400(local, hosts):
    assert exchange(local, *(f"Host: {host}" for host in hosts))[0] == 400


def test_without_a_host_nothing_is_served(local):
    assert exchange(local)[0] in {400, 403}


@pytest.mark.parametrize(
    "origin",
    ["http://evil.com", "null", "", "http://127.0.0.1.evil.com", "http://user@localhost", "http://localhost.evil.com",
     "http://evil.com://localhost", "file://", "chrome-extension://abc"],
)  # fmt: skip
def test_other_origins_are_403(local, origin):
    assert exchange(local, "Host: 127.0.0.1", f"Origin: {origin}")[0] == 403


def test_metrics_and_documents_are_guarded_like_the_rest(local, server):
    for path in ("/metrics", "/openrpc.json"):
        assert local.http.get(path).status_code == 200
        assert local.http.get(path, headers={"Host": "evil.com"}).status_code == 403
        assert server.http.get(path).status_code == 401
        assert server.http.get(path, headers={"Authorization": f"Bearer {ANN}"}).status_code == 200
    for path in ("/healthz", "/readyz"):
        assert server.http.get(path, headers={"Host": "evil.com"}).status_code == 200


def test_metrics_name_no_function_if_several_have_tokens(tmp_path):
    with server_process.served(tmp_path, "--store", "memory:", TOOLPACK_TOKENS=f"ann:{ANN},bob:{BOB}") as server:
        ann, bob = Client(server, ANN), Client(server, BOB)
        session_id = bob.rpc("create_session", toolpacks=["ledger"])["session_id"]
        bob.rpc("run_function", session_id=session_id, function="total")
        for client in (ann, bob):
            text = server.http.get("/metrics", headers=client.headers).text
            assert "toolpack_sessions 1" in text
            assert "ledger" not in text
            assert "total{" not in text


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_an_open_address_without_tokens_cannot_start(tmp_path, host):
    process = subprocess.run(
        server_process.command("serve", "--host", host, "--port", "0", "--data-dir", str(tmp_path)),
        env=server_process.environment(), capture_output=True, text=True, timeout=PATIENCE, check=False,
    )  # fmt: skip
    assert process.returncode == 1
    assert "can be reached from other machines, so tokens are needed" in process.stderr
    assert "--no-auth" in process.stderr
    assert "\\n" not in process.stderr  # an escaped line end
    assert process.stdout == ""


OPEN = Settings(host="0.0.0.0", no_auth=True, host_names=("Tools.example", "tools"))


def gate_says(settings, host, origin=None):
    """Return the gate's answer to a request with these headers: its status, or 200."""
    headers = {b"host": host.encode()} | ({b"origin": origin.encode()} if origin else {})
    try:
        TokenGate(settings).owner(headers)
    except HttpRefusedError as error:
        return error.status
    return 200


@pytest.mark.parametrize(
    ("host", "origin", "status"),
    [
        *((host, None, 200) for host in ("10.0.0.7:8000", "[fd00::1]:8000", "localhost", "TOOLS:80", "tools.example")),
        *((host, None, 403) for host in ("evil.example", "tools.example.evil.example", "", "10.0.0.7.evil.example")),
        ("10.0.0.7:8000", "http://10.0.0.7:8000", 200),
        ("tools.example", "https://tools.example", 200),
        ("127.0.0.1:8000", "http://localhost:3000", 200),
        ("10.0.0.7:8000", "http://evil.example", 403),
        ("10.0.0.7:8000", "http://10.6.6.6", 403),
        ("10.0.0.7:8000", "null", 403),
        ("tools.example", "http://localhost", 403),
    ],
)
def test_without_tokens_other_origins_get_no_page(host, origin, status):
    assert gate_says(OPEN, host, origin) == status


def test_a_name_for_a_proxy_on_the_same_machine():
    assert gate_says(Settings(), "tools.example") == 403
    assert gate_says(Settings(host_names=("tools.example",)), "tools.example", "https://tools.example") == 200
    assert gate_says(Settings(host_names=("tools.example",)), "10.0.0.7") == 403


def test_only_hosts_of_the_flag_are_served(tmp_path):
    flags = ["--store", "memory:", "--host", "0.0.0.0", "--no-auth", "--host-name", "tools", "--host-name", "other"]
    body = json.dumps(request("list_toolpacks"))
    with server_process.served(tmp_path, *flags) as server:
        hosts = ["tools", "other:8000", "evil.example"]
        statuses = [server.http.post("/rpc", content=body, headers=JSON | {"Host": host}).status_code for host in hosts]
        assert statuses == [200, 200, 403]


def test_a_tokens_file_is_enough_for_an_open_address(folder, tmp_path):
    variables = {"TOOLPACK_TOKENS_FILE": str(folder / "tokens")}
    body, token = json.dumps(request("list_sessions")), (folder / "filed").read_text()
    with server_process.served(tmp_path, "--store", "memory:", "--host", "0.0.0.0", **variables) as running:
        assert running.http.post("/rpc", content=body, headers=JSON).status_code == 401
        headers = JSON | {"Authorization": f"Bearer {token}"}
        assert running.http.post("/rpc", content=body, headers=headers).status_code == 200


def test_the_compose_file_has_no_secret_and_asks_for_both():
    text = (Path(__file__).parents[2] / "compose.yaml").read_text(encoding="utf-8")
    for name in ("TOOLPACK_SECRET_KEY", "TOOLPACK_TOKENS"):
        assert re.search(rf"^      {name}: \$\{{{name}:\?[^}}]+\}}$", text, re.MULTILINE)
    flags = re.findall(r"^      - (--[a-z-]+)=", text, re.MULTILINE)
    options = {option for parameter in serve.params for option in parameter.opts}
    assert set(flags) <= options


# Written secrets


def test_no_secret_is_ever_written(server, folder, ann, bob):
    session = ann.rpc("create_session", toolpacks=["ledger"])
    session_id, path = session["session_id"], session["agent_path"]
    key = path.rpartition("/")[2]
    replies = []

    def send(client, where, body, **headers):
        replies.append(client.post(where, body, **headers).content)

    agent = Client(server)
    for client in (agent, bob, Client(server, ANN + "x")):
        for where in ("/rpc", path, f"{path}/", f"{path}/more", f"/rpc/{key}", f"/{key}?{ANN}", f"/agents/?key={key}"):
            send(client, where, request("list_functions"), **{"X-Request-ID": "ours"})
            send(client, where, b"{", Cookie=ANN)
    for where in (path, f"/rpc?token={ANN}", f"/sessions/{session_id}", f"/{ANN}"):
        replies += [
            server.http.request(method, where).content for method in ("GET", "PUT", "DELETE", "OPTIONS", "POST")
        ]
    for one in (session_id, key):
        send(ann, "/rpc", request("run_function", session_id=one, function=one, kwargs={"amount": one}))
        send(ann, "/rpc", request("run_function", session_id=session_id, function=f"get {one}"))
        send(bob, "/rpc", request("get_trace", session_id=one))
    send(ann, "/rpc", request("run_function", session_id=session_id, function="echo", kwargs={"value": ANN}))
    send(ann, "/rpc", request("run_function", session_id=session_id, function="add_then", kwargs={"how": "raise"}))
    for raw in (
        f"GET {path} HTTP/9\r\n\r\n",
        f"{key}\r\n\r\n",
        f"POST {path} HTTP/1.1\r\nAuthorization: {ANN}\r\nX\r\n\r\n",
    ):
        with socket.create_connection(
            ("127.0.0.1", int(server.url.rpartition(":")[2])), timeout=PATIENCE
        ) as connection:
            connection.sendall(raw.encode())
            replies.append(connection.recv(65536))
    text = (folder / "server.log").read_text() + server.banner
    assert session_id[:8] in text
    output = b"".join(replies)
    encoded, token = base64.b64encode(ANN.encode()).decode(), (folder / "filed").read_text()
    for secret in (ANN, BOB, key, session_id, encoded, token, str(folder), str(PACKS), "Traceback"):
        assert secret not in text
    for secret in (BOB, token, str(folder), str(PACKS), "Traceback"):
        assert secret.encode() not in output
