"""Whatever is done with files, they are what a real directory is after the same: results, errors and all.

`FILES_HISTORIES=1000 pytest -n 0 tests/features/volumes/test_files_histories.py` runs more histories of files
alone than the suite does; `python -m tools.files_histories` those of files in sessions.
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


def test_files_are_what_a_real_directory_is():
    run_state_machine_as_test(
        Histories, settings=settings(max_examples=HISTORIES, stateful_step_count=30, deadline=None)
    )


def test_files_in_sessions_are_what_real_directories_are():
    with database_histories.unkilled("papers", "memory", "thread") as bench:
        for seed in (5, 6, 89):  # the last one changes a fork of a session with several pieces, and forks that
            history(bench, seed)


@pytest.mark.heavy
def test_histories_are_the_same_where_workers_are_killed_and_nothing_is_left_of_them():
    bench = killed_server.KilledServer("sqlite", "thread", "papers,stall", pause=0.7)
    try:
        for seed in itertools.count():
            history(bench, seed, steps=10)
            database_histories.history(bench, seed, steps=10)
            if bench.kills > 1:
                break
        # Those who start in their place remove what they have left in the scratch folder.
        serving.wait_until(lambda: not bench.leftovers(), "the end of leftovers")
    finally:
        bench.close()
