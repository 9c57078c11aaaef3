"""`toolpack-server evaluate --participant`: the trajectory that one of several participants saw."""

import json

import http_endpoint
import pytest
from command_line import invoke
from market import CATALOG, Played

PARTICIPANTS = {"user": {"functions": ["look"], "prompt": "You want to sell."}}


@pytest.fixture(scope="module")
def endpoint():
    with http_endpoint.served("h11", catalog=CATALOG) as server:
        yield server


class Bench:
    """A client that sends requests to an endpoint, with the interface of `serving.Bench`."""

    def __init__(self, endpoint):
        self._endpoint = endpoint

    def rpc(self, method, agent_key=None, **params):
        body = http_endpoint.request(method, **params)
        path = "/rpc" if agent_key is None else f"/agents/{agent_key}"
        return http_endpoint.result_of(self._endpoint.http.post(path, json=body).content)


def play_session(endpoint, label, participants=PARTICIPANTS):
    bench = Bench(endpoint)
    params = {"task": "market/sale", "labels": {"run": label}, "participants": participants}
    session = Played(bench, bench.rpc("create_session", **params))
    session.send("user", "say", text="Sell it.", to="agent")
    session.send("agent", "say", text="For how much?")
    session.call("user", "look", "x")
    session.send("buyer", "say", text="5?", to="agent")
    session.call("buyer", "bid", amount=5)
    bench.rpc("add_message", session_id=session.id, role="system", content="note")
    bench.rpc("run_function", session_id=session.id, function="look")
    session.send("agent", "submit_answer", answer="sold")
    return session


def evaluate(endpoint, label, tmp_path, *options):
    file = tmp_path / "trajectories.jsonl"
    url = str(endpoint.http.base_url)
    words = ("evaluate", "--url", url, "--label", f"run={label}", "--trajectories", str(file), *options)
    result = invoke(*words, standalone_mode=False)
    return [json.loads(line) for line in file.read_text().splitlines()], result


def test_trajectory_shows_what_a_participant_saw(endpoint, tmp_path):
    session = play_session(endpoint, "seen")
    ((line,), _) = evaluate(endpoint, "seen", tmp_path, "--participant", "user")
    function = {"name": "look", "arguments": "{}"}
    assert line["messages"] == [
        {"role": "user", "content": "You want to sell."},
        {"role": "assistant", "content": "Sell it."},
        {"role": "user", "content": "For how much?", "name": "agent"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "user/x", "type": "function", "function": function}],
        },
        {"role": "tool", "tool_call_id": "user/x", "content": "9"},
    ]
    assert [tool["function"]["name"] for tool in line["tools"]] == ["look"]
    assert (line["session_id"], line["passed"]) == (session.id, True)
    ((line,), result) = evaluate(endpoint, "seen", tmp_path)
    assert result.exit_code == 0
    assert line["messages"] == [
        {"role": "user", "content": "Sell it."},
        {"role": "user", "content": "Sell it.", "name": "user"},
        {"role": "assistant", "content": "For how much?"},
        {"role": "user", "content": "5?", "name": "buyer"},
        {"role": "system", "content": "note"},
        {"role": "assistant", "content": "sold"},
    ]


def test_names_are_omitted_between_two_participants(endpoint, tmp_path):
    bench = Bench(endpoint)
    session = Played(bench, bench.rpc("create_session", task="market/sale", labels={"run": "two"}))
    session.send("buyer", "say", text="5?")
    session.send("agent", "say", text="No.")
    ((line,), _) = evaluate(endpoint, "two", tmp_path, "--participant", "buyer")
    assert line["messages"][1:] == [{"role": "assistant", "content": "5?"}, {"role": "user", "content": "No."}]


def test_sessions_without_the_participant_are_left_out(endpoint, tmp_path):
    for participants in (PARTICIPANTS, {**PARTICIPANTS, "judge": {}}):
        play_session(endpoint, "some", participants)
    lines, result = evaluate(endpoint, "some", tmp_path, "--participant", "judge")
    assert len(lines) == 1
    assert "1 of these 2 have no participant 'judge', so the file has no line for them." in result.stderr
    assert result.exit_code == 0


def test_participant_option_requires_trajectories():
    result = invoke("evaluate", "--participant", "user")
    assert result.exit_code == 2
    assert "--participant selects the trajectories to write: also give --trajectories." in result.stderr
