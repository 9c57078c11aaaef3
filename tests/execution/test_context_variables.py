"""Code of a toolpack doesn't see the context variables and the decimal context that other code has set."""

import pytest
from serving import IN_BOTH, PACKS

from toolpack_server.packs.loading import load_catalog

pytestmark = IN_BOTH

CLEAN, LEFT_BY = "clean 28", "{} 4"
PACK = ("variables",)


@pytest.fixture
def bench(make_bench):
    return make_bench(load_catalog((PACKS,), PACK), pack_dir=(PACKS,), packs=PACK)


def nested(function, **args):
    return {"$call": {"function": function, "args": args}}


@pytest.mark.parametrize("function", ["plain", "waiting", "dependent"])
def test_a_call_sees_no_variables_of_other_calls(bench, function):
    sessions = [bench.create("variables") for _ in range(2)]
    for _ in range(4):  # an async function runs on the shared loop only after the server has measured it
        for session in sessions:
            for other in ("plain", "waiting"):
                bench.result(session, other)
            assert bench.result(session, function).startswith(CLEAN)


def test_a_factory_sees_no_variables_of_other_code(bench):
    bench.result(bench.create("variables"), "plain")
    for text in "ab":
        session = bench.create("variables", options={"variables": {"text": text}})
        assert bench.result(session, "made") == CLEAN


@pytest.mark.parametrize("inner", ["plain", "waiting"])
@pytest.mark.parametrize("outer", ["plain", "waiting"])
def test_calls_within_one_call_share_its_variables(bench, inner, outer):
    session = bench.create("variables")
    inner_text = LEFT_BY.format("function" if inner == "plain" else "coroutine")
    for _ in range(4):
        assert bench.result(session, outer, before=nested(inner)) == f"{CLEAN}{inner_text}"


def test_a_function_sees_variables_set_by_its_dependency(bench):
    assert bench.result(bench.create("variables"), "dependent") == f"{CLEAN}, {LEFT_BY.format('dependency')}"


def test_an_evaluator_sees_no_variables_of_calls(bench):
    session = bench.create("variables")
    bench.result(session, "plain")
    for _ in range(2):
        verdict = bench.rpc("evaluate_session", session_id=session, task="variables/any")
        assert [(check["name"], check["detail"]) for check in verdict["checks"] if not check["passed"]] == []
