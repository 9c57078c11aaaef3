"""Events in seeded sessions: the same seed and clock give the same times, draws and worlds."""

import pytest
from serving import PACKS, Bench

from toolpack_server.packs.loading import load_catalog

NAMES = ("dice", "errands")
RULES = [{"name": "wind", "every": "1m", "spread": "exponential", "do": "throw", "args": {"sides": 10**9}}]
PINNED = {"seed": "a seed", "clock": "2026-05-01T08:00:00Z"}


@pytest.fixture(scope="module")
def bench():
    with Bench(load_catalog((PACKS,), NAMES), isolation="process", pack_dir=(PACKS,), packs=NAMES) as server:
        yield server


def play(bench, **params):
    session_id = bench.rpc("create_session", toolpacks=["dice"], events=RULES, **params)["session_id"]
    bench.call(session_id, "wait", seconds=600, until_something_happens=False)
    time = bench.call(session_id, "get_time")["result"]
    trace = bench.rpc("get_trace", session_id=session_id, limit=1000)
    assert bench.rpc("replay_session", session_id=session_id)["complete"]
    return time, [(record["at"], record["result"]) for record in trace]


def test_equal_seeds_give_equal_events_at_the_pinned_time(bench):
    time, records = play(bench, **PINNED)
    assert time == "2026-05-01T08:10:01Z"
    assert len(records) > 4
    assert play(bench, **PINNED) == (time, records)
    assert play(bench, **{**PINNED, "seed": "another"})[1] != records
