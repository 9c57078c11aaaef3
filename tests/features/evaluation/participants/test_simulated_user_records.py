"""Records of simulated users: the turns of the model, and a failure, which ends the session for all participants."""

import pytest
from market import CATALOG, Played, play
from serving import Bench, refused

OVER = "A participant has failed, so "


@pytest.fixture(scope="module")
def bench():
    with Bench(CATALOG) as server:
        yield server


def fail(played, **changes):
    params = {"participant": "buyer", "reason": "timeout", "message": "No answer.", **changes}
    return played.bench.rpc("fail_participant", session_id=played.id, **params)


def test_failure_ends_the_session_for_all_and_is_recorded_once(bench):
    played = play(bench, task="market/sale")
    for _ in range(2):
        assert fail(played, call_id="x") is True
    refused(-32009, fail, played, call_id="x", reason="turns")
    assert refused(-32014, fail, played).message == f"{OVER}no failure can be recorded."
    assert refused(-32014, played.send, "seller", "say", text="Hi.").message == f"{OVER}no further message is accepted."
    assert refused(-32014, played.send, "seller", "submit_answer", answer="sold").message.startswith(OVER)
    assert played.send("agent", "listen", wait_seconds=30) == {"messages": [], "done": True}
    assert played.call("buyer", "look")["error"].startswith("EpisodeOverError: a participant has failed")
    assert played.send("buyer", "get_task")["done"]
    assert [each["kind"] for each in played.trace()] == ["failure"]
    summary = next(each for each in bench.rpc("summarize_sessions")["sessions"] if each["session_id"] == played.id)
    assert summary["done"]
    failure = {"kind": "participant", "type": "timeout", "message": "buyer: No answer."}
    verdict = bench.rpc("evaluate_session", session_id=played.id)
    assert (verdict["valid"], verdict["failure"]) == (False, failure)


def test_reset_or_fork_to_before_a_failure_continues(bench):
    played = play(bench)
    played.call("buyer", "bid", amount=1)
    fail(played)
    (fork,) = bench.rpc("fork_session", session_id=played.id)
    assert Played(bench, fork).call("buyer", "bid", amount=2)["error"] is None
    bench.rpc("reset_session", session_id=played.id, version=0)
    assert played.call("buyer", "bid", amount=2)["error"] is None


def test_no_failure_is_recorded_after_the_answer(bench):
    played = play(bench)
    played.send("seller", "submit_answer", answer="sold")
    assert refused(-32014, fail, played).message == "The answer has been submitted, so no failure can be recorded."


def test_turn_ends_nothing_and_is_inherited_by_forks(bench):
    played = play(bench)
    turn = {"participant": "buyer", "metadata": {"prompt_tokens": 7}, "problem": "It was empty."}
    assert bench.rpc("add_turn", session_id=played.id, **turn) is True
    assert turn.items() <= played.trace()[0].items()
    (fork,) = bench.rpc("fork_session", session_id=played.id)
    assert [each["kind"] for each in Played(bench, fork).trace(path=True)] == ["turn"]
    assert not played.send("buyer", "get_task")["done"]


def test_only_the_client_may_record_failures_and_turns(bench):
    played, alone = play(bench), Played(bench, bench.rpc("create_session"))
    for name in ("agent", "buyer"):
        refused(-32601, played.send, name, "fail_participant", participant="buyer", reason="x")
        refused(-32601, played.send, name, "add_turn", participant="buyer")
    assert "no address named 'x'" in refused(-32602, fail, played, participant="x").data["detail"]
    assert "no other participant" in refused(-32602, fail, alone, participant="agent").data["detail"]
    refused(-32602, fail, played, reason="")
    refused(-32007, fail, played, message="x" * (bench.settings.max_record_bytes + 1))
    assert played.trace() == []
