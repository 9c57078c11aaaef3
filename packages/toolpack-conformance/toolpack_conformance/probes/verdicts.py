"""Faults are no rewards: a verdict contains the task's reward, or says that the evaluation failed."""

from typing import Any
from uuid import uuid4

from toolpack_conformance.probes.probe import EVALUATOR, NO_VERSION, probe
from toolpack_conformance.target import Session, Target, expect


def _verdict(session: Session, **params: Any) -> list[Any]:
    verdict = session.ask("evaluate_session", **params)
    return [float(verdict["reward"]), verdict["passed"]]


@probe("faults are no rewards")
def tasks_are_evaluated(target: Target) -> None:
    """A finished task has the reward 1, an unfinished one 0, at each version. The task's solution passes."""
    session = target.create(task="conform/three")
    expect(session.description["task"], "conform/three", "the task of the session")
    expect(_verdict(session), [0.0, False], "reward and passed before any call")
    calls = session.ask("get_solution")["calls"]
    for call in calls:
        session.run(call["function"], call["kwargs"])
    verdict = session.ask("evaluate_session")
    actual = [verdict.get(name) for name in ("task", "version", "passed")]
    expect(actual, ["conform/three", len(calls), True], "task, version and passed after the solution")
    expect([check["passed"] for check in verdict["checks"]], [True], "the checks after the solution")
    session.run("add", {"amount": 1})
    expect(_verdict(session), [0.0, False], "reward and passed after too much")
    expect(_verdict(session, version=len(calls)), [1.0, True], "reward and passed at the version of the solution")
    expect(_verdict(session, version=0), [0.0, False], "reward and passed at version 0")
    expect(session.code("evaluate_session", version=99), NO_VERSION, "the code at a version that never existed")


@probe("faults are no rewards")
def an_evaluator_that_fails_gives_no_reward(target: Target) -> None:
    """If the evaluator fails, the response is an error or, on request, an invalid verdict, but not a reward of 0."""
    session = target.create(task="conform/five")
    session.run("add", {"amount": 4})
    expect(session.code("evaluate_session"), EVALUATOR, "the code of an evaluation that fails")
    verdict = session.ask("evaluate_session", raise_on_error=False)
    actual = [verdict["reward"], verdict["passed"], verdict["valid"], verdict.get("failure", {}).get("kind")]
    expect(actual, [None, False, False, "evaluator"], "reward, passed, valid and kind of the failure in a verdict")
    expect(_verdict(session, version=0), [0.0, False], "reward and passed at version 0")
    session.run("add", {"amount": 1})
    expect(_verdict(session), [1.0, True], "reward and passed after the next call")
    expect(session.ask("evaluate_session")["valid"], True, "whether the verdict is valid after the next call")


@probe("faults are no rewards")
def faults_do_not_count_in_rates(target: Target) -> None:
    """In the summary of a run, a session whose evaluator fails has no reward and doesn't count in the rates."""
    run = uuid4().hex
    sessions = [target.create(task="conform/five", labels={"conform": target.label, "run": run}) for _ in range(3)]
    for session, amount in zip(sessions, (5, 4, 1), strict=True):
        session.run("add", {"amount": amount})
    answer = target.result("summarize_sessions", {"labels": {"run": run}, "evaluate": True})
    rewards = {each["session_id"]: each["verdict"]["reward"] for each in answer["sessions"]}
    expected = {sessions[0].id: 1.0, sessions[1].id: None, sessions[2].id: 0.0}
    expect(rewards, expected, "the rewards by session")
    rates = [[rate["rollouts"], rate["passed"], rate["mean_reward"]] for rate in answer["rates"]]
    expect(rates, [[2, 1, 0.5]], "rollouts, passed and mean_reward of the task")


@probe("faults are no rewards")
def evaluation_changes_nothing(target: Target) -> None:
    """An evaluation doesn't change the environment or the version, even if the evaluator modifies its copy."""
    session = target.create(task="conform/three")
    session.run("add", {"amount": 3})
    verdicts = [_verdict(session) for _ in range(2)]
    actual = [*verdicts, session.version, session.total, len(session.ask("get_trace"))]
    expect(actual, [[1.0, True], [1.0, True], 1, 3, 2], "verdicts, version, total and the number of records")


@probe("faults are no rewards")
def forks_have_their_own_verdict(target: Target) -> None:
    """A fork keeps the task, and has its own verdict."""
    session = target.create(task="conform/three")
    session.run("add", {"amount": 3})
    early, late = session.forks(version=0)[0], session.forks()[0]
    expect([_verdict(early), _verdict(late)], [[0.0, False], [1.0, True]], "reward and passed of two forks")
    late.run("add", {"amount": 1})
    actual = [_verdict(session), _verdict(late)]
    expect(actual, [[1.0, True], [0.0, False]], "reward and passed of the session, and of a fork that went on")
