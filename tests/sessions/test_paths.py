"""Paths: the records that led to a session's version, through resets and forks."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from serving import Bench, refused

from toolpack_server.sessions import paths


def path(bench, session_id, **params):
    return bench.rpc("get_trace", session_id=session_id, path=True, **params)


def amounts(bench, session_id, **params):
    return [record["kwargs"].get("amount") for record in path(bench, session_id, **params)]


def test_without_resets_and_forks_the_path_is_the_trace(stored_bench):
    bench = stored_bench
    session_id = bench.create()
    assert path(bench, session_id) == []
    bench.call(session_id, "add", amount=1)
    bench.call(session_id, "total")
    bench.call(session_id, "unknown")
    trace = bench.rpc("get_trace", session_id=session_id)
    expected = [record | {"path_index": n, "session_id": session_id} for n, record in enumerate(trace)]
    assert path(bench, session_id) == expected
    bench.call(session_id, "add", amount=2)  # the path has newer records, too
    assert [record["index"] for record in path(bench, session_id)] == [0, 1, 2, 3]


def test_a_reset_goes_back_on_the_path(stored_bench):
    bench = stored_bench
    session_id = bench.create()
    for amount in (1, 2, 3):
        bench.call(session_id, "add", amount=amount)
    bench.rpc("reset_session", session_id=session_id, version=1)  # version 4
    assert amounts(bench, session_id) == [1]
    bench.call(session_id, "add", amount=4)  # version 5
    assert amounts(bench, session_id) == [1, 4]
    bench.rpc("reset_session", session_id=session_id, version=3)  # this record isn't in the history of version 5
    assert amounts(bench, session_id) == [1, 2, 3]
    bench.rpc("reset_session", session_id=session_id, version=5)
    assert amounts(bench, session_id) == [1, 4]
    bench.rpc("reset_session", session_id=session_id)
    assert amounts(bench, session_id) == []


def test_calls_without_changes_stay_after_a_reset_to_them(stored_bench):
    bench = stored_bench
    session_id = bench.create()
    bench.call(session_id, "add", amount=1)
    bench.call(session_id, "total")
    for _ in range(2):
        bench.rpc("reset_session", session_id=session_id, version=1)
        assert amounts(bench, session_id) == [1, None]
    bench.call(session_id, "total")  # at version 3, which the reset created
    assert amounts(bench, session_id) == [1, None, None]
    bench.rpc("reset_session", session_id=session_id, version=1)
    assert amounts(bench, session_id) == [1, None]


def test_a_forks_path_begins_with_that_of_its_parent(stored_bench):
    bench = stored_bench
    root = bench.create()
    for amount in (1, 2, 3):
        bench.call(root, "add", amount=amount)
    (child,) = bench.rpc("fork_session", session_id=root, version=2)
    bench.call(child["session_id"], "add", amount=10)
    (grandchild,) = bench.rpc("fork_session", session_id=child["session_id"])
    bench.call(root, "add", amount=4)  # after the fork
    bench.call(grandchild["session_id"], "add", amount=100)
    records = path(bench, grandchild["session_id"])
    owners = [root, root, child["session_id"], grandchild["session_id"]]
    assert [(record["path_index"], record["session_id"], record["kwargs"]["amount"]) for record in records] == [
        *zip(range(4), owners, [1, 2, 10, 100], strict=True)
    ]
    assert path(bench, grandchild["session_id"], after=1, limit=2) == records[2:]
    assert path(bench, grandchild["session_id"], after=0, limit=1) == records[1:2]
    assert path(bench, grandchild["session_id"], after=3) == []


def test_a_path_begins_with_those_of_closed_ancestors_too(stored_bench):
    bench = stored_bench
    root = bench.create()
    for amount in (1, 2, 3):
        bench.call(root, "add", amount=amount)
    (child,) = bench.rpc("fork_session", session_id=root, version=2)
    bench.call(child["session_id"], "add", amount=10)
    children = bench.rpc("fork_session", session_id=child["session_id"], count=2)
    before = path(bench, children[0]["session_id"])
    assert [record["session_id"] for record in before] == [root, root, child["session_id"]]
    bench.rpc("close_session", session_id=root)
    bench.rpc("close_session", session_id=child["session_id"])
    assert path(bench, children[0]["session_id"]) == path(bench, children[1]["session_id"]) == before
    assert path(bench, children[0]["session_id"], after=0, limit=1) == before[1:2]
    (last,) = bench.rpc("fork_session", session_id=children[0]["session_id"])
    assert path(bench, last["session_id"]) == before


def test_a_long_path_is_read_in_pages(monkeypatch, make_bench):
    monkeypatch.setattr(paths, "READ_BATCH", 3)
    bench = make_bench(max_list_bytes=1024)
    session_id = bench.create()
    for amount in range(20):
        bench.call(session_id, "add", amount=amount)
    (fork,) = bench.rpc("fork_session", session_id=session_id)
    bench.call(fork["session_id"], "add", amount=20)
    records, after = [], -1
    while page := path(bench, fork["session_id"], after=after):
        assert len(page) < 20
        records += page
        after = page[-1]["path_index"]
    assert [record["kwargs"]["amount"] for record in records] == [*range(21)]


def test_another_owners_path_is_refused(bench):
    session_id = bench.create(owner="ann")
    refused(-32001, path, bench, session_id, owner="bob")


@settings(deadline=None, max_examples=30)
@given(st.data())
def test_replaying_a_history_gives_the_same_environment(data):
    """The history has resets, forks, reads and failures in any order."""
    bench = Bench()
    sessions = [bench.create()]
    for _ in range(data.draw(st.integers(1, 25))):
        session_id = data.draw(st.sampled_from(sessions))
        version = bench.version(session_id)
        step = data.draw(st.sampled_from(["add", "add", "total", "fail", "reset", "fork"]))
        if step == "add":
            bench.call(session_id, "add", amount=data.draw(st.integers(0, 9)))
        elif step == "reset":
            bench.rpc("reset_session", session_id=session_id, version=data.draw(st.integers(0, version)))
        elif step == "fork":
            at = data.draw(st.integers(0, version))
            sessions += [bench.rpc("fork_session", session_id=session_id, version=at)[0]["session_id"]]
        else:
            bench.call(session_id, "add" if step == "fail" else "total")
    for session_id in sessions:
        replayed_id = bench.create()
        for record in path(bench, session_id, limit=1000):
            bench.call(replayed_id, record["function"], **record["kwargs"])
        assert bench.rpc("diff_environment", session_id=session_id, to_session_id=replayed_id) == []
    bench.close()


@pytest.mark.parametrize("lost_count", [1, 5])
def test_a_store_that_has_lost_its_newest_records_is_read_again(bench, lost_count):
    session_id = bench.create()
    for amount in range(5):
        bench.call(session_id, "add", amount=amount)
    assert amounts(bench, session_id) == [0, 1, 2, 3, 4]
    row = bench.store._rows[session_id]
    del row.records[-lost_count:]
    row.version -= lost_count
    bench.sessions.queues.forget([session_id])
    for amount in range(10, 10 + lost_count):
        bench.call(session_id, "add", amount=amount)
    assert amounts(bench, session_id) == [*range(5 - lost_count), *range(10, 10 + lost_count)]


def test_a_fork_inherits_up_to_its_parents_last_record(stored_bench):
    bench = stored_bench
    root = bench.create()
    bench.call(root, "add", amount=1)
    (fork,) = bench.rpc("fork_session", session_id=root)
    bench.call(root, "total")  # a record of the same version
    bench.call(root, "add", amount="much")
    assert amounts(bench, fork["session_id"]) == [1]
    (later,) = bench.rpc("fork_session", session_id=root)
    assert amounts(bench, later["session_id"]) == [1, None, "much"]


def test_a_fork_before_a_record_has_the_world_of_that_time(stored_bench):
    bench = stored_bench
    root = bench.create()
    for function, kwargs in [("total", {}), ("add", {"amount": 1}), ("total", {}), ("add", {"amount": 2})]:
        bench.call(root, function, **kwargs)
    totals = [(0, 0, []), (1, 0, [None]), (2, 1, [None, 1]), (3, 1, [None, 1, None])]
    for before, total, inherited in totals:
        (fork,) = bench.rpc("fork_session", session_id=root, before=before)
        assert amounts(bench, fork["session_id"]) == inherited
        assert (bench.result(fork["session_id"], "total"), fork["parent"]["version"]) == (total, total)
    (fork,) = bench.rpc("fork_session", session_id=root, before=4)
    assert amounts(bench, fork["session_id"]) == [None, 1, None, 2]
    error = refused(-32602, bench.rpc, "fork_session", session_id=root, before=5)
    assert error.data["detail"] == "The session can't be forked before record 5: it has 4 records."
    error = refused(-32602, bench.rpc, "fork_session", session_id=root, before=1, version=1)
    assert error.data["detail"] == "A fork begins at a version or before a record: pass only one of them."
    refused(-32602, bench.rpc, "fork_session", session_id=root, before=-1)
    refused(-32602, bench.rpc, "fork_session", session_id=bench.create(), before=1)


@pytest.mark.parametrize("is_repeated", [0, 1])
def test_a_fork_of_lost_records_is_refused(bench, is_repeated):
    root = bench.create()
    for amount in (1, 2):
        bench.call(root, "add", amount=amount)
    (fork,) = bench.rpc("fork_session", session_id=root)
    assert amounts(bench, fork["session_id"]) == [1, 2]
    row = bench.store._rows[root]
    del row.records[-1]
    row.version -= 1
    bench.sessions.queues.forget([root])
    for _ in range(is_repeated):
        bench.call(root, "add", amount=3)
    refused(-32012, path, bench, fork["session_id"])
