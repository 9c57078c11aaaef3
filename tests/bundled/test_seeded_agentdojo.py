"""AgentDojo's functions in seeded sessions: they read the clock and draw random numbers, and still repeat exactly.

The calls are the solutions of every sixth user and injection task, or of all with `-m long`. One server runs them
without interruption. Another server, with another key, runs the first half. After a restart it runs the second half,
and so does a fork.
"""

import pytest
import serving
import with_agentdojo

from toolpack_server.packs.loading import load_catalog

pytestmark = with_agentdojo.HEAVY

PACKS = tuple(f"agentdojo-{suite}" for suite in ("banking", "slack", "travel", "workspace"))
PINNED = {"seed": "agentdojo", "clock": "2026-03-02T09:30:00Z"}


@pytest.fixture(autouse=True)
def no_polars(tmp_path, monkeypatch):
    """Hide polars from zygotes.

    A package that AgentDojo needs imports polars, which starts threads. Then executors can't be forked, and each has to
    import all packages.
    """
    (tmp_path / "hidden").mkdir()
    (tmp_path / "hidden" / "polars.py").write_text("raise ImportError('hidden by a test')\n")
    monkeypatch.syspath_prepend(tmp_path / "hidden")


def process_bench(**settings):
    """Start a server of all suites. Slow, because the executors of each server import AgentDojo."""
    return serving.Bench(load_catalog((), PACKS), isolation="process", packs=PACKS, **settings)


def tasks_of(bench, pack):
    """Return the names of all tasks, each with the calls of its solution."""
    tasks = bench.rpc("list_tasks", toolpack=pack, limit=1000)["tasks"]
    solved = []
    for task in (each["task"] for each in tasks if each["has_solution"]):
        session_id = bench.rpc("create_session", task=task)["session_id"]
        solved.append((task, bench.rpc("get_solution", session_id=session_id)["calls"]))
        bench.rpc("close_session", session_id=session_id)
    return solved


def begin(bench, task):
    return bench.rpc("create_session", task=task, **PINNED)["session_id"]


def run(bench, session_id, calls):
    return [bench.call(session_id, call["function"], **call["kwargs"]) for call in calls]


def states(bench, session_id):
    return [record.get("state") for record in bench.rpc("get_trace", session_id=session_id, limit=1000)]


@pytest.mark.parametrize("step", [6, pytest.param(1, marks=pytest.mark.long)])
def test_solutions_repeat_exactly_in_seeded_sessions(step, tmp_path):
    with process_bench() as uninterrupted:
        tasks, expected = {}, {}
        for pack in PACKS:
            solutions = tasks_of(uninterrupted, pack)[::step]
            assert len(solutions) >= 18 // step
            tasks |= solutions
        for task, calls in tasks.items():
            session_id = begin(uninterrupted, task)
            expected[task] = run(uninterrupted, session_id, calls), states(uninterrupted, session_id)
            assert None not in expected[task][1]
    store, key = f"sqlite:///{tmp_path}/s.db", b"another key, of another server!!"
    session_ids = {}
    with process_bench(store=store, key=key) as first:
        for task, calls in tasks.items():
            session_ids[task] = begin(first, task)
            assert run(first, session_ids[task], calls[: len(calls) // 2]) == expected[task][0][: len(calls) // 2]
    with process_bench(store=store, key=key) as second:
        for task, calls in tasks.items():
            half = len(calls) // 2
            version = second.version(session_ids[task])
            (fork,) = second.rpc("fork_session", session_id=session_ids[task], version=version)
            answers, digests = expected[task]
            assert run(second, session_ids[task], calls[half:]) == answers[half:], task
            assert states(second, session_ids[task]) == digests, task
            if version == half:  # because the fork's clock then continues where the session's does
                assert run(second, fork["session_id"], calls[half:]) == answers[half:], task
                assert states(second, fork["session_id"]) == digests[half:], task
            replayed = second.rpc("replay_session", session_id=session_ids[task])
            assert (replayed["complete"], replayed.get("diverged")) == (True, None), task
