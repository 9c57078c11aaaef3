"""The commands `toolpack-server check --tasks` and `evaluate`."""

import itertools
import json
import sys

import http_endpoint
import pytest
import serving
from command_line import invoke, run_here
from hypothesis import given
from hypothesis import strategies as st
from serving import PACKS
from test_tasks import CATALOG, DO, agent, begin

from toolpack_server.features.evaluation.tasks.pass_rates import Rate, pass_all, pass_any
from toolpack_server.features.evaluation.tasks.trajectories import messages
from toolpack_server.wiring.installed import load_features
from toolpack_server.wiring.service import all_record_kinds

KINDS = all_record_kinds(load_features())

RIGHT = '''
"""Lamps."""

from toolpack_server import Rollout, Task, TaskEnvironment, Toolpack


class Lamps(TaskEnvironment):
    on: bool = False


toolpack = Toolpack("lamps", Lamps)


def switch_on(lamps: "Lamps") -> None:
    """Switch the lamp on."""
    lamps.on = True


from typing import Annotated
from toolpack_server import Depends
switch_on.__annotations__["lamps"] = Annotated[Lamps, Depends(lambda lamps: lamps)]
toolpack.function(switch_on)


@toolpack.task("light", "Make light.", solution=[("switch_on", {})])
def is_light(rollout: Rollout[Lamps]) -> bool:
    return rollout.environment.on
'''

NOT_PURE = "a second evaluation gives another verdict: its evaluator isn't pure."
WRONG = {
    "return True": "lamps.py:25: is_light: task 'lamps/light': it passes with nothing done: tighten the evaluator",
    "return False": "task 'lamps/light': its solution doesn't pass (reward 0); it submits no answer",
    'rollout.check("is it dark", False, "no")': "its solution doesn't pass (is it dark: no); ",
    "return rollout.environment.off": "The evaluator of 'lamps/light' failed: AttributeError",
    "import itertools; return next(COUNT) / 100": NOT_PURE,
    "return rollout.environment.on and bool(KEPT.pop())": NOT_PURE,
    "return bool(KEPT.pop()) and rollout.environment.on": NOT_PURE,
}


GLOBALS = """
import itertools
COUNT = itertools.count()
KEPT = [False, True]
"""


def run(*words):
    return invoke(*words, standalone_mode=False)


def check(tmp_path, source):
    (tmp_path / "lamps.py").write_text(source)
    sys.modules.pop("toolpacks.lamps", None)
    return run("check", "--pack-dir", str(tmp_path), "--tasks", "--no-calls")


def test_check_counts_tasks_without_problems(tmp_path):
    result = check(tmp_path, RIGHT)
    assert (result.exit_code, result.stdout) == (0, "1 toolpack with 1 function and 1 task: no problems.\n"), (
        result.stderr
    )


def test_check_accepts_an_evaluator_that_consumes_its_data(tmp_path):
    task = 'solution=[("switch_on", {})], data=[1], metadata={"on": [1]}'
    source = RIGHT.replace('solution=[("switch_on", {})]', task)
    used_up = "rollout.environment.on and bool(rollout.task.data.pop() and rollout.task.metadata['on'].pop())"
    result = check(tmp_path, source.replace("rollout.environment.on", used_up))
    assert (result.exit_code, result.stdout) == (0, "1 toolpack with 1 function and 1 task: no problems.\n"), (
        result.stderr
    )
    result = check(tmp_path, source.replace("data=[1]", "data=__import__('threading').Lock()"))
    assert (
        "the task's data can't be copied (TypeError: cannot pickle '_thread.lock' object): give the class"
        in result.stderr
    )


def test_check_reads_only_the_named_tasks(tmp_path):
    check(tmp_path, RIGHT + '\ntoolpack.add_task(Task("none", "Do it."))\n')
    named = ("check", "--pack-dir", str(tmp_path), "--no-calls", "--task")
    assert "and 1 task: no problems." in run(*named, "lamps/light").stdout
    assert "task 'lamps/none': it has neither" in run(*named, "lamps/none").stderr
    result = run(*named, "lamps/nine")
    assert result.exit_code == 1
    assert result.stderr.startswith("there is no task 'lamps/nine': give toolpack/task, such as lamps/")


@pytest.mark.parametrize("body", WRONG)
def test_check_reports_faulty_evaluators(tmp_path, body):
    source = RIGHT.replace("return rollout.environment.on", body) + GLOBALS
    result = check(tmp_path, source)
    assert result.exit_code == 1
    assert WRONG[body] in result.stderr


def test_check_prints_the_evaluators_traceback_below_its_problem(tmp_path):
    result = check(tmp_path, RIGHT.replace("rollout.environment.on", "rollout.environment.off"))
    first, *details = result.stderr.splitlines()
    assert "is_light: task 'lamps/light': The evaluator of 'lamps/light' failed: AttributeError" in first
    assert details[1] == f'      File "{tmp_path}/lamps.py", line 27, in is_light'
    assert all(line.startswith("    ") and "toolpack_server/" not in line for line in details)


def test_check_says_that_a_failing_solution_submits_no_answer(tmp_path):
    wrong = RIGHT.replace("rollout.environment.on", 'rollout.answer == "yes"')
    assert (
        "its solution doesn't pass (reward 0); it submits no answer: if the evaluator" in check(tmp_path, wrong).stderr
    )
    wrong = wrong.replace("solution=", 'answer="no", solution=')
    assert "its solution doesn't pass (reward 0)." in check(tmp_path, wrong).stderr


@pytest.mark.parametrize(
    ("definition", "message"),
    [
        ('solution=[("off", {})]', "the call of `off` in its solution fails: ToolNotFoundError"),
        ("solution=7", "its solution is neither a list of calls nor a function"),
        ("nop_passes=True", "it has nop_passes=True, but a session with nothing done doesn't pass (reward 0)."),
        ('functions=["of"]', "its `functions` has 'of', but its sessions have no such function: correct the name."),
        ('variants={"x": [{"hide": True, "functions": "of"}]}', "Rule '0': the session has no function 'of'."),
        (
            'variants={"x": [{"hid": True}]}',
            "task 'light': variant 'x': Rule '0': unknown field 'hid': choose from ",
        ),
        ('variants={"a b": []}', "task 'light': 'a b' isn't a valid name of a variant"),
        ("variants=7", "its variants is a int: give a dict"),
        ('options={"x": 1}', "Toolpack 'lamps' accepts no options"),
        ('toolpacks={"x": {}}', "it needs the toolpack 'x', which isn't loaded: also load that toolpack."),
        ('solution=[("switch_on", {})], max_calls=0', "its solution makes more calls than max_calls allows: 1, not 0."),
    ],
)
def test_check_reports_task_definitions_that_do_not_fit(tmp_path, definition, message):
    result = check(tmp_path, RIGHT.replace('solution=[("switch_on", {})]', definition))
    assert result.exit_code == 1
    assert message in result.stderr


def test_check_reports_a_solution_with_an_unknown_function(tmp_path):
    result = check(tmp_path, RIGHT + '\ntoolpack.add_task(Task("off", "Off.", solution=[("off", {})]))\n')
    assert "task 'lamps/off': the call of `off` in its solution fails: ToolNotFoundError" in result.stderr


def test_check_reports_missing_evaluators_and_failing_loaders(tmp_path):
    result = check(tmp_path, RIGHT + '\ntoolpack.add_task(Task("none", "Do it."))\n')
    assert "task 'lamps/none': it has neither an evaluator nor a solution: give one." in result.stderr
    result = check(tmp_path, RIGHT + "\n@toolpack.tasks\ndef many():\n    raise KeyError('x')\n")
    assert "The tasks of toolpack 'lamps' can't be loaded: `many` failed: KeyError: 'x'" in result.stderr


# evaluate


@pytest.fixture(scope="module")
def endpoint():
    with http_endpoint.served("h11", catalog=CATALOG, log_calls="off") as served:
        yield served


@pytest.fixture
def rollouts(endpoint):
    """Create three, one and two rollouts of three tasks, and a session without a task."""
    labels = {"run": str(next(numbers))}

    def start(task, *calls):
        session_id = endpoint.rpc("create_session", task=task, labels=labels)["session_id"]
        for call in calls:
            endpoint.rpc("run_function", session_id=session_id, function="do", kwargs={"chore": call})
        return session_id

    started = [start("chores/dishes", *calls) for calls in (["dishes"], ["dishes"], ["nothing"])]
    started += [start("chores/returns-number"), start("chores/returns-true")]
    started += [start("chores/returns-true")]
    endpoint.rpc("create_session", toolpacks=["chores"], labels=labels)
    return f"run={labels['run']}", start, started


numbers = itertools.count()


def test_evaluate_prints_rates_and_lists_invalid_rollouts(endpoint, rollouts):
    label, start, _ = rollouts
    result = run("evaluate", "--url", str(endpoint.http.base_url), "--label", label)
    assert result.exit_code == 0, result.stderr
    assert result.stdout.splitlines() == [
        "task                   n  passed  mean reward",
        "chores/dishes          3       2        0.667",
        "chores/returns-number  1       0        0.250",
        "chores/returns-true    2       2        1.000",
        "",
        "k  pass^k  pass@k",
        "1   0.556   0.556",
    ]
    failing = start("chores/raises")
    result = run("evaluate", "--url", str(endpoint.http.base_url), "--label", label)
    assert result.exit_code == 1
    assert "chores/raises" not in result.stdout
    invalid = f"1 of 7 rollouts are invalid and not counted:\n  {failing} (chores/raises): evaluator: The evaluator"
    assert invalid in result.stderr


def test_unwritable_file_makes_no_rollout_invalid(endpoint, rollouts):
    label, _, _ = rollouts
    result = run_here(
        "evaluate", "--url", endpoint.http.base_url, "--label", label, "--trajectories", "/dev/null/trajectories"
    )
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr == "toolpack-server: Could not open file '/dev/null/trajectories': Not a directory\n"


def test_evaluate_writes_trajectories(endpoint, rollouts, tmp_path):
    label, start, started = rollouts
    endpoint.rpc("submit_answer", session_id=started[0], answer="Done.")
    file = tmp_path / "trajectories.jsonl"
    result = run("evaluate", "--url", str(endpoint.http.base_url), "--label", label, "--trajectories", str(file))
    assert result.exit_code == 0, result.stderr
    lines = {line["session_id"]: line for line in map(json.loads, file.read_text().splitlines())}
    assert lines.keys() == set(started)
    line = lines[started[0]]
    assert list(line) == [
        *("task", "session_id", "labels", "messages", "tools", "reward", "passed", "checks", "metrics"),
        *("valid", "failure", "perturbed", "variant"),
    ]
    assert line["messages"] == [
        {"role": "user", "content": "Do the dishes, once."},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": "call_0", "type": "function", "function": {"name": "do", "arguments": '{"chore": "dishes"}'}}
            ],
        },
        {"role": "tool", "tool_call_id": "call_0", "content": "1"},
        {"role": "assistant", "content": "Done."},
    ]
    assert [tool["function"]["name"] for tool in line["tools"]] == ["do", "look"]
    assert (line["reward"], line["passed"], len(line["checks"])) == (1, True, 2)
    assert lines[started[2]]["messages"][-1]["content"] == "ValueError: nothing is no chore"
    piped = run("evaluate", "--url", str(endpoint.http.base_url), "--label", label, "--trajectories", "-")
    assert len([json.loads(line) for line in piped.stdout.splitlines()]) == 6
    assert "pass^k" in piped.stderr
    failing = start("chores/raises", "dishes")
    piped = run("evaluate", "--url", str(endpoint.http.base_url), "--label", label, "--trajectories", "-")
    (line,) = [line for line in map(json.loads, piped.stdout.splitlines()) if line["session_id"] == failing]
    assert (line["reward"], line["passed"], line["valid"], line["failure"]["kind"]) == (
        None,
        False,
        False,
        "evaluator",
    )
    assert (len(line["messages"]), line["labels"], piped.exit_code) == (3, {"run": label.removeprefix("run=")}, 1)


def test_evaluate_reports_forks_and_records_verdicts(endpoint, rollouts):
    label, _, started = rollouts
    labels = {"run": label.removeprefix("run=")}
    endpoint.rpc("fork_session", session_id=started[0])
    endpoint.rpc("fork_session", session_id=started[0], labels={**labels, "console": "fork"})
    result = run("evaluate", "--url", str(endpoint.http.base_url), "--label", label, "--record")
    assert (result.exit_code, result.stdout.splitlines()[1].split()[:2]) == (0, ["chores/dishes", "4"])
    assert "1 of these 7 are forks of other sessions in this list.\n" in result.stderr
    assert "Forks that the console or a review created, not counted: 1.\n" in result.stderr
    assert len(endpoint.rpc("list_sessions", labels=labels, passed=True)) == 5


def test_evaluate_reads_a_data_directory(tmp_path):
    bench = serving.Bench(CATALOG, store=f"sqlite:///{tmp_path}/sessions.db", key=b"k" * 32)
    session_id, key = begin(bench)
    agent(bench, key, function="do", kwargs=DO)
    bench.close()
    words = ["evaluate", "--data-dir", str(tmp_path), "--pack-dir", str(PACKS), "--packs", "chores,ledger"]
    result = invoke(*words, standalone_mode=False, env={"TOOLPACK_SECRET_KEY": "k" * 32})
    assert result.exit_code == 0, (result.stderr, session_id)
    assert "chores/dishes  1       1        1.000" in result.stdout


def test_prompt_comes_first_unless_the_path_has_a_message_first():
    system_message = {"kind": "message", "role": "system", "content": "Be kind."}
    call = {
        "kind": "call",
        "call_id": None,
        "path_index": 1,
        "function": "a.b",
        "kwargs": {},
        "result": {"x": 1},
        "error": None,
    }
    assistant = {"kind": "message", "role": "assistant", "content": "I look."}
    assert messages("Do it.", [], KINDS) == [{"role": "user", "content": "Do it."}]
    prompt = [{"role": "system", "content": "S"}, {"role": "user", "content": "U"}]
    assert messages(prompt, [call], KINDS)[:2] == prompt
    assert messages("Do it.", [system_message], KINDS)[0] == {"role": "system", "content": "Be kind."}
    with_call = messages("Do it.", [assistant, call], KINDS)
    assert [message["role"] for message in with_call] == ["assistant", "tool"]
    assert with_call[0]["content"] == "I look."
    assert with_call[0]["tool_calls"][0]["function"]["name"] == "a__b"
    assert with_call[1]["content"] == '{"x": 1}'
    answer = {"kind": "answer", "answer": "I look."}
    assert messages("Do it.", [system_message, assistant, answer], KINDS)[-1:] == [
        {"role": "assistant", "content": "I look."}
    ]


@given(st.integers(1, 7), st.data())
def test_pass_rates_for_k_equal_those_over_all_choices(count, data):
    passed_count = data.draw(st.integers(0, count))
    k = data.draw(st.integers(1, count))
    rollouts = [True] * passed_count + [False] * (count - passed_count)
    choices = list(itertools.combinations(rollouts, k))
    rate = Rate("t", count, passed_count, 0.0)
    assert pass_all(rate, k) == pytest.approx(sum(map(all, choices)) / len(choices))
    assert pass_any(rate, k) == pytest.approx(sum(map(any, choices)) / len(choices))
