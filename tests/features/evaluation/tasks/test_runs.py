"""A run is one question: all rollouts with the same labels are evaluated together, and verdicts can be kept."""

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


def evaluated(bench, **params):
    return bench.rpc("summarize_sessions", **{"labels": RUN, "evaluate": True, **params})


def judged(found):
    """Get the sessions that were evaluated."""
    return [each for each in found["sessions"] if "verdict" in each]


def passed(bench, said):
    return {each["session_id"] for each in bench.rpc("list_sessions", labels=RUN, passed=said)}


def test_a_run_is_evaluated_with_one_question(bench):
    right, wrong = rollout(bench, "dishes"), rollout(bench)
    failing = rollout(bench, task="chores/raises")
    rollout(bench, labels={"run": "2"})
    without = bench.create("chores", labels=RUN)
    found = evaluated(bench)
    assert found["rates"] == [{"task": "chores/dishes", "rollouts": 2, "passed": 1, "mean_reward": 0.5}]
    verdicts = {each["session_id"]: each.get("verdict") for each in found["sessions"]}
    assert verdicts == {
        right: verdict(bench, right),
        wrong: verdict(bench, wrong),
        failing: verdict(bench, failing, raise_on_error=False),
        without: None,
    }
    assert [verdicts[each]["passed"] for each in (right, wrong)] == [True, False]
    assert "The evaluator of 'chores/raises' failed" in verdicts[failing]["failure"]["message"]
    assert not {"variant", "problem"} & {name for each in found["sessions"] for name in each}
    assert "next" not in found
    assert passed(bench, said=True) | passed(bench, said=False) == set(), (right, wrong)


def test_a_run_is_evaluated_in_parts(bench):
    sessions = sorted(rollout(bench) for _ in range(5))
    parts = in_parts(partial(evaluated, bench), limit=2)
    assert [each["session_id"] for part in parts for each in part["sessions"]] == sessions


def test_a_session_whose_task_is_gone_is_listed_with_its_problem_and_counts_nowhere(bench, monkeypatch):
    session_id = rollout(bench, "dishes")
    tasks = bench.service.context.catalog.toolpacks["chores"].task_list
    left = {name: task for name, task in tasks.all().items() if name != "dishes"}
    monkeypatch.setattr(tasks, "all", lambda: left)
    (found,) = evaluated(bench)["sessions"]
    assert (found["session_id"], found["verdict"]["valid"]) == (session_id, False)
    assert "failure" not in found["verdict"]
    assert found["problem"].startswith("There is no task 'chores/dishes'")


def test_verdicts_are_kept_only_where_some_are_asked_for(bench):
    error = refused(-32602, bench.rpc, "summarize_sessions", record=True)
    assert error.data["detail"] == "`record` stores the verdicts of `evaluate`: set both, or neither."


def test_forks_count_but_for_those_of_the_console(bench):
    session_id = rollout(bench, "dishes")
    bench.rpc("fork_session", session_id=session_id, count=2)
    bench.rpc("fork_session", session_id=session_id, labels={**RUN, "console": "fork"})
    found = evaluated(bench)
    assert (len(found["sessions"]), len(judged(found)), found["rates"][0]["rollouts"]) == (4, 3, 3)
    assert sum("parent" in each for each in judged(found)) == 2
    found = evaluated(bench, labels={"console": "fork"})
    assert (len(judged(found)), found["rates"][0]["rollouts"]) == (1, 1)


def test_a_recorded_verdict_is_in_the_trace_and_lists_are_filtered_by_it(bench):
    right, wrong, other = rollout(bench, "dishes"), rollout(bench), rollout(bench)
    verdict(bench, right, record=True)
    verdict(bench, wrong, record=True)
    verdict(bench, other)
    assert (passed(bench, said=True), passed(bench, said=False)) == ({right}, {wrong})
    assert len(bench.rpc("list_sessions", labels=RUN)) == 3
    record = bench.rpc("get_trace", session_id=right)[-1]
    said = verdict(bench, right)
    assert record["kind"] == "verdict"
    assert {name: record[name] for name in said} == said
    evaluated(bench, record=True)
    assert passed(bench, said=False) == {wrong, other}
    assert [each["kind"] for each in bench.rpc("get_trace", session_id=right)] == ["call", "verdict"]  # not twice
    (fork,) = bench.rpc("fork_session", session_id=right)
    assert fork["session_id"] not in passed(bench, said=True)
    assert [each["kind"] for each in bench.rpc("get_trace", session_id=fork["session_id"], path=True)] == ["call"]


def test_a_recorded_verdict_holds_until_the_session_goes_on(bench):
    session_id = rollout(bench, "dishes")
    verdict(bench, session_id, record=True)
    bench.result(session_id, "do", **DO)
    assert (passed(bench, said=True), passed(bench, said=False)) == (set(), set())
    assert verdict(bench, session_id, record=True)["passed"] is False
    assert passed(bench, said=False) == {session_id}
    bench.rpc("reset_session", session_id=session_id, version=1)
    assert passed(bench, said=False) == set()


def test_a_verdict_in_a_replay_is_copied_but_is_no_verdict_on_it(bench):
    session_id = rollout(bench, "dishes")
    verdict(bench, session_id, record=True)
    again = bench.rpc("replay_session", session_id=session_id, labels=RUN)["session"]["session_id"]
    assert [each["kind"] for each in bench.rpc("get_trace", session_id=again)] == ["call", "verdict"]
    assert passed(bench, said=True) == {session_id}


@pytest.mark.parametrize("other", [{"version": 0}, {"answer": "x"}, {"task": "chores/as-the-solution"}])
def test_only_the_verdict_on_the_session_as_it_is_can_be_recorded(bench, other):
    session_id = rollout(bench, "dishes")
    detail = refused(-32602, verdict, bench, session_id, record=True, **other).data["detail"]
    assert detail.startswith("A verdict can be recorded only for the session's own task")
    assert len(bench.rpc("get_trace", session_id=session_id)) == 1


def test_calls_wait_while_a_verdict_is_recorded(bench, monkeypatch):
    session_id, pool = rollout(bench), ThreadPoolExecutor(1)
    evidence, sent = Tasks.evidence, []

    def meanwhile(*given):
        sent.append(pool.submit(bench.result, session_id, "do", **DO))
        wait_until(bench.service.sessions.queues.waiting)
        return evidence(*given)

    monkeypatch.setattr(Tasks, "evidence", meanwhile)
    with pool:
        assert verdict(bench, session_id, record=True)["version"] == 0
        sent[0].result()
    assert [each["kind"] for each in bench.rpc("get_trace", session_id=session_id)] == ["verdict", "call"]
