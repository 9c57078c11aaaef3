"""BFCL's entries as tasks: the verdicts equal those of BFCL's own checker.

The tests need a part of the package bfcl-eval. There is no extra for it, as pip can't install a part. Without it the
tests are skipped, or fail if the variable BENCHMARKS is `true`. `python -m tools.bfcl_parity` compares all entries.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import serving

if os.environ.get("BENCHMARKS") != "true":
    pytest.importorskip("bfcl_eval")
    pytest.importorskip("rank_bm25")

from http_server import running

from toolpack_server.packs.loading import load_catalog
from toolpacks import bfcl
from tools.bfcl_parity import compare_entry, run_on_server
from tools.parity import differences

ENTRIES = bfcl._entries()
SAMPLE = [f"multi_turn_{category}_{number}" for category in bfcl.CATEGORIES for number in (0, 32, 57, 104, 150)]


@pytest.fixture(scope="module")
def bench():
    with serving.Bench(load_catalog((), ("bfcl", "bfcl-memory-kv", "bfcl-memory-rec-sum"))) as server:
        yield server


@pytest.mark.parametrize("entry_id", SAMPLE)
def test_results_and_verdicts_equal_bfcls(bench, entry_id):
    assert differences(compare_entry(bench, ENTRIES[entry_id], mutants=2)) == {}


def test_ground_truth_with_a_rejected_call_is_still_evaluated(bench):
    entry = ENTRIES["multi_turn_base_173"]
    passed, envelopes = run_on_server(bench, entry, entry["ground_truth"])
    assert passed
    assert [each["error"][:16] for each in envelopes if each["error"]] == ["ValidationError:"]
    assert {name for name in ENTRIES if name in bfcl.UNSOLVED} == bfcl.UNSOLVED


def test_all_entries_are_tasks(bench):
    assert bench.rpc("list_tasks", toolpack="bfcl", limit=1)["total"] == 800
    assert bench.rpc("list_tasks", toolpack="bfcl-memory-kv", tags=["prereq"], limit=1)["total"] == 5
    assert bench.rpc("list_tasks", toolpack="bfcl-memory-rec-sum", tags=["customer"], limit=1)["total"] > 10


def test_rollout_on_the_benchmarks_page_works(tmp_path):
    page = (Path(__file__).parents[2] / "docs/internals/benchmarks.md").read_text(encoding="utf-8")
    bfcls = page.partition("## BFCL")[2].partition("\n## ")[0]
    (program,) = re.findall(r"^```python\n(.*?)^```$", bfcls, re.MULTILINE | re.DOTALL)
    with running(load_catalog((), ("bfcl",)), store="memory:", log_calls="off") as url:
        (tmp_path / "run.py").write_text(program.replace("http://127.0.0.1:8000", url))
        command = [sys.executable, "run.py"]
        ended = subprocess.run(command, check=False, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (ended.stdout, ended.stderr) == ("True\n", "")


def agent(bench, session, function, **kwargs):
    key = session["agent_path"].rpartition("/")[2]
    return bench.rpc("run_function", agent_key=key, function=function, kwargs=kwargs)


def test_agent_has_only_the_functions_of_its_entry(bench):
    session = bench.rpc("create_session", task="bfcl/multi_turn_miss_func_0")
    key = session["agent_path"].rpartition("/")[2]
    names = {each["name"] for each in bench.rpc("list_functions", agent_key=key)["result"]}
    assert {"cd", "post_tweet", "sort"} <= names
    assert not {"cp", "next_turn", "trading_login"} & names
    assert "ToolNotFoundError" in agent(bench, session, "next_turn")["error"]


def test_turns_return_messages_and_functions(bench):
    session = bench.rpc("create_session", task="bfcl/multi_turn_miss_func_0")["session_id"]
    turns = [bench.result(session, "next_turn") for _ in range(5)]
    assert [turn and turn["functions"] for turn in turns] == [[], [], ["sort"], [], None]
    assert [len(turn["messages"]) for turn in turns[:4]] == [1, 1, 1, 1]
    task = bench.rpc("get_task", task="bfcl/multi_turn_miss_func_0")
    assert task["metadata"] == {"turns": 5, "missing_functions": {"3": ["sort"]}}


def test_calls_of_an_agent_are_never_evaluated_as_code(bench):
    session = bench.rpc("create_session", task="bfcl/multi_turn_base_0")
    for function, kwargs in (
        ("exit", {}),
        ("__import__('os')._exit", {"a": 1}),
        ("cd", {"folder=1) or exit(": "x"}),
        ("cd", {"folder": "') or exit('"}),
        ("cat", {"file_name": "exit()", "from": 1}),
    ):
        assert agent(bench, session, function, **kwargs)["error"] or function == "cd"
    verdict = bench.rpc("evaluate_session", session_id=session["session_id"])
    assert (verdict["passed"], verdict["valid"]) == (False, True)
    assert not [name for name in vars(bfcl.multi_turn_utils) if name.startswith("rollout")]


def test_questions_are_asked_in_forks_of_the_filled_session(bench):
    filled = bench.rpc("create_session", task="bfcl-memory-kv/prereq-customer")
    agent(bench, filled, "core_memory_add", key="first_name", value="Michael")
    for answer, passed in (("Your name is michael.", True), ("I do not know", False)):
        (fork,) = bench.rpc("fork_session", session_id=filled["session_id"])
        envelope = agent(bench, fork, "core_memory_retrieve", key="first_name")
        assert envelope["result"] == {"value": "Michael"}
        bench.rpc("submit_answer", agent_key=fork["agent_path"].rpartition("/")[2], answer=answer)
        task = "bfcl-memory-kv/memory_kv_0-customer-0"
        assert bench.rpc("evaluate_session", session_id=fork["session_id"], task=task)["passed"] is passed
