"""Falsely read-only functions: the server detects that such a function has written, and undoes the changes."""

import logging

import pytest
import serving
from hypothesis import given, settings
from hypothesis import strategies as st

from toolpack_server.engine import jobs, threads
from toolpack_server.execution import read_only_checks
from toolpack_server.execution.read_only_checks import FIRST_CALLS, SHARE, ReadOnlyChecks
from toolpack_server.packs.loading import load_catalog

NAMES = ("liars", "ledger")
CATALOG = load_catalog((serving.PACKS,), NAMES)


@pytest.fixture(params=["memory", "sqlite"])
def bench(request, store_url, make_bench):
    return make_bench(CATALOG, store_url(request.param), packs=NAMES)


def words_seen(bench, session_id):
    return bench.rpc("get_environment", session_id=session_id, pointer="/liars/seen")


@serving.in_both
@pytest.mark.parametrize(
    ("function", "kwargs", "path"),
    [
        ("search", {"word": "a"}, "env.seen"),
        ("look", {}, "env.shelf._looks"),
        ("lend", {"name": "ann"}, "env.shelf.lent"),
        ("hide", {}, "env.notes"),
        ("rename", {}, "env.seen"),
        ("sort_argument", {"argument": {"$call": {"function": "get_shelf", "args": {}}}}, "env.shelf.books[0]"),
    ],
)
def test_a_write_in_a_read_only_function_is_named_and_undone(bench, function, kwargs, path):
    session_id = bench.create("liars", environment={"liars": {"seen": ["b", "a"], "shelf": {"books": ["b", "a"]}}})
    before = bench.rpc("get_environment", session_id=session_id)
    answer = bench.call(session_id, function, **kwargs)
    assert answer == {"result": "", "error": f"ReadOnlyError: {function} promised read_only=True but changed {path}"}
    assert bench.rpc("get_environment", session_id=session_id) == before
    assert bench.version(session_id) == 0
    # The cached objects are those of the snapshot, too.
    assert bench.result(session_id, "get_seen") == ["b", "a"]
    assert bench.rpc("get_trace", session_id=session_id)[0]["error"] == answer["error"]


@serving.in_both
def test_a_caught_function_counts_as_changing_from_then_on(bench, caplog):
    session_id = bench.create("liars")
    with caplog.at_level(logging.WARNING, "toolpack_server"):
        assert bench.call(session_id, "search", word="a")["error"].startswith("ReadOnlyError")
    assert bench.result(session_id, "search", word="b") == 1
    assert (bench.version(session_id), words_seen(bench, session_id)) == (1, ["b"])
    other = bench.create("liars")
    assert bench.result(other, "search", word="c") == 1
    assert (bench.version(other), words_seen(bench, other)) == (1, ["c"])
    (line,) = [record.getMessage() for record in caplog.records if "promised" in record.getMessage()]
    assert "liars.py:" in line
    assert ": search: it promised read_only=True but changed env.seen: [0] is new" in line
    assert "The server now treats it as a changing function" in line


@serving.in_both
def test_with_raise_on_error_a_caught_function_raises(bench):
    session_id = bench.create("liars")
    error = serving.refused(
        -32002, bench.rpc, "run_function", session_id=session_id, function="look", raise_on_error=True
    )
    assert (error.message, error.data["type"]) == (
        "look promised read_only=True but changed env.shelf._looks",
        "ReadOnlyError",
    )


@serving.in_both
def test_a_caught_nested_function_fails_the_outer_call(bench):
    session_id = bench.create("liars", "ledger")
    inner = {"$call": {"function": "search", "args": {"word": "a"}}}
    answer = bench.call(session_id, "add", amount=inner)
    assert answer["error"] == "ReadOnlyError: search promised read_only=True but changed env.seen"
    assert (bench.version(session_id), bench.result(session_id, "total")) == (0, 0)
    # A changing function may write, and its changes are committed with the rest.
    assert bench.result(session_id, "add", amount=inner) == 1
    assert (bench.version(session_id), words_seen(bench, session_id)) == (1, ["a"])


@serving.in_both
def test_a_read_is_compared_with_the_state_after_inner_calls(bench):
    session_id = bench.create("liars")
    see = {"$call": {"function": "see_word", "args": {"word": "a"}}}
    answer = bench.call(session_id, "search", word=see)
    assert answer["error"] == "ReadOnlyError: search promised read_only=True but changed env.seen"
    assert (bench.version(session_id), words_seen(bench, session_id)) == (0, [])
    see["$call"]["args"]["word"] = "nothing"  # now the function changes nothing, and the inner call's change is kept
    assert bench.result(session_id, "get_seen_after", word=see) == ["nothing"]
    assert (bench.version(session_id), words_seen(bench, session_id)) == (1, ["nothing"])


def test_a_setting_compares_every_call(make_bench):
    bench = make_bench(CATALOG, packs=NAMES, verify_read_only=True)
    session_id = bench.create("liars")
    for _ in range(3 * FIRST_CALLS):
        assert bench.result(session_id, "search", word="nothing") == 0
    assert bench.call(session_id, "search", word="late")["error"].startswith("ReadOnlyError")


def test_objects_are_compared_only_where_their_bytes_differ(make_bench, monkeypatch):
    walked = []
    compare = read_only_checks.first_difference
    monkeypatch.setattr(read_only_checks, "first_difference", lambda *pair: walked.append(pair[0]) or compare(*pair))
    bench = make_bench(CATALOG, packs=NAMES, verify_read_only=True, cache_bytes=0)
    shelf = {"books": [f"book {number}" for number in range(999, 0, -1)], "lent": ["ann", "bob", "carl", "dora"]}
    environment = {"liars": {"seen": ["a word"] * 1000, "shelf": shelf, "notes": {"a": [1, 2] * 500}}}
    session_id = bench.rpc("create_session", toolpacks=["liars"], environment=environment)["session_id"]
    for _ in range(3):  # first on a restored environment, then on the live environment of the last call
        assert bench.result(session_id, "search", word="nothing") == bench.result(session_id, "see", word="more") - 1
    bench.result(session_id, "search", word="nothing")
    assert walked == []
    error = bench.call(session_id, "lend", name="eve")["error"]
    assert error.endswith("changed env.shelf.lent")
    assert len(walked) == 1


def test_comparing_does_not_count_towards_the_deadline(make_bench, monkeypatch):
    clock = serving.Clock(monkeypatch, jobs, threads)
    compared = []
    monkeypatch.setattr(read_only_checks.ReadOnlyCheck, "change", lambda *_: compared.append(clock.move(0.8)))
    bench = make_bench(CATALOG, packs=NAMES)
    assert bench.call(bench.create("liars"), "search", {"timeout_seconds": 0.6}, word="nothing")["result"] == 0
    assert compared


def time_calls(tally, clock, times, seconds, compared_seconds):
    """Call a function this number of times. Return the seconds of calling and of comparing."""
    spent = [0.0, 0.0]
    for _ in range(times):
        due = tally.is_due("pack", "f")
        took = compared_seconds if due else None
        clock.move(seconds + (took or 0))
        tally.called("pack", "f", seconds + (took or 0), took)
        spent[0] += seconds
        spent[1] += took or 0
    return spent


@settings(deadline=None)
@given(seconds=st.floats(1e-5, 1), compared_seconds=st.floats(1e-5, 1), times=st.integers(1, 400))
def test_comparing_stays_within_its_share_of_time(seconds, compared_seconds, times):
    with pytest.MonkeyPatch.context() as patch:
        clock = serving.Clock(patch, read_only_checks)
        tally = ReadOnlyChecks()
        first = time_calls(tally, clock, FIRST_CALLS, seconds, compared_seconds)
        assert first[1] == pytest.approx(FIRST_CALLS * compared_seconds)  # the first calls are always compared
        spent = time_calls(tally, clock, times, seconds, compared_seconds)
        assert spent[1] <= SHARE * (spent[0] + spent[1] + sum(first)) + 1e-9


def test_comparing_has_a_share_of_each_functions_time(monkeypatch):
    """The calls of a quick function don't become slow, even if much time passes between them."""
    clock = serving.Clock(monkeypatch, read_only_checks)
    tally = ReadOnlyChecks()
    time_calls(tally, clock, FIRST_CALLS, 0.001, 0.001)
    clock.move(10_000)
    spent = time_calls(tally, clock, 150, 0.001, 0.001)
    assert spent[1] == 0  # 156 ms of calls allow 3 ms of comparing, and the first calls have used these up
    spent = time_calls(tally, clock, 850, 0.001, 0.001)
    assert 0.001 <= spent[1] <= SHARE * (1.01 + spent[1])


def test_waiting_functions_share_one_budget_for_comparing(monkeypatch):
    clock = serving.Clock(monkeypatch, read_only_checks)
    tally = ReadOnlyChecks()
    compared, start = 0.0, clock.monotonic()
    for _ in range(1000):
        clock.move(0.01)
        for thread in range(50):  # each has waited for half a second
            due = tally.is_due("pack", f"f{thread}")
            compared += 0.005 * due
            tally.called("pack", f"f{thread}", 0.5, 0.005 if due else None)
    assert compared <= SHARE * (clock.monotonic() - start) + 50 * FIRST_CALLS * 0.005
