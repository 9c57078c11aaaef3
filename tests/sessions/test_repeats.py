"""Repeated requests that create or reset sessions: requests with the same call_id get the first answer."""

import pytest
import serving
from serving import Bench, open_store, refused

from toolpack_server.engine.batcher import Batcher

CREATE = {"toolpacks": ["ledger"], "labels": {"run": "1"}, "ttl_seconds": 60}


def test_a_repeated_create_gets_the_same_session(stored_bench):
    first = stored_bench.rpc("create_session", call_id="c", **CREATE)
    stored_bench.result(first["session_id"], "add", amount=1)
    assert stored_bench.rpc("create_session", call_id="c", **CREATE) == first
    assert stored_bench.store.count() == 1
    assert stored_bench.rpc("create_session", call_id="d", **CREATE)["session_id"] != first["session_id"]


def test_a_repeated_fork_returns_the_same_sessions(stored_bench):
    parent = stored_bench.create()
    stored_bench.result(parent, "add", amount=1)
    first = stored_bench.rpc("fork_session", session_id=parent, count=3, call_id="f")
    assert len({fork["session_id"] for fork in first}) == 3
    stored_bench.result(parent, "add", amount=1)
    assert stored_bench.rpc("fork_session", session_id=parent, count=3, call_id="f") == first
    stored_bench.rpc("close_session", session_id=parent)
    assert stored_bench.rpc("fork_session", session_id=parent, count=3, call_id="f") == first
    assert stored_bench.result(first[2]["session_id"], "total") == 1


def test_ids_of_forks_made_together_differ_early(stored_bench):
    parent = stored_bench.create()
    for call_id in ("f", None):
        forks = stored_bench.rpc("fork_session", session_id=parent, count=20, call_id=call_id)
        ids = [fork["session_id"] for fork in forks]
        assert len({session_id[:8] for session_id in ids}) == 20
        summaries = stored_bench.rpc("list_sessions", order="-created", limit=20)
        assert [session["session_id"] for session in summaries] == ids[::-1]


def test_a_repeated_fork_works_after_one_was_closed(stored_bench):
    parent = stored_bench.create()
    params = {"session_id": parent, "count": 3, "call_id": "f"}
    first = stored_bench.rpc("fork_session", **params)
    stored_bench.rpc("close_session", session_id=first[1]["session_id"])
    assert stored_bench.rpc("fork_session", **params) == [first[0], first[2]]
    stored_bench.rpc("close_session", session_id=first[0]["session_id"])
    repeated = stored_bench.rpc("fork_session", **params)
    assert [fork["session_id"] for fork in repeated] == [fork["session_id"] for fork in first]
    assert repeated[2] == first[2]


def test_a_repeated_reset_gets_the_same_version(stored_bench):
    session_id = stored_bench.create()
    stored_bench.result(session_id, "add", amount=1)
    first = stored_bench.rpc("reset_session", session_id=session_id, call_id="r")
    assert first["version"] == 2
    stored_bench.result(session_id, "add", amount=5)
    repeated = stored_bench.rpc("reset_session", session_id=session_id, call_id="r")
    assert repeated["version"] == 2
    assert stored_bench.result(session_id, "total") == 5
    kinds = [record["kind"] for record in stored_bench.rpc("get_trace", session_id=session_id)]
    assert kinds == ["call", "reset", "call", "call"]
    assert stored_bench.rpc("get_trace", session_id=session_id)[1]["call_id"] == "r"


def test_session_ids_of_repeats_are_the_same_in_later_versions(stored_bench):
    """The last digits of a session's id are a digest of its request.

    A member that a later version or a feature adds to requests must not change the digest if a client omits it.
    """
    session_id = stored_bench.rpc("create_session", call_id="c", **CREATE)["session_id"]
    (fork,) = stored_bench.rpc("fork_session", session_id=session_id, call_id="f")
    assert (session_id[-12:], fork["session_id"][-12:]) == ("d2da4114c9ac", "d72c2c989470")


@pytest.mark.parametrize(
    "other",
    [{"toolpacks": ["vault"]}, {"labels": {}}, {"ttl_seconds": 61}, {"environment": {"ledger": {}}}],
)
def test_a_call_id_of_another_create_is_refused(stored_bench, other):
    stored_bench.rpc("create_session", call_id="c", **CREATE)
    reused = refused(-32009, stored_bench.rpc, "create_session", call_id="c", **{**CREATE, **other})
    assert reused.data == {"type": "CallIdReusedError"}
    assert stored_bench.store.count() == 1


@pytest.mark.parametrize("other", [{"count": 3}, {"count": 1}, {"version": 0}, {"labels": {"a": "b"}}])
def test_a_call_id_of_another_fork_is_refused(stored_bench, other):
    session_id = stored_bench.create()
    stored_bench.rpc("fork_session", session_id=session_id, call_id="f", count=2)
    params = {"session_id": session_id, "count": 2, "call_id": "f", **other}
    refused(-32009, stored_bench.rpc, "fork_session", **params)
    refused(-32009, stored_bench.rpc, "create_session", call_id="f")
    assert stored_bench.store.count() == 3


def test_a_call_id_of_another_reset_or_of_a_call_is_refused(stored_bench):
    session_id = stored_bench.create()
    stored_bench.call(session_id, "add", {"call_id": "one"}, amount=1)
    stored_bench.rpc("reset_session", session_id=session_id, call_id="two")
    refused(-32009, stored_bench.rpc, "reset_session", session_id=session_id, version=1, call_id="two")
    refused(-32009, stored_bench.rpc, "reset_session", session_id=session_id, call_id="one")
    refused(-32009, stored_bench.call, session_id, "add", {"call_id": "two"}, amount=1)
    assert stored_bench.version(session_id) == 2


def test_call_ids_of_creation_belong_to_one_name(stored_bench):
    ann = stored_bench.rpc("create_session", call_id="c", owner="ann", **CREATE)
    bob = stored_bench.rpc("create_session", call_id="c", owner="bob", **CREATE)
    assert ann["session_id"] != bob["session_id"]


def test_a_refused_create_leaves_its_call_id_free(stored_bench):
    refused(-32602, stored_bench.rpc, "create_session", toolpacks=["unknown"], call_id="c")
    stored_bench.rpc("create_session", call_id="c", **CREATE)


@pytest.mark.parametrize("method", ["create_session", "fork_session", "reset_session"])
def test_two_equal_requests_at_once_run_once(stored_bench, method):
    params = {**CREATE}
    if method != "create_session":
        params = {"session_id": stored_bench.create()}
    before = stored_bench.store.count()
    with stored_bench.paused():
        futures = [stored_bench.later(method, call_id="same", **params) for _ in range(8)]
    answers = [answer.result(serving.PATIENCE) for answer in futures]
    if method == "reset_session":
        assert {answer["version"] for answer in answers} == {1}
        assert stored_bench.version(params["session_id"]) == 1
    else:
        assert all(answer == answers[0] for answer in answers)
        assert stored_bench.store.count() == before + 1


def test_one_of_two_different_requests_of_one_id_is_refused(stored_bench, monkeypatch):
    take = Batcher._take

    def take_both(batcher, batch):
        serving.wait_until(lambda: len(batcher._waiting) > 1, "both requests")
        take(batcher, batch)

    stored_bench.create()  # from now on, sessions with the same start are created in a batch
    monkeypatch.setattr(Batcher, "_take", take_both)
    with stored_bench.paused():
        futures = [
            stored_bench.later("create_session", call_id="same", **CREATE | {"ttl_seconds": n}) for n in (60, 61)
        ]
    assert futures[0].result(serving.PATIENCE)["session_id"]
    refused(-32009, futures[1].result, serving.PATIENCE)
    assert stored_bench.store.count() == 2


def test_repeats_work_after_a_restart_and_at_other_workers(tmp_path, make_bench):
    url = f"sqlite:///{tmp_path / 'sessions.db'}"
    benches = [Bench(store=open_store(url, exclusive=False)) for _ in range(2)]
    one, two = benches
    created = one.rpc("create_session", call_id="c", **CREATE)
    session_id = created["session_id"]
    assert two.rpc("create_session", call_id="c", **CREATE) == created
    forks = two.rpc("fork_session", session_id=session_id, count=2, call_id="f")
    assert one.rpc("fork_session", session_id=session_id, count=2, call_id="f") == forks
    assert one.rpc("reset_session", session_id=session_id, call_id="r")["version"] == 1
    assert two.rpc("reset_session", session_id=session_id, call_id="r")["version"] == 1
    with one.paused(), two.paused():
        futures = [bench.later("create_session", call_id="d", **CREATE) for bench in benches for _ in range(4)]
    answers = [answer.result(serving.PATIENCE) for answer in futures]
    assert all(answer == answers[0] for answer in answers)
    for bench in benches:
        bench.close()
        bench.store.close()
    restarted = make_bench(store=url)
    assert restarted.rpc("create_session", call_id="c", **CREATE) == created
    assert restarted.rpc("fork_session", session_id=session_id, count=2, call_id="f") == forks
    assert restarted.rpc("reset_session", session_id=session_id, call_id="r")["version"] == 1
    assert restarted.version(session_id) == 1
