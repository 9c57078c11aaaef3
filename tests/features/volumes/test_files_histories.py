"""Random histories of `Files`: results, errors and content equal those of a real directory.

`FILES_HISTORIES=1000 pytest -n 0 tests/features/volumes/test_files_histories.py` runs more histories without sessions
than the suite does. `python -m tools.files_histories` runs histories of files in sessions.
"""

import itertools
import os

import pytest
import serving
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from tools import database_histories, killed_server
from tools.files_histories import Histories, history

HISTORIES = int(os.environ.get("FILES_HISTORIES", "30"))


def test_files_behave_like_a_real_directory():
    run_state_machine_as_test(
        Histories, settings=settings(max_examples=HISTORIES, stateful_step_count=30, deadline=None)
    )


def test_files_in_sessions_behave_like_a_real_directory():
    with database_histories.in_process_bench("papers", "memory", "thread") as bench:
        for seed in (5, 6, 89):  # Seed 89 changes a fork of a session with several pieces, and forks that again.
            history(bench, seed)


@pytest.mark.heavy
def test_histories_are_equal_despite_kills_and_leave_nothing():
    bench = killed_server.KilledServer("sqlite", "thread", "papers,stall", pause=0.7)
    try:
        for seed in itertools.count():
            history(bench, seed, steps=10)
            database_histories.history(bench, seed, steps=10)
            if bench.kills > 1:
                break
        # The next workers remove the leftovers of the killed ones from the scratch folder.
        serving.wait_until(lambda: not bench.leftovers(), "the end of leftovers")
    finally:
        bench.close()
