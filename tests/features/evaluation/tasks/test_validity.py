"""Invalid verdicts: a verdict that says nothing about the agent is marked as invalid, and doesn't count as reward 0."""

import time

import pytest
from serving import Bench, refused

from toolpack_server import Rollout, TaskEnvironment, Toolpack
from toolpack_server.packs.catalog import Catalog

pack = Toolpack("shaky", TaskEnvironment)


@pack.function
def spin(seconds: float) -> str:
    """Take some time.

    :param seconds: The time.
    """
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        time.sleep(0.001)
    return "done"


@pack.task("calls", "Call something.")
def calls(rollout: Rollout[TaskEnvironment]) -> bool:
    return bool(rollout.calls)


@pack.task("faulty", "Do nothing.")
def faulty(rollout: Rollout[TaskEnvironment]) -> bool:
    return rollout.task.data["missing"]


@pack.task("stuck", "Do nothing.", timeout_seconds=0.1)
def stuck(rollout: Rollout[TaskEnvironment]) -> bool:
    return spin(60) == str(rollout)


@pytest.fixture(scope="module")
def bench():
    with Bench(Catalog({"shaky": pack}), timeout_seconds=0.5) as server:
        yield server


def begin(bench, task, **labels):
    session = bench.rpc("create_session", task=f"shaky/{task}", labels=labels)
    return session["session_id"], session["agent_path"].removeprefix("/agents/")


def evaluate(bench, session_id, **params):
    return bench.rpc("evaluate_session", session_id=session_id, raise_on_error=False, **params)


def test_reward_of_a_valid_rollout_is_valid(bench):
    session_id, _ = begin(bench, "calls")
    verdict = evaluate(bench, session_id)
    assert (verdict["reward"], verdict["passed"], verdict["valid"], verdict.get("failure")) == (0, False, True, None)


@pytest.mark.parametrize(
    ("task", "version", "code", "kind", "error", "says"),
    [
        ("faulty", None, -32013, "evaluator", "TypeError", "The evaluator of 'shaky/faulty' failed: "),
        ("stuck", None, -32010, "deadline", "DeadlineError", "The evaluator of 'shaky/stuck' took longer than 0.1 s"),
        ("calls", 7, -32011, "world", "VersionNotRetainedError", "There is no version 7"),
    ],
)
def test_verdict_without_a_reward_is_invalid_with_a_reason(bench, task, version, code, kind, error, says):
    session_id, _ = begin(bench, task)
    refused(code, bench.rpc, "evaluate_session", session_id=session_id, version=version)
    verdict = evaluate(bench, session_id, version=version, record=version is None)
    failure = verdict.pop("failure")
    assert verdict == {
        "task": f"shaky/{task}",
        "version": version or 0,
        "reward": None,
        "passed": False,
        "checks": [],
        "metrics": {},
        "valid": False,
        "perturbed": {},
    }
    assert (failure["kind"], failure["type"]) == (kind, error)
    assert failure["message"].startswith(says)
    assert bench.rpc("get_trace", session_id=session_id) == []


def test_unknown_session_or_task_stays_an_error(bench):
    session_id, _ = begin(bench, "calls")
    refused(-32001, evaluate, bench, "0" * 32)
    refused(-32602, evaluate, bench, session_id, task="shaky/none")


def test_call_ended_by_the_host_makes_a_verdict_invalid(bench):
    session_id, key = begin(bench, "calls", run="machine")
    bench.call(session_id, "spin", seconds=60)  # a call of the client
    spun = {"function": "spin", "kwargs": {"seconds": 60}}
    bench.rpc("run_function", agent_key=key, **spun, timeout_seconds=0.05)  # The agent set this timeout itself.
    assert evaluate(bench, session_id)["valid"]
    message = bench.rpc("run_function", agent_key=key, **spun)["error"]
    verdict = evaluate(bench, session_id, record=True)
    assert (verdict["reward"], verdict["passed"], verdict["valid"]) == (1, True, False)
    assert verdict.get("failure") == {"kind": "infrastructure", "type": "TimeoutError", "message": message}
    assert bench.rpc("get_trace", session_id=session_id)[-1].get("failure") == verdict.get("failure")
    summary = bench.rpc("summarize_sessions", labels={"run": "machine"})
    assert (summary["rates"], summary["sessions"][0]["verdict"]) == ([], verdict)
