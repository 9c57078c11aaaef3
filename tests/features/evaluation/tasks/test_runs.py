"""Runs: all sessions with the same labels are evaluated by one request, and verdicts can be recorded."""

from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
from serving import in_parts, refused, wait_until
from test_tasks import CATALOG, DO, begin, verdict

from toolpack_server.features.evaluation.tasks.service import Tasks

RUN = {"run": "1"}


@pytest.fixture(params=["memory", "sqlite", "redis"])
def bench(request, store_url, make_bench):
    return make_bench(CATALOG, store_url(request.param))


def rollout(bench, *chores, task="chores/dishes", labels=RUN):
    session_id, _ = begin(bench, task, labels=labels)
    for chore in chores:
        bench.call(session_id, "do", chore=chore)
    return session_id


def evaluate_run(bench, **params):
    return bench.rpc("summarize_sessions", **{"labels": RUN, "evaluate": True, **params})


def evaluated_sessions(answer):
    """Return the sessions that were evaluated."""
    return [each for each in answer["sessions"] if "verdict" in each]


def sessions_with_verdict(bench, recorded):
    return {each["session_id"] for each in bench.rpc("list_sessions", labels=RUN, passed=recorded)}


def test_run_is_evaluated_by_one_request(bench):
    right, wrong = rollout(bench, "dishes"), rollout(bench)
    failing = rollout(bench, task="chores/raises")
    rollout(bench, labels={"run": "2"})
    without = bench.create("chores", labels=RUN)
    summary = evaluate_run(bench)
    assert summary["rates"] == [{"task": "chores/dishes", "rollouts": 2, "passed": 1, "mean_reward": 0.5}]
    verdicts = {each["session_id"]: each.get("verdict") for each in summary["sessions"]}
    assert verdicts == {
        right: verdict(bench, right),
        wrong: verdict(bench, wrong),
        failing: verdict(bench, failing, raise_on_error=False),
        without: None,
    }
    assert [verdicts[each]["passed"] for each in (right, wrong)] == [True, False]
    assert "The evaluator of 'chores/raises' failed" in verdicts[failing]["failure"]["message"]
    assert not {"variant", "problem"} & {name for each in summary["sessions"] for name in each}
    assert "next" not in summary
    assert sessions_with_verdict(bench, recorded=True) | sessions_with_verdict(bench, recorded=False) == set(), (
        right,
        wrong,
    )


def test_run_is_evaluated_in_parts(bench):
    sessions = sorted(rollout(bench) for _ in range(5))
    parts = in_parts(partial(evaluate_run, bench), limit=2)
    assert [each["session_id"] for part in parts for each in part["sessions"]] == sessions


def test_session_without_its_task_is_listed_but_not_counted(bench, monkeypatch):
    session_id = rollout(bench, "dishes")
    tasks = bench.service.context.catalog.toolpacks["chores"].task_list
    remaining = {name: task for name, task in tasks.all().items() if name != "dishes"}
    monkeypatch.setattr(tasks, "all", lambda: remaining)
    (summary,) = evaluate_run(bench)["sessions"]
    assert (summary["session_id"], summary["verdict"]["valid"]) == (session_id, False)
    assert "failure" not in summary["verdict"]
    assert summary["problem"].startswith("There is no task 'chores/dishes'")


def test_record_requires_evaluate(bench):
    error = refused(-32602, bench.rpc, "summarize_sessions", record=True)
    assert error.data["detail"] == "`record` stores the verdicts of `evaluate`: set both, or neither."


def test_forks_count_except_those_of_the_console(bench):
    session_id = rollout(bench, "dishes")
    bench.rpc("fork_session", session_id=session_id, count=2)
    bench.rpc("fork_session", session_id=session_id, labels={**RUN, "console": "fork"})
    summary = evaluate_run(bench)
    assert (len(summary["sessions"]), len(evaluated_sessions(summary)), summary["rates"][0]["rollouts"]) == (4, 3, 3)
    assert sum("parent" in each for each in evaluated_sessions(summary)) == 2
    summary = evaluate_run(bench, labels={"console": "fork"})
    assert (len(evaluated_sessions(summary)), summary["rates"][0]["rollouts"]) == (1, 1)


def test_recorded_verdict_is_in_the_trace_and_filters_lists(bench):
    right, wrong, other = rollout(bench, "dishes"), rollout(bench), rollout(bench)
    verdict(bench, right, record=True)
    verdict(bench, wrong, record=True)
    verdict(bench, other)
    assert (sessions_with_verdict(bench, recorded=True), sessions_with_verdict(bench, recorded=False)) == (
        {right},
        {wrong},
    )
    assert len(bench.rpc("list_sessions", labels=RUN)) == 3
    record = bench.rpc("get_trace", session_id=right)[-1]
    recorded = verdict(bench, right)
    assert record["kind"] == "verdict"
    assert {name: record[name] for name in recorded} == recorded
    evaluate_run(bench, record=True)
    assert sessions_with_verdict(bench, recorded=False) == {wrong, other}
    # A second evaluation doesn't record it again.
    assert [each["kind"] for each in bench.rpc("get_trace", session_id=right)] == ["call", "verdict"]
    (fork,) = bench.rpc("fork_session", session_id=right)
    assert fork["session_id"] not in sessions_with_verdict(bench, recorded=True)
    assert [each["kind"] for each in bench.rpc("get_trace", session_id=fork["session_id"], path=True)] == ["call"]


def test_recorded_verdict_expires_when_the_session_continues(bench):
    session_id = rollout(bench, "dishes")
    verdict(bench, session_id, record=True)
    bench.result(session_id, "do", **DO)
    assert (sessions_with_verdict(bench, recorded=True), sessions_with_verdict(bench, recorded=False)) == (set(), set())
    assert verdict(bench, session_id, record=True)["passed"] is False
    assert sessions_with_verdict(bench, recorded=False) == {session_id}
    bench.rpc("reset_session", session_id=session_id, version=1)
    assert sessions_with_verdict(bench, recorded=False) == set()


def test_verdict_in_a_replay_is_copied_but_does_not_count(bench):
    session_id = rollout(bench, "dishes")
    verdict(bench, session_id, record=True)
    replay_id = bench.rpc("replay_session", session_id=session_id, labels=RUN)["session"]["session_id"]
    assert [each["kind"] for each in bench.rpc("get_trace", session_id=replay_id)] == ["call", "verdict"]
    assert sessions_with_verdict(bench, recorded=True) == {session_id}


@pytest.mark.parametrize("other", [{"version": 0}, {"answer": "x"}, {"task": "chores/as-the-solution"}])
def test_only_the_default_verdict_can_be_recorded(bench, other):
    session_id = rollout(bench, "dishes")
    detail = refused(-32602, verdict, bench, session_id, record=True, **other).data["detail"]
    assert detail.startswith("A verdict can be recorded only for the session's own task")
    assert len(bench.rpc("get_trace", session_id=session_id)) == 1


def test_calls_wait_while_a_verdict_is_recorded(bench, monkeypatch):
    session_id, pool = rollout(bench), ThreadPoolExecutor(1)
    evidence, futures = Tasks.evidence, []

    def meanwhile(*arguments):
        futures.append(pool.submit(bench.result, session_id, "do", **DO))
        wait_until(bench.service.sessions.queues.waiting)
        return evidence(*arguments)

    monkeypatch.setattr(Tasks, "evidence", meanwhile)
    with pool:
        assert verdict(bench, session_id, record=True)["version"] == 0
        futures[0].result()
    assert [each["kind"] for each in bench.rpc("get_trace", session_id=session_id)] == ["verdict", "call"]
