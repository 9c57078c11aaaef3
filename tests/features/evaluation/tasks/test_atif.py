"""Trajectories in ATIF: steps, calls and observations, inherited parts of forks, and metadata from clients."""

import json

import harbor
import http_endpoint
import pytest
from command_line import invoke
from test_tasks import CATALOG

from toolpack_server.features.evaluation.tasks.atif import EMPTY, atif
from toolpack_server.features.evaluation.tasks.trajectories import Messages
from toolpack_server.wiring.installed import load_features
from toolpack_server.wiring.service import all_record_kinds

KINDS = all_record_kinds(load_features())
KNOWN = {
    "model": "m-1",
    "prompt_tokens": 7,
    "completion_tokens": "many",
    "completion_token_ids": [1, 2],
    "logprobs": [-0.5, 0],
    "reasoning_content": "hm",
    "temperature": 0.5,
}


@pytest.fixture(scope="module")
def endpoint():
    with http_endpoint.served("h11", catalog=CATALOG) as server:
        yield server


def session(**members):
    return {"session_id": "me", "labels": {}, "parent": None, **members}


def record(kind, *, of="me", **members):
    return {"kind": kind, "started_at": "2026-11-21T08:42:30.061Z", "session_id": of, **members}


def call(path_index, function="look", **members):
    defaults = {
        "call_id": None,
        "path_index": path_index,
        "function": function,
        "kwargs": {"x": 1},
        "result": 2,
        "error": None,
    }
    return record("call", **{**defaults, **members})


def message_record(role, content, **members):
    return record("message", role=role, content=content, **members)


def trajectory_of(*records, prompt=()):
    chat = Messages(prompt)
    for each in records:
        chat.add(KINDS, each)
    trajectory = atif(session(), chat, [], {})
    assert harbor.errors([trajectory]) == []
    return trajectory


def test_calls_belong_to_the_preceding_message():
    trajectory = trajectory_of(
        message_record("assistant", "I look.", metadata=KNOWN),
        call(1),
        call(2, error="ValueError: no"),
        prompt="Do it.",
    )
    first, second, third = trajectory["steps"]
    assert first == {"step_id": 1, "source": "user", "message": "Do it."}
    assert second == {
        "step_id": 2,
        "source": "agent",
        "message": "I look.",
        "timestamp": "2026-11-21T08:42:30.061Z",
        "model_name": "m-1",
        "reasoning_content": "hm",
        "metrics": {"prompt_tokens": 7, "completion_token_ids": [1, 2], "logprobs": [-0.5, 0]},
        "extra": {"completion_tokens": "many", "temperature": 0.5},
        "tool_calls": [{"tool_call_id": "call_1", "function_name": "look", "arguments": {"x": 1}}],
        "observation": {"results": [{"source_call_id": "call_1", "content": "2"}]},
    }
    assert (third["message"], third["observation"]["results"][0]["content"]) == ("", "ValueError: no")
    assert trajectory["agent"]["model_name"] == "m-1"
    assert trajectory["final_metrics"] == {"total_steps": 3, "total_prompt_tokens": 7}


def test_inherited_steps_are_marked_as_copied_context():
    trajectory = trajectory_of(
        message_record("assistant", "Now.", of="parent"), call(1), call(2, of="me"), message_record("user", "So?")
    )
    assert [(step["message"], step.get("is_copied_context", False)) for step in trajectory["steps"]] == [
        *(("Now.", True), ("", False), ("", False), ("So?", False))
    ]
    assert "tool_calls" not in trajectory["steps"][0]


def test_user_messages_have_no_metrics_and_empty_paths_one_step():
    (step,) = trajectory_of(message_record("user", "Hi.", metadata=KNOWN))["steps"]
    assert step["extra"] == KNOWN
    assert trajectory_of()["steps"] == [{"step_id": 1, "source": "system", "message": EMPTY}]


def test_export_and_evaluate_write_atif(endpoint):
    created = endpoint.rpc("create_session", task="chores/dishes", labels={"run": "atif", "agent": "me"})
    session_id = created["session_id"]
    message = {"session_id": session_id, "role": "assistant", "content": "I wash.", "metadata": KNOWN}
    endpoint.rpc("add_message", **message)
    endpoint.rpc("run_function", session_id=session_id, function="do", kwargs={"chore": "dishes"})
    url = ("--url", f"http://127.0.0.1:{endpoint.port}")
    exported = json.loads(invoke("session", "export", *url, session_id[:9]).stdout)
    chat = json.loads(invoke("session", "export", *url, session_id, "--format", "openai").stdout)
    result = invoke("evaluate", *url, "--label", "run=atif", "--trajectories", "-", "--format", "atif")
    judged = json.loads(result.stdout)
    assert harbor.errors([exported, judged]) == []
    assert exported["schema_version"] == "ATIF-v1.8"
    assert (exported["agent"]["name"], exported["steps"][-1]["model_name"]) == ("me", "m-1")
    assert judged["steps"] == exported["steps"]
    assert (judged["extra"]["task"], judged["extra"]["valid"]) == ("chores/dishes", True)
    assert [message.get("metadata") for message in chat["messages"]][-2:] == [KNOWN, None]
    (record,) = [each for each in endpoint.rpc("get_trace", session_id=session_id) if each["kind"] == "message"]
    assert record["metadata"] == KNOWN
    bundle = endpoint.rpc("export_bundle", session_id=session_id)["bundle"]
    replayed = endpoint.rpc("import_bundle", bundle=bundle, mode="replay")
    assert replayed["complete"]
    for copy_id in (replayed["session"]["session_id"], endpoint.rpc("import_bundle", bundle=bundle)["session_id"]):
        assert (
            json.loads(invoke("session", "export", *url, copy_id).stdout)["steps"][-1]["metrics"]
            == exported["steps"][-1]["metrics"]
        )


def test_metadata_and_text_have_the_same_limit(endpoint):
    session_id = endpoint.rpc("create_session", toolpacks=["chores"])["session_id"]
    long = {"session_id": session_id, "role": "user", "content": "", "metadata": {"x": "y" * 10**6}}
    with pytest.raises(Exception, match="allowed: shorten it"):
        endpoint.rpc("add_message", **long)


def test_harbors_validator_is_used_if_installed():
    harbor.required()
    assert harbor.errors([{"schema_version": "none"}])
