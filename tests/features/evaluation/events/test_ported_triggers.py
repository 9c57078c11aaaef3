"""The triggers of AgentEnv and the events of ARE, ported to rules: each port happens when its original does."""

import pytest
from moving_world import CATALOG
from serving import Bench

BEGINS = "2026-03-02T09:00:00Z"
A, B, BAD = ("bump", {"name": "a"}), ("bump", {"name": "b"}), ("bump", {"name": "bad"})
COUNT_C = {"do": "bump", "args": {"name": "c"}}
WAIT = ("wait", {"seconds": 600, "until_something_happens": False})

# Each original, its rules, the calls, and the expected events with their seconds since the start. A call takes 10 s.
AGENTENV = [
    ("action", [{"name": "x", "call": "bump", "count": 1}], [A, A], [("x", 10)]),
    ("action, repeat", [{"name": "x", "call": "bump"}], [A, A], [("x", 10), ("x", 20)]),
    ("where equals", [{"name": "x", "call": "bump", "where": {"/kwargs/name": "b"}}], [A, B], [("x", 20)]),
    ("where regex", [{"name": "x", "call": "bump", "where": {"/kwargs/name": {"matches": "^b"}}}], [A, B], [("x", 20)]),
    ("where exists", [{"name": "x", "call": "bump", "where": {"/kwargs/name": {"exists": True}}}], [A], [("x", 10)]),
    ("where result", [{"name": "x", "call": "bump", "where": {"/result": 2}}], [A, A, A], [("x", 20)]),
    ("a failed call", [{"name": "x", "call": "bump"}], [BAD], []),
    ("watch_roles", [{"name": "x", "call": "bump", "by": "agent"}], [A], [("x", 10)]),
    ("watch_roles, another's", [{"name": "x", "call": "bump", "by": "client"}], [A], []),
    ("state", [{"name": "x", "when": {"call": "total", "where": {"/result": 2}}}], [A, A, A], [("x", 20)]),
    ("time at a date", [{"name": "x", "at": "2026-03-02T09:05:00Z"}], [WAIT], [("x", 300)]),
    ("time at a duration", [{"name": "x", "at": "5m"}], [WAIT], [("x", 300)]),
    ("at that is past", [{"name": "x", "at": "2026-03-01T09:00:00Z"}], [A], [("x", 0)]),
    ("every", [{"name": "x", "every": "4m"}], [WAIT], [("x", 240), ("x", 480)]),
    ("every, at", [{"name": "x", "at": "1m", "every": "4m"}], [WAIT], [("x", 60), ("x", 300), ("x", 540)]),
    ("every, count", [{"name": "x", "every": "1m", "count": 2}], [WAIT], [("x", 60), ("x", 120)]),
    ("every, until", [{"name": "x", "every": "1m", "until": "2m"}], [WAIT], [("x", 60), ("x", 120)]),
    (
        "after, offset",
        [{"name": "x", "at": "1m"}, {"name": "y", "after": "x", "delay": "2m", "count": 1}],
        [WAIT],
        [("x", 60), ("y", 180)],
    ),
    (
        "after, every",
        [
            {"name": "x", "at": "1m"},
            {"name": "first", "after": "x", "delay": "3m", **COUNT_C},
            {"name": "again", "call": "bump", "by": "world", "delay": "3m", **COUNT_C},
        ],
        [WAIT],
        [("x", 60), ("first", 240), ("again", 420), ("again", 600)],
    ),
    (
        "all triggers of one call",
        [{"name": "x", "call": "bump", "count": 1}, {"name": "y", "call": "bump", "count": 1}],
        [A, A],
        [("x", 10), ("y", 10)],
    ),
]
ARE = [
    ("at_absolute_time", [{"name": "x", "at": "2026-03-02T09:05:00Z"}], [WAIT], [("x", 300)]),
    ("depends_on(None)", [{"name": "x", "at": 0}], [A], [("x", 0)]),
    ("depends_on(None, delay_seconds)", [{"name": "x", "at": 30}], [WAIT], [("x", 30)]),
    ("delayed", [{"name": "x", "at": 0, "delay": 30}], [WAIT], [("x", 30)]),
    ("depends_on(event)", [{"name": "x", "at": 30}, {"name": "y", "after": "x"}], [WAIT], [("x", 30), ("y", 30)]),
    (
        "depends_on(events, delay_seconds)",
        [{"name": "x", "at": 30}, {"name": "y", "at": 60}, {"name": "z", "after": ["x", "y"], "delay": 5}],
        [WAIT],
        [("x", 30), ("y", 60), ("z", 65)],
    ),
    (
        "followed_by(events, delays)",
        [{"name": "x", "at": 30}, {"name": "y", "after": "x", "delay": 5}, {"name": "z", "after": "x", "delay": 9}],
        [WAIT],
        [("x", 30), ("y", 35), ("z", 39)],
    ),
    (
        "ConditionCheckEvent",
        [
            {"name": "x", "when": {"call": "total", "where": {"/result": {"above": 1}}}},
            {"name": "y", "after": "x", "delay": 5},
        ],
        [A, A, WAIT],
        [("x", 20), ("y", 25)],
    ),
    (
        "ConditionCheckEvent, timeout",
        [{"name": "x", "when": {"call": "total", "where": {"/result": {"above": 1}}}, "until": 15}],
        [A, A, WAIT],
        [],
    ),
    (
        "an event of the agent",
        [{"name": "x", "call": "bump", "by": "agent", "delay": 5}],
        [A, WAIT],
        [("x", 15)],
    ),
    ("an event of the environment", [{"name": "x", "at": 30, **COUNT_C}], [WAIT], [("x", 30)]),
]
PORTS = [
    pytest.param(*port, id=f"{source}: {name}")
    for source, ports in (("AgentEnv", AGENTENV), ("ARE", ARE))
    for name, *port in ports
]


@pytest.fixture(scope="module")
def bench():
    with Bench(CATALOG) as server:
        yield server


@pytest.mark.parametrize(("rules", "calls", "expected"), PORTS)
def test_a_ported_trigger_happens_when_its_original_does(bench, rules, calls, expected):
    assert run_events(bench, rules, calls) == expected


def run_events(bench, rules, calls):
    events = {"rules": rules, "begins": BEGINS, "step": 10}
    session = bench.rpc("create_session", toolpacks=["counters"], events=events)
    key = session["agent_path"].rsplit("/", 1)[1]
    for function, kwargs in calls:
        bench.rpc("run_function", agent_key=key, function=function, kwargs=kwargs)
    trace = bench.rpc("get_trace", session_id=session["session_id"], limit=1000)
    return [(record["event"], seconds(record["at"])) for record in trace if "event" in record]


def seconds(at):
    hours, minutes, seconds_text = at[11:-1].split(":")
    return int(hours) * 3600 + int(minutes) * 60 + float(seconds_text) - 9 * 3600


def test_intervals_of_a_poisson_process_come_from_the_seed(bench):
    rules = [{"name": "x", "every": "30s", "spread": "exponential"}]
    first = run_events(bench, rules, [WAIT])
    times = [at for _, at in first]
    assert len(times) > 3
    assert times == sorted({*times})
    assert run_events(bench, rules, [WAIT]) == first


def test_arguments_are_filled_from_the_provoking_call(bench):
    rules = [
        {"call": "bump", "do": "bump", "args": {"name": {"$get": "/kwargs/name"}}},
        {"call": "bump", "withdraw": "gift"},
    ]
    session = bench.rpc("create_session", toolpacks=["counters"], events=rules)
    key = session["agent_path"].rsplit("/", 1)[1]
    bench.rpc("run_function", agent_key=key, function="bump", kwargs={"name": "z"})
    counts = bench.rpc("get_environment", session_id=session["session_id"])["counters"]["counts"]
    assert counts == {"z": 2}
    assert [f["name"] for f in bench.rpc("list_functions", agent_key=key)["result"]] == [
        "bump",
        "total",
        "wait",
        "get_time",
    ]
