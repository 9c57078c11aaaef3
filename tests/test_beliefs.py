"""What a worker remembers of sessions is only ever faster than the store: whoever makes it stale, answers are right.

`engine/state.py` lists what is remembered, who may make it stale, and what notices; each has its test here.
"""

import sys

import pytest
from serving import PACKS, Bench

from server.packs.loading import load_catalog

VOLUMES = ("stall", "papers")
WITH_VOLUMES = load_catalog((PACKS,), VOLUMES)
PINNED = {"seed": "x", "clock": "2026-03-02T09:30:00Z"}

needs_executors = pytest.mark.skipif(sys.platform != "linux", reason="executors need Linux")


def bench_with_volumes(store, **settings):
    return Bench(WITH_VOLUMES, store=store, isolation="process", pack_dir=(PACKS,), packs=VOLUMES, **settings)


def change_volumes(bench, session_id, number):
    bench.result(session_id, "place_order", product=1, quantity=1)
    bench.result(session_id, "write", path=f"{number}.txt", text="new")


def states(bench, session_id):
    return [record["state"] for record in bench.rpc("get_trace", session_id=session_id)]


# Digests


@needs_executors
@pytest.mark.parametrize("version", [0, 3])
def test_a_worker_that_knows_no_digest_resets_a_seeded_session(store_url, version):
    store = store_url("sqlite")
    with bench_with_volumes(store) as first:
        session_id = first.create(*VOLUMES, **PINNED)
        change_volumes(first, session_id, 1)
        change_volumes(first, session_id, 2)
    with bench_with_volumes(store) as second:
        assert second.rpc("reset_session", session_id=session_id, version=version)["version"] == 5
        change_volumes(second, session_id, 3)
        found = states(second, session_id)
        assert len(found) == 7
        assert None not in found
        if version:
            assert found[4] == found[2]
        replayed = second.rpc("replay_session", session_id=session_id)
        assert (replayed["complete"], replayed["diverged"]) == (True, None)
    with bench_with_volumes(store) as third:
        replayed = third.rpc("replay_session", session_id=session_id)
        assert (replayed["complete"], replayed["diverged"]) == (True, None)
