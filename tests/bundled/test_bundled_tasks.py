"""The tasks of the bundled toolpacks: a solution passes, and an attempt that lacks a part of it fails."""

import re

import pytest
import serving
from serving import RpcError

from toolpack_server.packs.loading import load_catalog

CATALOG = load_catalog((), ("bank", "workspace", "office"))
TASKS = {
    f"{pack.name}/{task.name}": task for pack in CATALOG.toolpacks.values() for task in pack.task_list.all().values()
}
READS = {name for pack in CATALOG.toolpacks.values() for name, one in pack.functions.items() if one.read_only}
NOT_NEEDED = READS | {"read_mail"}


@pytest.fixture(scope="module")
def bench():
    with serving.Bench(CATALOG) as server:
        yield server


def attempt(bench, name, calls, answer):
    session = bench.rpc("create_session", task=name)
    for call in calls:
        key = session["agent_path"].removeprefix("/agents/")
        bench.rpc("run_function", agent_key=key, function=call["function"], kwargs=call["kwargs"])
    verdict = bench.rpc("evaluate_session", session_id=session["session_id"], answer=answer)
    bench.rpc("close_session", session_id=session["session_id"])
    return verdict


def solution(bench, name):
    session_id = bench.rpc("create_session", task=name)["session_id"]
    solution = bench.rpc("get_solution", session_id=session_id)
    bench.rpc("close_session", session_id=session_id)
    return solution["calls"], solution["answer"]


def test_tasks_have_three_levels_of_difficulty():
    for pack, count in (("bank", 12), ("workspace", 20), ("office", 12)):
        tags = [set(task.tags) for name, task in TASKS.items() if name.startswith(pack)]
        assert len(tags) == count
        for level in ("easy", "medium", "hard"):
            assert sum(level in of for of in tags) >= 3
        assert all(len(of & {"easy", "medium", "hard"}) == len(of & {"read", "change"}) == 1 for of in tags)


@pytest.mark.parametrize("name", TASKS)
def test_solution_passes_and_incomplete_attempts_fail(bench, name):
    calls, answer = solution(bench, name)
    assert attempt(bench, name, calls, answer)["passed"]
    assert attempt(bench, name, [call for call in calls if call["function"] not in READS], answer)["passed"]
    assert not attempt(bench, name, [], "")["passed"]
    if answer:
        assert not attempt(bench, name, calls, "I don't know.")["passed"]
    for index, call in enumerate(calls):
        if call["function"] not in NOT_NEEDED:
            assert not attempt(bench, name, calls[:index] + calls[index + 1 :], answer)["passed"], call


@pytest.mark.parametrize("name", [name for name, task in TASKS.items() if "change" in task.tags])
def test_attempt_with_an_extra_change_fails(bench, name):
    calls, answer = solution(bench, name)
    if name not in LENIENT:
        assert not attempt(bench, name, [MORE[name.partition("/")[0]], *calls], answer)["passed"]


MORE = {
    "bank": {
        "function": "send_money",
        "kwargs": {"recipient": "DE02120300000000202051", "amount": "1.00", "subject": "Tip"},
    },
    "workspace": {
        "function": "send_mail",
        "kwargs": {"recipients": ["somebody@else.example"], "subject": "Hello, cancelled", "body": "Hello"},
    },
    "office": {"function": "set_price", "kwargs": {"sku": "PU-1000", "price": "1.00"}},
}


@pytest.mark.parametrize("spell", [float, lambda amount: str(float(amount)), lambda amount: f"0{amount}"])
@pytest.mark.parametrize("name", [name for name in TASKS if name.startswith("bank/")])
def test_amounts_are_compared_by_value(bench, name, spell):
    calls, answer = solution(bench, name)
    for call in calls:
        if "amount" in call["kwargs"]:
            call["kwargs"]["amount"] = spell(call["kwargs"]["amount"])
    assert attempt(bench, name, calls, answer)["passed"]


@pytest.mark.parametrize("name", [name for name, task in TASKS.items() if any(map(str.isdigit, task.answer))])
def test_answer_that_merely_contains_the_number_fails(bench, name):
    calls, answer = solution(bench, name)
    for wrong in (r"9\g<0>", *([] if re.search(r"\d[:-]\d", answer) else [r"-\g<0>"])):
        wrong_answer = re.sub(r"(?<![\d.:-])\d+(\.\d+)?", wrong, answer)
        assert not attempt(bench, name, calls, wrong_answer)["passed"], wrong_answer


LENIENT = {
    # These tasks ask for nothing about mails, so an extra mail is harmless.
    *("workspace/accept-budget-talk", "workspace/no-fire-drill", "workspace/lunch-later", "workspace/tablet-test"),
    *("workspace/planning-for-jonas", "workspace/tidy-newsletter", "workspace/archive-offers"),
    *("workspace/share-feedback", "workspace/fifteen-percent", "workspace/march-deadlines"),
}


@pytest.mark.parametrize("name", TASKS)
def test_solution_passes_unless_the_fault_is_permanent(bench, name):
    calls, answer = solution(bench, name)
    variants = bench.rpc("get_task", task=name)["variants"]
    assert {"outage", "outage-permanent", "flaky"} <= {*variants}
    for variant in {*variants} - {"flaky"}:
        permanent = variant.endswith("-permanent")
        session = bench.rpc("create_session", task=name, perturbations={"variant": variant})
        key = session["agent_path"].removeprefix("/agents/")
        for call in calls:
            params = {"function": call["function"], "kwargs": call["kwargs"]}
            for _ in range(1 if permanent else 3):
                reply = bench.rpc("run_function", agent_key=key, **params)
                perturbed = bench.rpc("get_trace", session_id=session["session_id"])[-1].get("perturbed", {"run": True})
                if perturbed["run"] if variant == "phantom" else reply["error"] is None or variant == "lost":
                    break
        verdict = bench.rpc("evaluate_session", session_id=session["session_id"], answer=answer)
        may_pass = not permanent or "lost" not in variants  # a task without changes passes by its answer alone
        assert (verdict["passed"], verdict["valid"], verdict["perturbed"].keys()) == (may_pass, True, {"0"}), variant


def test_solution_says_which_calls_are_missing(bench):
    """One call equals a call of the solution except for its spelling. Another call is only similar to one."""
    session_id = bench.rpc("create_session", task="bank/moving-out")["session_id"]
    calls = bench.rpc("get_solution", session_id=session_id)["calls"]
    assert [*map(sorted, calls)] == [["by", "function", "kwargs"]] * len(calls)
    (cancel, _), (send,) = (
        [call for call in calls if call["function"] == function] for function in ("cancel_standing_order", "send_money")
    )
    bench.rpc("run_function", session_id=session_id, function="send_money", kwargs={**send["kwargs"], "amount": "1"})
    bench.rpc("run_function", session_id=session_id, function="cancel_standing_order", kwargs={"order_id": 99})
    texts = {name: str(value) for name, value in cancel["kwargs"].items()}
    bench.rpc("run_function", session_id=session_id, function="cancel_standing_order", kwargs=texts)
    solution = bench.rpc("get_solution", session_id=session_id)
    assert [call for call in solution["calls"] if "path_index" in call] == [{**cancel, "path_index": 2}]
    assert solution["rest"] == [call for call in solution["calls"] if "path_index" not in call]
    assert [call for call in solution["rest"] if "similar" in call] == [{**send, "similar": 0}]
    assert bench.rpc("get_solution", session_id=session_id, version=0)["rest"] == calls
    with pytest.raises(RpcError, match="version"):
        bench.rpc("get_solution", session_id=session_id, version=9)
