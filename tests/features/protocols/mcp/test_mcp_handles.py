"""Handles of long calls: MCP's extension for tasks. The server stores no handle, because a handle's id has the call."""

import contextlib
import sys
import threading
from types import SimpleNamespace

import http_endpoint
import mcp_endpoint
import pytest
import server_process
from hypothesis import given
from hypothesis import strategies as st
from mcp_endpoint import META, MODERN, Mcp, refusal
from mcp_handles import ACCEPTS, CALL_ID, ENDED, TASKS, HandleClient
from serving import PATIENCE, wait_until

from toolpack_server.base.errors import InvalidParamsError
from toolpack_server.features.protocols.mcp import handles
from toolpack_server.features.protocols.mcp.handles import Handle, HandleIds
from toolpack_server.jsonio.strict import dumps, loads
from toolpack_server.packs.loading import load_catalog

conformance = sys.modules["toolpacks.conformance"]
NOT_HERE = "There is no such task here"


@pytest.fixture(scope="module")
def server():
    with mcp_endpoint.served() as served, pytest.MonkeyPatch.context() as patch:
        patch.setattr(handles, "WAIT_SECONDS", 0.05)
        yield served


@pytest.fixture
def client(mcp):
    return HandleClient(mcp.http, mcp.path)


@contextlib.contextmanager
def running(client, gate, call_id=None, number=1):
    """Yield the handle of a call that runs until the block ends, or the gate is opened."""
    conformance.gates[gate] = threading.Event()
    handle = client.call("count_and_wait", call_id, number=number, gate=gate)
    assert (handle["resultType"], handle["status"]) == ("task", "working")
    wait_until(lambda: gate in conformance.started, "the function")
    try:
        yield handle
    finally:
        conformance.gates[gate].set()


def end_of(client, handle):
    """Poll until the call has ended."""
    wait_until(lambda: client.get(handle)["status"] in ENDED, "the end of the call")
    return client.get(handle)


def test_long_call_is_answered_with_a_handle_and_polled(mcp, client):
    with running(client, "polled", "mine") as handle:
        assert handle.keys() == {
            *("resultType", "_meta", "taskId", "status", "createdAt", "lastUpdatedAt", "ttlMs", "pollIntervalMs")
        }
        assert (handle["ttlMs"], handle["pollIntervalMs"]) == (None, 500)
        for _ in range(3):
            polled = client.get(handle)
            assert (polled.pop("resultType"), polled) == (
                "complete",
                {k: v for k, v in handle.items() if k != "resultType"},
            )
        second_handle = client.call("count_and_wait", "mine", number=1, gate="polled")  # the same call
    ended = end_of(client, handle)
    assert (ended["resultType"], ended["status"]) == ("complete", "completed")
    assert end_of(client, second_handle)["result"] == ended["result"]
    repeated = mcp.call(MODERN, "count_and_wait", _meta={CALL_ID: "mine"}, number=1, gate="polled")
    assert ended["result"] == {key: value for key, value in repeated.items() if key != "_meta"}
    assert [client.get(handle) for _ in range(2)] == [ended] * 2
    assert ended["lastUpdatedAt"] > ended["createdAt"] == handle["createdAt"]
    (record,) = mcp.rpc("get_trace")
    assert (record["call_id"], record.get("failure")) == ("mine", None)
    assert mcp.counts() == [1]


def result_of(client, answer):
    """Return the result of a call from its answer, which is the result or a handle to poll."""
    return answer if answer["resultType"] == "complete" else end_of(client, answer)["result"]


def test_short_call_is_answered_at_once(client, monkeypatch):
    monkeypatch.setattr(handles, "WAIT_SECONDS", PATIENCE)
    result = client.call("count", number=3)
    assert (result["resultType"], result["structuredContent"]) == ("complete", {"counts": [3]})
    failed = client.call("test_error_handling")
    assert (failed["resultType"], failed["isError"]) == ("complete", True)
    refusal(client.post("tools/call", name="nothing", arguments={}), 200, -32602)
    assert client.ask("tools/call", name="count", arguments="not an object")["isError"] is True


def test_only_the_modern_era_announces_the_extension(mcp, client):
    assert client.ask("server/discover")["capabilities"]["extensions"] == {TASKS: {}}
    assert "extensions" not in mcp.legacy("initialize").json()["result"]["capabilities"]
    refusal(mcp.legacy("tasks/get", taskId="x"), 200, -32601)


@pytest.mark.parametrize("method", ["tasks/get", "tasks/update", "tasks/cancel"])
@pytest.mark.parametrize(
    "capabilities", [{}, {"extensions": {}}, {"extensions": {"other": {}}}, {"extensions": [TASKS]}]
)
def test_client_without_the_extension_gets_no_handle(mcp, client, method, capabilities):
    meta = {"io.modelcontextprotocol/clientCapabilities": capabilities}
    with running(client, f"undeclared {method} {capabilities}") as handle:
        reply = mcp.modern(method, {"Mcp-Name": handle["taskId"]}, meta, taskId=handle["taskId"])
        error = refusal(reply, 400, -32021)
        assert error["data"] == {"requiredCapabilities": {"extensions": {TASKS: {}}}}
    reply = mcp.modern("tools/call", {}, meta, name="test_tool_with_progress", arguments={"seconds": 0.15})
    assert reply.json()["result"]["content"][0]["text"] == "waited 0.15 s"


def test_id_of_a_handle_is_valid_at_its_address_only(mcp, client):
    with running(client, "own") as handle:
        task_id = handle["taskId"]
        other = HandleClient(mcp.http, Mcp(mcp.endpoint).path)
        packed, _, digits = task_id.rpartition(".")
        wrong = [
            task_id[:-1],
            task_id[1:],
            packed,
            f"{packed}.",
            f"{packed}.{digits[::-1]}",
            "",
            ".",
            "x" * 5000,
            "é.é",
        ]
        for method in ("tasks/get", "tasks/update", "tasks/cancel"):
            assert NOT_HERE in refusal(other.post(method, taskId=task_id), 200, -32602)["message"]
            for each in wrong:
                headers = {"Mcp-Name": "=?base64?w6kuw6k=?=" if each == "é.é" else each}
                assert refusal(mcp.modern(method, headers, ACCEPTS, taskId=each), 200, -32602)
            for each in (3, ["x"], {}):
                reply = mcp.modern(method, {"Mcp-Name": str(each)}, ACCEPTS, taskId=each)
                assert "`taskId` must be" in refusal(reply, 200, -32602)["message"]
            refusal(mcp.modern(method, {"Mcp-Name": None}, ACCEPTS), 200, -32602)
        refusal(mcp.modern("tasks/get", {"Mcp-Name": "another"}, ACCEPTS, taskId=task_id), 400, -32020)
        without = mcp.modern("tasks/get", {}, ACCEPTS, taskId=task_id)  # as FastMCP's client sends it
        assert without.json()["result"]["status"] == "working"
        assert client.get(handle)["status"] == "working"


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)


@given(TEXTS, TEXTS, st.dictionaries(TEXTS, VALUES, max_size=3), st.integers(0, 2**45), st.data())
def test_handle_id_contains_its_call_and_other_ids_are_invalid(call_id, function, arguments, created_at, data):
    ids, session = HandleIds(b"a key"), SimpleNamespace(agent_key="key")
    handle = Handle(call_id, function, dumps(arguments), created_at)
    handle_id = ids.create(session, "agent", handle.packed)
    assert ids.open(session, "agent", handle_id) == handle
    assert ids.open(session, "agent", handle_id).request("agent").sent == dumps(loads(dumps(arguments)))
    at = data.draw(st.integers(0, len(handle_id)))
    other = handle_id[:at] + data.draw(TEXTS) + handle_id[at + data.draw(st.integers(0, 3)) :]
    others = [(session, "agent", other)] if other != handle_id else []
    others += [(session, "user", handle_id), (SimpleNamespace(agent_key="other"), "agent", handle_id)]
    for each in others:
        with pytest.raises(InvalidParamsError):
            ids.open(*each)


def test_id_of_a_megabyte_is_refused(mcp):
    body = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "tasks/get",
        "params": {"taskId": "x." * 500_000, "_meta": META | ACCEPTS},
    }
    headers = {"MCP-Protocol-Version": MODERN, "Mcp-Method": "tasks/get"}
    refusal(mcp.http.post(mcp.path, json=body, headers=headers), 200, -32602)


def test_new_session_of_a_name_refuses_handles_of_the_old(mcp):
    client = HandleClient(mcp.http, "/mcp?packs=conformance&session=again")
    with running(client, "closed") as handle:
        (session,) = mcp.endpoint.rpc("list_sessions", labels={"mcp": "again"})
        mcp.endpoint.rpc("close_session", session_id=session["session_id"])
    assert NOT_HERE in refusal(client.post("tasks/get", taskId=handle["taskId"]), 200, -32602)["message"]
    (new,) = mcp.endpoint.rpc("list_sessions", labels={"mcp": "again"})
    assert new["session_id"] == session["session_id"]
    assert mcp.endpoint.rpc("get_trace", session_id=new["session_id"]) == []


def test_each_end_of_a_call_has_its_status(mcp, client):
    with running(client, "in front", "taken") as front:
        raised = client.call("test_error_handling")
        unknown = client.call("nothing")
        reused = client.call("count", "taken", number=9)
        content = client.call("note_content", blocks=[{"type": "text", "text": "A block."}])
        late = client.call("slow_compute", seconds=3.5)  # its deadline is 3 s
        assert {each["resultType"] for each in (raised, unknown, reused, content, late)} == {"task"}
    assert end_of(client, front)["status"] == "completed"
    ended = end_of(client, raised)
    assert (ended["status"], ended["result"]["isError"]) == ("completed", True)
    assert "RuntimeError: This tool intentionally" in ended["result"]["content"][0]["text"]
    ended = end_of(client, unknown)
    assert (ended["status"], ended["error"]["code"], "result" in ended) == ("failed", -32602, False)
    assert "nothing" in ended["statusMessage"]
    ended = end_of(client, reused)
    assert (ended["status"], ended["error"]["code"]) == ("failed", -33009)
    assert end_of(client, content)["result"]["content"] == [{"type": "text", "text": "A block."}]
    ended = end_of(client, late)
    assert (ended["status"], ended["result"]["isError"]) == ("completed", True)
    assert "took longer than 3 s" in ended["result"]["content"][0]["text"]
    assert mcp.counts() == [1, 1]


def test_cancelled_call_changes_nothing_and_stays_cancelled(mcp, client):
    with running(client, "cancelled", "c") as handle:
        behind = client.call("count", "behind", number=5)
        queued = client.call("count", "queued", number=6)
        for each in (queued, handle):
            acknowledged = client.cancel(each)
            acknowledged.pop("_meta")
            assert acknowledged == {"resultType": "complete"}
        # The session goes on, though the function still runs.
        assert end_of(client, behind)["result"]["structuredContent"] == {"counts": [5]}
        for each in (queued, handle):
            ended = end_of(client, each)
            assert (ended["status"], "result" in ended) == ("cancelled", False)
            assert ended["statusMessage"] == "CancelledError: The client cancelled the call. Nothing has changed."
    client.cancel(handle)
    assert client.get(handle)["status"] == "cancelled"
    client.cancel(behind)
    assert client.get(behind)["status"] == "completed"
    failures = {record["call_id"]: record.get("failure") for record in mcp.rpc("get_trace")}
    assert failures == {"c": "cancelled", "queued": "cancelled", "behind": None}
    repeated = mcp.call(MODERN, "count", _meta={CALL_ID: "queued"}, number=6)
    assert (repeated["isError"], repeated["content"][0]["text"].split(":")[0]) == (True, "CancelledError")
    replayed = mcp.rpc("replay_session")
    assert (replayed["complete"], replayed["replayed"]) == (True, 3)
    assert mcp.counts() == [5]


def test_call_with_a_too_long_id_is_answered_at_its_end(client):
    text = "".join(map(str, range(3000)))
    result = client.call("slow_compute", seconds=0.15, label=text)
    assert (result["resultType"], text in result["content"][0]["text"]) == ("complete", True)
    assert client.call("slow_compute", seconds=0.15, label="x" * 16_400)["resultType"] == "complete"
    # What can be compressed has a handle.
    handle = client.call("slow_compute", seconds=0.15, label="x" * 16_000)
    assert len(handle["taskId"]) < 500
    assert "x" * 16_000 in end_of(client, handle)["result"]["content"][0]["text"]


def test_bytes_of_a_call_count_until_its_end(mcp, client):
    in_flight = mcp.endpoint.app.state.gateway.service.in_flight
    wait_until(lambda: in_flight.total == 0, "the end of other requests")
    with running(client, "counted"):
        assert in_flight.total > 0
    wait_until(lambda: in_flight.total == 0, "the end of the call")


def test_tasks_update_is_accepted_and_changes_nothing(client):
    with running(client, "updated") as handle:
        assert client.ask("tasks/update", taskId=handle["taskId"], inputResponses={"x": {}})["resultType"] == "complete"
        assert client.get(handle)["status"] == "working"


PACK = '''
"""A kitchen."""

import time

from toolpack_server import EmptyEnv, Toolpack

toolpack = Toolpack("kitchen", EmptyEnv)


@toolpack.function
def boil(seconds: float) -> str:
    """Wait.

    :param seconds: How long.
    """
    time.sleep(seconds)
    return "done"


@toolpack.task("eggs", "Boil eggs.", max_calls=2)
def eggs(_rollout) -> float:
    return 1.0
'''


def test_cancelled_call_counts_and_keeps_a_verdict_valid(tmp_path, monkeypatch):
    (tmp_path / "kitchen.py").write_text(PACK)
    monkeypatch.setattr(handles, "WAIT_SECONDS", 0.05)
    with http_endpoint.served("h11", catalog=load_catalog((tmp_path,), ("kitchen",)), log_calls="off") as tasks:
        session = tasks.rpc("create_session", task="kitchen/eggs")
        client = HandleClient(tasks.http, session["mcp_path"])
        for _ in range(2):
            handle = client.call("boil", seconds=1)
            client.cancel(handle)
            assert end_of(client, handle)["status"] == "cancelled"
        over = result_of(client, client.call("boil", seconds=0))
        assert over["content"][0]["text"].startswith("EpisodeOverError: all 2 calls of the task are used")
        submitted = client.call("submit_answer", answer="Done.")
        assert submitted["content"][0]["text"] == "The answer has been submitted."
        verdict = tasks.rpc("evaluate_session", session_id=session["session_id"])
        assert (verdict["valid"], verdict["passed"]) == (True, True)


# A server that is killed


PACKS = ("--packs", "conformance")


def test_call_of_a_killed_server_happens_once(tmp_path):
    with contextlib.ExitStack() as stack:
        served = stack.enter_context(server_process.served(tmp_path, *PACKS))
        session = served.rpc("create_session")
        client = HandleClient(served.http, session["mcp_path"])
        result = result_of(client, client.call("count", number=1))
        assert result["structuredContent"] == {"counts": [1]}
        handle = client.call("slow_compute", "once", seconds=1)
        cancelled = client.call("slow_compute", seconds=2)
        assert {handle["status"], cancelled["status"]} == {"working"}
        served.kill()
        restarted = stack.enter_context(server_process.served(tmp_path, *PACKS))
        client = HandleClient(restarted.http, session["mcp_path"])  # another process with the same ids
        client.cancel(cancelled)
        ended = end_of(client, handle)
        assert ended["result"]["content"][0]["text"] == "computed  in 1 s"
        assert end_of(client, cancelled)["status"] == "cancelled"
        assert restarted.rpc(
            "get_environment", session_id=session["session_id"], pointer="/conformance/tally/counts"
        ) == [
            1,
            1,
        ]
        records = restarted.rpc("get_trace", session_id=session["session_id"])
    assert sorted(record.get("failure") or "ok" for record in records) == ["cancelled", "ok", "ok"]
