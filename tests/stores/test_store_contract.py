"""The contract's tests for other stores, run as docs/internals/store.md describes. Only a correct store passes."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from patience import PATIENCE

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "internals" / "store.md").read_text(encoding="utf-8")
(FILE,) = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
FORGETFUL = '''
class Forgetful(MemoryStore):
    """It finds no record by the id of its call, so a call that is sent again would run again."""

    def record_of_call(self, session_id, call_id):
        return None


class Careless(Forgetful):
    record_of_call = MemoryStore.record_of_call

    def delete(self, session_ids):
        return [*session_ids]
'''


def run_tests(folder, text, *flags):
    """Run the tests in a separate folder. Return the numbers of passed, failed and skipped tests."""
    (folder / "test_mine.py").write_text(text, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *flags]
    variables = os.environ | {"COLUMNS": "200", "HYPOTHESIS_STORAGE_DIRECTORY": str(folder / ".hypothesis")}
    ended = subprocess.run(
        command, cwd=folder, env=variables, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    counts = {kind: int(number) for number, kind in re.findall(r"(\d+) (passed|failed|skipped)", ended.stdout)}
    return ended, counts


@pytest.mark.heavy
def test_a_store_that_keeps_the_contract_passes(tmp_path):
    ended, counts = run_tests(tmp_path, FILE, "-k", "not random")
    assert ended.returncode == 0, ended.stdout
    assert counts["passed"] > 75
    assert counts.keys() == {"passed", "skipped"}


@pytest.mark.heavy
def test_a_store_that_breaks_the_contract_fails_with_the_place(tmp_path):
    for name, failing in (
        ("Forgetful", "test_records_are_returned_in_order"),
        ("Careless", "test_delete_removes_all_data"),
    ):
        text = FILE.replace("    return lambda: MemoryStore", f"    return lambda: {name}") + FORGETFUL
        ended, counts = run_tests(tmp_path, text, "-k", f"{failing} and not random")
        assert ended.returncode == 1
        assert counts["failed"] > 0
        assert re.search(
            rf"::{failing} - (AssertionError: )?assert .* == ", ended.stdout
        )  # the message has the compared values
