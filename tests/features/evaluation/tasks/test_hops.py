"""The cost of a request: its number of jobs on threads, and its number of reads of the session."""

import pytest
from test_tasks import CATALOG, DO, begin

from toolpack_server.engine.jobs import Job

TASK = "chores/dishes"
TRIES = 5  # The server looks for expired sessions every second, which is a job too.
USER = {"user": {"functions": ["look"], "prompt": "Ask for the dishes."}}


@pytest.fixture
def bench(store_url, make_bench):
    return make_bench(CATALOG, store_url("sqlite"))


@pytest.fixture
def cost_of(bench, monkeypatch):
    """Return a function that sends a request several times, and returns its lowest numbers of jobs and reads."""
    jobs, fetches, run, get = [], [], Job.run, bench.service.context.store.get

    def counted_run(job):
        jobs.append(job)
        run(job)

    def counted_get(session_id):
        fetches.append(session_id)
        return get(session_id)

    monkeypatch.setattr(Job, "run", counted_run)
    monkeypatch.setattr(bench.service.context.store, "get", counted_get)

    def lowest_cost(method, **params):
        counts = []
        for _ in range(TRIES):
            before = len(jobs), len(fetches)
            bench.rpc(method, **params)
            counts.append((len(jobs) - before[0], len(fetches) - before[1]))
        return min(counts)

    return lowest_cost


@pytest.mark.parametrize("params", [{}, {"participants": USER}], ids=["a task", "a task and participants"])
def test_session_is_created_in_one_job(bench, cost_of, params):
    begin(bench, TASK)  # so that its initial environment is already built
    assert cost_of("create_session", task=TASK, **params) == (1, 0)


def test_verdict_is_recorded_in_one_job(bench, cost_of):
    session_id, _ = begin(bench, TASK)
    bench.call(session_id, "do", **DO)
    jobs, fetches = cost_of("evaluate_session", session_id=session_id, record=True)
    assert (jobs, fetches <= 1) == (1, True)


def test_evaluation_fetches_its_session_once(bench, cost_of):
    session_id, _ = begin(bench, TASK)
    assert cost_of("evaluate_session", session_id=session_id) == (2, 1)


def test_small_session_is_forked_in_one_job(bench, cost_of):
    session_id, _ = begin(bench, TASK)
    assert cost_of("fork_session", session_id=session_id) == (1, 1)
