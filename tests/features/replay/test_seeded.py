"""Seeded sessions repeat exactly: in another process, on another server, after a restart, and in a fork."""

import base64
import time
from datetime import datetime
from functools import partial

import pytest
from serving import PACKS, Bench, refused

from toolpack_server.execution.read_only_checks import FIRST_CALLS
from toolpack_server.features.executors.settings import ExecutorsSettings
from toolpack_server.packs.loading import load_catalog

NAMES = ("dice", "liars")
CATALOG = load_catalog((PACKS,), NAMES)
PINNED = {"seed": "a seed", "clock": "2026-03-02T09:30:00Z"}


process_bench = partial(Bench, CATALOG, isolation="process", pack_dir=(PACKS,), packs=NAMES)


@pytest.fixture(scope="module")
def bench():
    with process_bench() as server:
        yield server


@pytest.fixture(scope="module")
def other():
    with process_bench(key=b"another key, of another server!!") as server:
        yield server


def play(bench, session_id, rounds=2):
    """Call all functions. Return the answers."""
    answers = []
    for number in range(rounds):
        for function, kwargs in (
            *(
                ("throw", {}),
                ("throw", {"sides": 10**9}),
                ("look", {}),
                ("throw_later", {}),
                ("fail", {}),
                ("seats", {}),
            ),
            *((("join", {"name": f"{number} {name}"})) for name in "abcdefgh"),
            *(("throw", {"sides": "none"}), ("none", {}), ("look", {})),
            ("throw", {"sides": {"$call": {"function": "throw", "args": {}}}}),
        ):
            answers.append(bench.call(session_id, function, **kwargs))
        answers.append(bench.rpc("reset_session", session_id=session_id, version=2)["version"])
        answers.append(bench.call(session_id, "throw"))
    return answers


def states(bench, session_id):
    return [record.get("state") for record in bench.rpc("get_trace", session_id=session_id, limit=1000)]


def environment(bench, session_id, **params):
    return bench.rpc("get_environment", session_id=session_id, **params)


def test_two_servers_return_the_same_values(bench, other):
    sessions = [(each, each.create("dice", options={"dice": {"players": 9}}, **PINNED)) for each in (bench, other)]
    first, second = (play(*session) for session in sessions)
    assert first == second
    assert states(*sessions[0]) == states(*sessions[1])
    assert all(len(state) == 32 for state in states(*sessions[0]))
    assert environment(*sessions[0]) == environment(*sessions[1])


def test_other_seeds_and_clocks_return_other_values(bench):
    pins = [
        PINNED,
        PINNED | {"seed": "another"},
        PINNED | {"clock": "2026-03-02T09:30:01Z"},
        PINNED | {"clock_step_seconds": 2},
    ]
    answers = [play(bench, bench.create("dice", **each), 1) for each in pins]
    assert len({str(each) for each in answers}) == len(pins)
    same_time = bench.create("dice", **PINNED | {"clock": "2026-03-02T10:30:00.000+01:00"})
    assert play(bench, same_time, 1) == answers[0]


def test_session_shows_seed_and_clock_only_to_the_client(bench):
    plain = bench.rpc("create_session", toolpacks=["dice"])
    assert {"seed", "clock", "clock_step_seconds"} & plain.keys() == set()
    session = bench.rpc("create_session", toolpacks=["dice"], **PINNED)
    assert [session[name] for name in ("seed", "clock", "clock_step_seconds")] == [*PINNED.values(), 1.0]
    assert bench.rpc("get_session", session_id=session["session_id"])["seed"] == "a seed"
    seeded = bench.rpc("create_session", toolpacks=["dice"], seed="x", labels={"only": "seed"})
    assert bench.rpc("list_sessions", labels={"only": "seed"})[0]["seed"] == seeded["seed"] == "x"
    agent = session["agent_path"].removeprefix("/agents/")
    reply = bench.answer(b'{"jsonrpc":"2.0","id":1,"method":"list_functions"}', agent_key=agent)
    assert b"a seed" not in reply
    bench.call(plain["session_id"], "throw")
    assert states(bench, plain["session_id"]) == [None]


def test_clock_ticks_with_each_record(bench):
    session_id = bench.create("dice", clock="2026-03-02T09:30:00Z", clock_step_seconds=60)
    start = 1772443800
    assert environment(bench, session_id, pointer="/dice/opened_at") == "2026-03-02T09:30:00Z"
    for tick in (1, 2):
        assert bench.result(session_id, "look")[0] == start + tick * 60
    bench.call(session_id, "fail")
    refused(-32005, bench.call, session_id, "look", {"expected_version": 9})
    bench.call(session_id, "look", {"call_id": "x"})
    bench.call(session_id, "look", {"call_id": "x"})
    bench.rpc("reset_session", session_id=session_id)
    assert bench.result(session_id, "look")[:2] == [start + 6 * 60, (start + 6 * 60) * 10**9 + 1000]


@pytest.mark.parametrize("clock", ["1900-01-01T00:00:00Z", "1970-01-01T00:00:00Z", "9000-12-31T23:59:59Z"])
def test_any_allowed_clock_is_seen_by_functions(bench, clock):
    session_id = bench.create("dice", clock=clock, clock_step_seconds=0)
    assert environment(bench, session_id, pointer="/dice/opened_at") == clock
    assert bench.result(session_id, "look")[0] == datetime.fromisoformat(clock).timestamp()


def test_next_unpinned_call_has_real_time_and_random_numbers(bench):
    pinned, plain = bench.create("dice", **PINNED), bench.create("dice")
    looks = []
    for _ in range(3):
        bench.call(pinned, "look")
        looks.append(bench.result(plain, "look"))
        assert abs(looks[-1][0] - time.time()) < 60
    assert len({tuple(look[4:10]) for look in looks}) == 3
    fresh = [environment(bench, bench.create("dice"), pointer="/dice/opened_at") for _ in range(2)]
    assert all(not opened.startswith("2026-03-02T09:30") for opened in fresh)


def test_seed_or_clock_may_be_used_alone(bench, other):
    seeded = [each.result(each.create("dice", seed="x"), "look") for each in (bench, other)]
    assert seeded[0][4:10] == seeded[1][4:10]
    assert abs(seeded[0][0] - time.time()) < 60
    clocked = [each.result(each.create("dice", clock=PINNED["clock"]), "look") for each in (bench, other)]
    assert clocked[0][:3] == clocked[1][:3]
    assert clocked[0][4:10] != clocked[1][4:10]


def test_fork_repeats_what_its_parent_does_next(bench):
    parent = bench.create("dice", **PINNED)
    bench.call(parent, "throw")
    bench.call(parent, "look")
    bench.call(parent, "throw")
    forks = [each["session_id"] for each in bench.rpc("fork_session", session_id=parent, count=2)]
    grandchild = bench.rpc("fork_session", session_id=forks[0])[0]["session_id"]
    expected = play(bench, parent, 1)[:5]
    for fork in (*forks, grandchild):
        assert play(bench, fork, 1)[:5] == expected
    of_version_1 = bench.rpc("fork_session", session_id=parent, version=1)[0]["session_id"]
    repeated = bench.create("dice", **PINNED)
    bench.call(repeated, "throw")
    assert bench.result(of_version_1, "look") == bench.result(repeated, "look")
    at_once = bench.rpc("fork_session", session_id=parent, version=0)[0]["session_id"]
    assert bench.result(at_once, "look") == bench.result(bench.create("dice", **PINNED), "look")
    trace = bench.rpc("get_trace", session_id=parent)
    for record in trace[:3]:  # throw, look, throw
        (fork,) = bench.rpc("fork_session", session_id=parent, before=record["index"])
        assert bench.result(fork["session_id"], record["function"]) == record["result"]
    assert [bench.rpc("get_session", session_id=session_id)["seed"] for session_id in (*forks, grandchild)] == [
        "a seed"
    ] * 3


def test_fork_may_have_its_own_seed(bench):
    parent = bench.create("dice", **PINNED)
    bench.call(parent, "throw")

    def fork(**params):
        return bench.rpc("fork_session", session_id=parent, **params)[0]

    differing = [fork(), fork(seed="b"), fork(clock="2030-01-01T00:00:00Z"), fork(clock_step_seconds=5)]
    assert len({str(bench.result(each["session_id"], "look")) for each in differing}) == 4
    assert [each["clock_step_seconds"] for each in differing] == [1, 1, 1, 5]
    plain = bench.create("dice")
    seeded = bench.rpc("fork_session", session_id=plain, seed="b")[0]
    assert seeded["seed"] == "b"
    bench.call(seeded["session_id"], "throw")
    assert states(bench, seeded["session_id"])[0]
    refused(-32602, fork, seed="")
    refused(-32602, bench.rpc, "fork_session", session_id=plain, clock_step_seconds=5)


def test_seeded_session_repeats_after_a_restart(tmp_path):
    url = f"sqlite:///{tmp_path}/s.db"
    with process_bench(store=url) as uninterrupted:
        expected = play(uninterrupted, uninterrupted.create("dice", **PINNED), 2)
    with process_bench(store=url) as first:
        session_id = first.create("dice", **PINNED)
        answers = play(first, session_id, 1)
    with process_bench(store=url) as second:
        fork = second.rpc("fork_session", session_id=session_id)[0]["session_id"]
        assert [*answers, second.call(session_id, "throw")] == expected[: len(answers) + 1]
        assert second.call(fork, "throw") == expected[len(answers)]


@pytest.mark.heavy
def test_every_executor_returns_the_same_values():
    with process_bench(of_features=[ExecutorsSettings(calls=1)]) as bench, process_bench() as other:
        answers = [play(each, each.create("dice", **PINNED), 1) for each in (bench, other)]
        assert answers[0] == answers[1]


def test_failed_calls_use_up_their_tick(bench, other):
    trace = []
    for each in (bench, other):
        session_id = each.create("dice", **PINNED)
        before = environment(each, session_id)
        assert each.call(session_id, "stall")["error"].startswith("TimeoutError")
        assert each.call(session_id, "crash")["error"].startswith("CrashedError")
        assert environment(each, session_id) == before
        trace.append([each.result(session_id, "look"), states(each, session_id)])
        assert len({*states(each, session_id)}) == 1
        replayed = each.rpc("replay_session", session_id=session_id)
        assert replayed["complete"] is True
        assert states(each, replayed["session"]["session_id"]) == states(each, session_id)
    assert trace[0] == trace[1]


def test_leftovers_of_functions_are_not_visible(bench):
    expected = bench.result(bench.create("dice", **PINNED), "straggle")
    session_id = bench.create("dice", **PINNED)
    assert bench.result(session_id, "straggle") == expected
    looks = bench.result(session_id, "look")
    repeated = bench.create("dice", **PINNED)
    bench.call(repeated, "fail")
    assert bench.result(repeated, "look") == looks


def test_read_only_calls_are_never_verified(bench):
    """The server verifies calls depending on their duration, so a repeated call could return another value."""
    session_id = bench.create("liars", **PINNED)
    for _ in range(2 * FIRST_CALLS):
        assert bench.result(session_id, "search", word="a") == 1  # The change is dropped.
    assert bench.version(session_id) == 0


@pytest.mark.parametrize(
    ("toolpack", "rule"),
    [
        ("dice", {"rename": {"throw": "roll"}}),
        ("dice", {"hide": True, "functions": "fail"}),
        ("liars", {"rename": {"search": "find"}}),
        ("liars", {"hide": True, "functions": "see"}),
    ],
    ids=str,
)
def test_renamed_and_hidden_functions_are_pinned_equally(bench, toolpack, rule):
    plain = bench.create(toolpack, **PINNED)
    session = bench.rpc("create_session", toolpacks=[toolpack], perturbations={"rules": [rule]}, **PINNED)
    key = session["agent_path"].removeprefix("/agents/")
    function, kwargs = ("throw", {"sides": 10**9}) if toolpack == "dice" else ("search", {"word": "a"})
    named = rule.get("rename", {}).get(function, function)
    for _ in range(2 * FIRST_CALLS):
        envelope = bench.rpc("run_function", agent_key=key, function=named, kwargs=kwargs)
        assert envelope == bench.call(plain, function, **kwargs)
        assert envelope["error"] is None
    assert states(bench, session["session_id"]) == states(bench, plain)


def test_world_that_contains_itself_has_no_digest(bench):
    session_id = bench.create("dice", **PINNED)
    bench.call(session_id, "throw")
    assert bench.call(session_id, "tie")["error"] is None
    bench.call(session_id, "throw")
    digests = states(bench, session_id)
    assert digests[0]
    assert digests[1:] == [None, None]
    assert bench.rpc("replay_session", session_id=session_id)["complete"]


def test_seeded_session_is_replayed(bench):
    session_id = bench.create("dice", options={"dice": {"players": 5}}, **PINNED)
    play(bench, session_id)
    replayed = bench.rpc("replay_session", session_id=session_id)
    assert (replayed["complete"], replayed.get("diverged")) == (True, None)
    assert states(bench, replayed["session"]["session_id"]) == states(bench, session_id)
    plain = bench.create("dice")
    bench.call(plain, "throw", sides=10**9)
    assert bench.rpc("replay_session", session_id=plain).get("diverged")["what"] == "result"


def test_bundles_keep_seed_and_clock(bench, other):
    session_id = bench.create("dice", **PINNED)
    play(bench, session_id, 1)
    bundle = bench.rpc("export_bundle", session_id=session_id)["bundle"]
    replayed = other.rpc("import_bundle", bundle=bundle, mode="replay")
    assert (replayed["complete"], replayed["session"]["seed"]) == (True, "a seed")
    fork = bench.rpc("fork_session", session_id=session_id)[0]["session_id"]
    for source_id in (session_id, fork):
        bundle = bench.rpc("export_bundle", session_id=source_id)["bundle"]
        moved = bench.rpc("import_bundle", bundle=bundle)["session_id"]
        assert bench.result(moved, "look") == bench.result(source_id, "look")
    assert base64.b64decode(bundle)


def test_sessions_in_threads_cannot_be_seeded(bench, make_bench):
    seeded = bench.create("dice", **PINNED)
    threads = make_bench(CATALOG, store=bench.store)
    for params in (PINNED, {"seed": "x"}, {"clock": PINNED["clock"]}):
        error = refused(-32602, threads.rpc, "create_session", toolpacks=["dice"], **params)
        assert "TOOLPACK_ISOLATION=process" in error.data["detail"]
    refused(-32602, threads.call, seeded, "throw")
    refused(-32602, threads.rpc, "fork_session", session_id=seeded, seed="y")


@pytest.mark.parametrize(
    "params",
    [
        {"seed": ""},
        {"seed": "x" * 129},
        {"seed": 5},
        {"clock": "2026-03-02T09:30:00"},
        {"clock": "2026-03-02"},
        {"clock": "2026-02-30T09:30:00Z"},
        {"clock": "0001-01-01T00:00:00Z"},
        {"clock": "9999-12-31T00:00:00Z"},
        {"clock": 1772443800},
        {"clock": "٢٠٢٦-03-02T09:30:00Z"},
        {"clock_step_seconds": 1},
        {"clock": PINNED["clock"], "clock_step_seconds": -1},
        {"clock": PINNED["clock"], "clock_step_seconds": 1e9},
    ],
)
def test_invalid_seeds_and_clocks_are_rejected(bench, params):
    refused(-32602, bench.rpc, "create_session", toolpacks=["dice"], **params)


def test_repeated_request_creates_one_session(bench):
    first = bench.rpc("create_session", toolpacks=["dice"], call_id="one", **PINNED)
    assert bench.rpc("create_session", toolpacks=["dice"], call_id="one", **PINNED)["session_id"] == first["session_id"]
    refused(-32009, bench.rpc, "create_session", toolpacks=["dice"], call_id="one", seed="another")
    fork = {"session_id": first["session_id"], "call_id": "two", "seed": "b"}
    assert bench.rpc("fork_session", **fork)[0]["session_id"] == bench.rpc("fork_session", **fork)[0]["session_id"]
    refused(-32009, bench.rpc, "fork_session", **fork | {"seed": "c"})


def test_clock_may_stand_still(bench):
    session_id = bench.create("dice", clock=PINNED["clock"], clock_step_seconds=0)
    assert bench.result(session_id, "look")[0] == bench.result(session_id, "look")[0]
