"""`/mcp`: the first message of a client creates its session. The session's owner, continuation, end, and errors."""

from datetime import datetime, timedelta

import http_endpoint
import pytest
import serving
from mcp_endpoint import LEGACY, META, MODERN, refusal

from toolpack_server.features.protocols.mcp import own_session
from toolpack_server.packs.loading import load_catalog

CATALOG = load_catalog((serving.PACKS,), ("ledger", "chores", "bank"))
TOKENS = {"ann": "the-token-of-ann", "bob": "the-token-of-bob"}
CLIENT = {"protocolVersion": LEGACY[0], "capabilities": {}, "clientInfo": {"name": "a script", "version": "1"}}


class Door:
    """An MCP client that knows one address, and optionally an owner's token."""

    def __init__(self, endpoint, query="", token=None):
        self.http, self.path = endpoint.http, f"/mcp{query}"
        self.headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self.session = None

    def send(self, verb, message=None, **headers):
        all_headers = {**self.headers, **({"Mcp-Session-Id": self.session} if self.session else {}), **headers}
        return self.http.request(verb, self.path, json=message, headers=all_headers)

    def post(self, method, /, _headers=(), **params):
        message = {"jsonrpc": "2.0", "id": 7, "method": method, "params": params}
        return self.send("POST", message, **dict(_headers))

    def modern(self, method, **params):
        headers = {"MCP-Protocol-Version": MODERN, "Mcp-Method": method}
        if "name" in params:
            headers["Mcp-Name"] = params["name"]
        return self.post(method, headers, _meta=META, **params)

    def begin(self, **params):
        reply = self.post("initialize", **{**CLIENT, **params})
        assert reply.status_code == 200, reply.text
        self.session = reply.headers["mcp-session-id"]
        return reply.json()["result"]

    def call(self, name, **arguments):
        reply = self.post("tools/call", name=name, arguments=arguments)
        assert reply.status_code == 200, reply.text
        return reply.json()["result"]["content"][0]["text"]


@pytest.fixture(scope="module")
def endpoint():
    with http_endpoint.served("h11", catalog=CATALOG, log_calls="off") as served:
        yield served


@pytest.fixture(scope="module")
def owners():
    with http_endpoint.served("h11", catalog=CATALOG, log_calls="off", tokens=TOKENS) as served:
        yield served


def rpc(endpoint, owner, method, **params):
    headers = {"Authorization": f"Bearer {TOKENS[owner]}"}
    return serving.result_of(
        endpoint.http.post("/rpc", json=http_endpoint.request(method, **params), headers=headers).content
    )


def test_task_is_played_by_the_address_and_delete_records_it(endpoint):
    door = Door(endpoint, "?task=bank/save-300")
    greeting = door.begin()
    assert greeting["instructions"] == "Please put 300 euros aside on my savings account."
    names = [tool["name"] for tool in door.post("tools/list").json()["result"]["tools"]]
    assert names[0] == "get_iban"
    assert names[-1] == "submit_answer"
    assert door.call("get_balance") == "1840.25"
    door.call("move_to_savings", amount="300.00")
    assert door.call("submit_answer", answer="Done.") == "The answer has been submitted."
    ended = door.send("DELETE")
    assert (ended.status_code, ended.content) == (204, b"")
    (session,) = endpoint.rpc("list_sessions", labels={"mcp": "a script"}, passed=True)
    assert session["task"] == "bank/save-300"
    assert endpoint.rpc("evaluate_session", session_id=session["session_id"])["reward"] == 1.0


def test_rejected_answer_can_be_repeated_with_another_text(endpoint):
    door = Door(endpoint, "?task=bank/save-300")
    door.begin()

    def submit(answer, call_id):
        reply = door.post(
            "tools/call", name="submit_answer", arguments={"answer": answer}, _meta={"toolpack-server/call_id": call_id}
        )
        result = reply.json()["result"]
        return result["isError"], result["content"][0]["text"]

    refused, text = submit("x" * 300_000, "long")
    assert (refused, text.split(":")[0]) == (True, "TooLargeError")
    assert submit(3, "wrong") == (True, "ValidationError: answer: Input should be a valid string")
    accepted = (False, "The answer has been submitted.")
    assert [submit("Done.", "a"), submit("Done.", "a")] == [accepted, accepted]
    assert submit("Done.", "b")[1].startswith("AnsweredError: Another answer was submitted before")


def test_initialize_creates_a_session_once_per_call_id(endpoint):
    doors = [Door(endpoint, "?packs=ledger") for _ in range(4)]
    for door in doors[:2]:
        door.begin()
    for door in doors[2:]:
        door.begin(_meta={"toolpack-server/call_id": "once"})
    assert len({door.session for door in doors}) == 3
    assert doors[2].session == doors[3].session
    for door in doors[:2]:
        assert [door.call("add", amount=amount) for amount in (1, 2)] == ["1", "3"]
    # The session id is the key in the session's mcp_path.
    sessions = endpoint.rpc("list_sessions", labels={"mcp": "a script"}, limit=1000)
    paths = {endpoint.rpc("get_session", session_id=each["session_id"])["mcp_path"] for each in sessions}
    assert paths >= {f"/mcp/{door.session}" for door in doors}


def test_delete_evaluates_only_sessions_with_acts_of_their_agent(endpoint):
    for method in ("tools/list", "prompts/get"):
        idle = Door(endpoint, "?task=bank/save-300")
        idle.begin(clientInfo={"name": "idle"})
        idle.post(method, name="task")
        assert idle.send("DELETE").status_code == 204
        refusal(idle.post("tools/list"), 404, -33001)
    assert endpoint.rpc("list_sessions", labels={"mcp": "idle"}) == []
    for number, act in enumerate([("get_balance", {}), ("submit_answer", {"answer": "Done."})]):
        door = Door(endpoint, "?task=bank/save-300")
        door.begin(clientInfo={"name": f"acts {number}"})
        (session,) = endpoint.rpc("list_sessions", labels={"mcp": f"acts {number}"})
        for _ in range(101):  # The agent's records may come after a page of others.
            endpoint.rpc("run_function", session_id=session["session_id"], function="get_balance")
        door.call(act[0], **act[1])
        assert door.send("DELETE").status_code == 204
        assert len(endpoint.rpc("list_sessions", labels={"mcp": f"acts {number}"}, passed=False)) == 1


def expiry(endpoint, name):
    """Return the stored expiry time of the session with this label, and its creation time."""
    (session,) = endpoint.rpc("list_sessions", labels={"mcp": name})
    stored, _ = endpoint.app.state.gateway.service.context.store.get(session["session_id"])
    return stored.expires_at, stored.created_at


@pytest.mark.parametrize("method", ["notifications/initialized", "tools/list", "tools/call"])
def test_session_with_only_initialize_expires_in_a_minute(endpoint, method):
    name = f"idle {method}"
    door = Door(endpoint, "?task=bank/save-300")
    door.begin(clientInfo={"name": name})
    expires_at, created_at = expiry(endpoint, name)
    assert expires_at <= created_at + 61
    (summary,) = endpoint.rpc("list_sessions", labels={"mcp": name})
    lifetime = datetime.fromisoformat(summary["expires_at"]) - datetime.fromisoformat(summary["created_at"])
    assert lifetime <= timedelta(seconds=61)
    message = {"jsonrpc": "2.0", "method": method, "params": {"name": "get_balance"}}
    assert door.send("POST", message if method.startswith("n") else {**message, "id": 1}).status_code in {200, 202}
    assert expiry(endpoint, name)[0] > created_at + 3600


def test_unused_session_is_deleted_when_it_expires(endpoint, monkeypatch):
    monkeypatch.setattr(own_session, "UNUSED_SECONDS", 0)
    door = Door(endpoint, "?packs=ledger")
    door.begin(clientInfo={"name": "gone"})
    serving.wait_until(lambda: not endpoint.rpc("list_sessions", labels={"mcp": "gone"}), "its end")
    refusal(door.post("tools/list"), 404, -33001)
    # A named session remains.
    named = Door(endpoint, "?packs=ledger&session=stays")
    named.post("initialize", **CLIENT)
    expires_at, created_at = expiry(endpoint, "stays")
    assert expires_at > created_at + 3600


def test_session_name_overrides_the_header(endpoint):
    other = Door(endpoint, "?packs=ledger")
    other.begin()
    assert other.call("add", amount=50) == "50"
    named = Door(endpoint, "?packs=ledger&session=wins")
    named.session = other.session
    assert named.call("add", amount=1) == "1"
    named.session = "nobody"
    assert named.call("add", amount=2) == "3"
    assert named.modern("tools/call", name="add", arguments={"amount": 3}).json()["result"]["content"][0]["text"] == "6"
    assert other.call("add", amount=1) == "51"
    named.session = other.session
    reply = named.send("DELETE")
    assert "A named session isn't ended by its clients" in refusal(reply, 405, -32000)["message"]
    assert reply.headers["allow"] == "POST, OPTIONS"
    assert [door.call("add", amount=0) for door in (named, other)] == ["6", "51"]


def test_address_may_end_with_a_slash(endpoint):
    door = Door(endpoint, "/?packs=ledger&session=slash")
    assert door.call("add", amount=1) == "1"
    assert Door(endpoint, "?packs=ledger&session=slash").call("add", amount=1) == "2"
    own = Door(endpoint, "/?packs=ledger")
    own.begin()
    assert own.call("add", amount=1) == "1"
    assert own.send("DELETE").status_code == 204


def test_delete_closes_a_session_without_a_task(endpoint):
    door = Door(endpoint, "?packs=ledger")
    door.begin()
    assert door.send("DELETE").status_code == 204
    for reply in (door.post("tools/list"), door.post("tools/call", name="add", arguments={"amount": 1})):
        error = refusal(reply, 404, -33001)
        assert error["message"].startswith("No session has this id")
        assert reply.json()["id"] == 7
    assert refusal(door.send("DELETE"), 404, -32000)["message"].startswith("No session has this id")


def test_named_session_serves_both_eras(endpoint):
    door = Door(endpoint, "?packs=ledger&session=mine")
    called = door.modern("tools/call", name="add", arguments={"amount": 1}).json()["result"]
    assert called["content"][0]["text"] == "1"
    initialized = door.post("initialize", **CLIENT)
    assert "mcp-session-id" not in initialized.headers
    assert door.call("add", amount=2) == "3"
    assert MODERN in door.modern("server/discover").json()["result"]["supportedVersions"]
    (session,) = endpoint.rpc("list_sessions", labels={"mcp": "mine"})
    assert session["version"] == 2
    error = refusal(Door(endpoint, "?packs=bank&session=mine").post("tools/list"), 200, -32602)
    assert "The session 'mine' has other packs, another task or another seed" in error["message"]


def test_modern_client_without_a_session_must_initialize_first(endpoint):
    door = Door(endpoint, "?packs=ledger")
    for method, params in [("server/discover", {}), ("tools/list", {}), ("tools/call", {"name": "add"})]:
        error = refusal(door.modern(method, **params), 400, -32022)
        assert error["data"] == {"supported": [*LEGACY], "requested": MODERN}
    assert endpoint.rpc("list_sessions", labels={"mcp": ""}) == []
    door.begin()
    called = door.modern("tools/call", name="add", arguments={"amount": 1}).json()["result"]
    assert called["isError"] is False


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("?packs=nope", "nope"),
        ("?task=bank/nope", "bank/nope"),
        ("?task=", "task"),
        ("?packs=", "toolpack"),
        ("?cheat=1", "The address has an unknown parameter 'cheat': use packs, task, seed, session."),
        ("?task=bank/save-300&task=x", "The address has a parameter twice: give each parameter once."),
        ("?session=", "The parameter `session` of the address must have 1 to 64 characters."),
        ("?session=" + "x" * 65, "The parameter `session` of the address must have 1 to 64 characters."),
        ("?packs=ledger&seed=" + "x" * 5000, "seed"),
    ],
)
def test_invalid_address_is_rejected_in_a_sentence(endpoint, query, says):
    before = len(endpoint.rpc("list_sessions", limit=1000))
    error = refusal(Door(endpoint, query).post("initialize", **CLIENT), 200, -32602)
    assert says in error["message"]
    assert "Traceback" not in error["message"]
    assert len(endpoint.rpc("list_sessions", limit=1000)) == before


@pytest.mark.parametrize("key", ["nobody", "é", "x" * 4000])
def test_unknown_session_id_is_not_found(endpoint, key):
    door = Door(endpoint, "?packs=ledger")
    reply = door.post("tools/list", {"Mcp-Session-Id": key.encode()})
    assert refusal(reply, 404, -33001)
    assert reply.json()["id"] == 7
    refusal(door.send("DELETE", **{"Mcp-Session-Id": key.encode()}), 404, -32000)


def test_message_without_a_session_is_rejected(endpoint):
    door = Door(endpoint)
    for method in ("tools/list", "ping", "tools/call"):
        reply = door.post(method)
        assert (
            "Which session? This client doesn't send Mcp-Session-Id back. Give the address a session name, as in "
            "/mcp?packs=bank&session=NAME, or use the mcp_path of a session." in refusal(reply, 400, -32600)["message"]
        )
        assert reply.json()["id"] == 7
    assert (
        refusal(door.send("DELETE"), 400, -32000)["message"]
        == "The request names no session: send the header Mcp-Session-Id."
    )
    refusal(door.http.post("/mcp", content=b"{", headers={"Content-Type": "application/json"}), 400, -32700)
    reply = door.http.get("/mcp", headers={"Accept": "text/event-stream"})
    refusal(reply, 405, -32000)
    assert reply.headers["allow"] == "POST, DELETE, OPTIONS"


def test_session_belongs_to_the_owner_of_the_token(owners):
    doors = {name: Door(owners, "?packs=ledger", token) for name, token in TOKENS.items()}
    for reply in (Door(owners).post("initialize", **CLIENT), Door(owners, token="guessed").send("DELETE")):
        assert reply.status_code in {400, 401}
    assert refusal(Door(owners).post("initialize", **CLIENT), 401, -32000)
    for door in doors.values():
        door.begin()
        assert door.call("add", amount=1) == "1"
    assert len(rpc(owners, "ann", "list_sessions")) == 1
    stolen = Door(owners, "", TOKENS["bob"])
    stolen.session = doors["ann"].session
    refusal(stolen.post("tools/list"), 404, -33001)
    refusal(stolen.send("DELETE"), 404, -32000)
    without = Door(owners)
    without.session = doors["ann"].session
    refusal(without.post("tools/list"), 401, -32000)
    # Each owner has separate names.
    named = [Door(owners, "?packs=ledger&session=same", token) for token in TOKENS.values()]
    assert [door.call("add", amount=5) for door in named] == ["5", "5"]
    assert doors["ann"].send("DELETE").status_code == 204
    assert doors["bob"].call("add", amount=1) == "2"


def test_body_limit_of_agents_applies():
    with http_endpoint.served("h11", catalog=CATALOG, log_calls="off", max_body_bytes=32_000) as small:
        door = Door(small, "?packs=ledger")
        reply = door.post("initialize", **CLIENT, padding="x" * 3000)
        assert "TOOLPACK_MAX_BODY_BYTES" in refusal(reply, 413, -32000)["message"]
        # The result of a call may still be larger.
        door.begin()
        assert door.call("repeat", text="\0", times=170_000) == "\0" * 170_000


def test_pages_of_this_machine_may_read_the_session_id(endpoint):
    door = Door(endpoint, "?packs=ledger")
    origin = {"Origin": "http://localhost:6274"}
    assert door.post("initialize", origin, **CLIENT).headers["access-control-expose-headers"] == "Mcp-Session-Id"
    reply = door.send("OPTIONS", **origin)
    assert reply.headers["access-control-allow-methods"] == "POST, DELETE"
    refusal(door.post("initialize", {"Origin": "https://example.org"}, **CLIENT), 403, -32000)
