"""A failed call changes nothing in any toolpack, at any point of its failure.

`test_guarantees.py` tests this through the protocol. This module tests it inside the server.
"""

import pytest
import serving

pytestmark = serving.IN_BOTH

WAYS = {
    "raise": "LookupError: half of it is done",
    "exit": "SystemExit: out",
    "interrupt": "KeyboardInterrupt: ",
    "cancel": "CancelledError: ",
    "generator": "GeneratorExit: ",
    "surrogate": "ValueError: ?",
}


def world(bench, session_id):
    return bench.rpc("get_environment", session_id=session_id)


def nothing_changed(bench, session_id, before, version):
    assert world(bench, session_id) == before
    assert bench.version(session_id) == version
    # The next call must not get the live object that the failed call changed.
    assert bench.result(session_id, "total") == sum(before["ledger"]["ledger"]["entries"])


@pytest.mark.parametrize(("how", "error"), WAYS.items())
def test_any_exception_undoes_the_functions_changes(bench, how, error):
    session_id = bench.create()
    bench.result(session_id, "add", amount=5)
    before = world(bench, session_id)
    envelope = bench.call(session_id, "add_then", how=how)
    assert envelope == {"result": "", "error": error}
    nothing_changed(bench, session_id, before, 1)
    assert bench.result(session_id, "add", amount=2) == 7


def test_infinite_recursion_undoes_the_call(bench):
    session_id = bench.create()
    before = world(bench, session_id)
    assert bench.call(session_id, "add_then", how="recurse")["error"].startswith("RecursionError: ")
    nothing_changed(bench, session_id, before, 0)


@pytest.mark.parametrize(
    ("what", "error"), [("object", "ResultError"), ("cycle", "ResultError"), ("much", "TooLargeError")]
)
def test_a_result_without_a_json_form_undoes_the_call(bench, what, error):
    session_id = bench.create()
    before = world(bench, session_id)
    envelope = bench.call(session_id, "add_and_return", what=what)
    assert envelope["result"] == ""
    assert envelope["error"].startswith(f"{error}: ")
    nothing_changed(bench, session_id, before, 0)


def inner(function, **args):
    return {"$call": {"function": function, "args": args}}


def test_an_inner_call_in_another_pack_is_undone_too(bench):
    session_id = bench.create("ledger", "vault")
    before = world(bench, session_id)
    envelope = bench.call(session_id, "add_then", how=inner("echo", value="raise"))
    assert envelope["error"] == "LookupError: half of it is done"
    outer_fails = bench.call(session_id, "add", amount=inner("take_gold", amount=3), unknown=1)
    assert outer_fails["error"].startswith("ValidationError: ")
    inner_fails = bench.call(session_id, "add", amount=inner("take_gold", amount=11))
    assert inner_fails == {"result": "", "error": "ValueError: the vault is empty"}
    first_fits = bench.call(
        session_id, "add", amount=inner("add", amount=inner("take_gold", amount=inner("add", amount=99)))
    )
    assert first_fits["error"] == "ValueError: the vault is empty"
    nothing_changed(bench, session_id, before, 0)


def test_an_inner_and_an_outer_call_are_one_version(bench):
    session_id = bench.create("ledger", "vault")
    assert bench.result(session_id, "add", amount=inner("take_gold", amount=3)) == 3
    after = world(bench, session_id)
    assert after["ledger"]["ledger"]["entries"] == [3]
    assert after["vault"]["vault"]["gold"] == 7
    assert bench.version(session_id) == 1


def test_a_change_to_the_result_of_an_inner_call_is_kept(bench):
    session_id = bench.create("ledger")
    assert bench.result(session_id, "append_to", target=inner("get_ledger"), amount=4) == 1
    assert bench.result(session_id, "total") == 4
    assert world(bench, session_id)["ledger"]["ledger"]["entries"] == [4]
    assert bench.rpc("fork_session", session_id=session_id)[0]["version"] == 0


def test_toolpacks_share_no_objects_even_if_one_stores_anothers(bench):
    session_id = bench.create("ledger", "vault")
    assert bench.result(session_id, "store_list", things=inner("echo", value=["a"])) == 1
    assert bench.result(session_id, "echo", value=inner("get_log")) == ["a"]
    bench.result(session_id, "take_gold", amount=1)
    assert world(bench, session_id)["vault"]["vault"]["log"] == ["a", "took 1"]
