"""Random schedules of events equal a simple model: on two workers, after kills, in replays, forks and bundles."""

import copy
import itertools
import os

import moving_world
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from moving_world import BEGINS, CATALOG, NAMES, SECOND, STEP, Model
from serving import Bench, RpcError

from toolpack_server.base.errors import OverloadedError
from toolpack_server.features.evaluation.event_rules import microseconds

EXAMPLES = int(os.environ.get("EVENT_EXAMPLES", "12"))
DURATIONS = st.integers(0, 60)


def rules_of(draw):
    rules = []
    for index in range(draw(st.integers(1, 6))):
        name = f"r{index}"
        kind = draw(st.sampled_from(["at", "every", "after", "call", "world", "error", "when"]))
        effect = draw(st.sampled_from(["do", "do", "bad", "offer", "withdraw", "none"]))
        rule = {"name": name, **draw(when(kind, [each["name"] for each in rules])), **draw(modifiers(name))}
        if effect in {"do", "bad"}:
            rule |= {"do": "bump", "args": {"name": "bad" if effect == "bad" else draw(st.sampled_from(NAMES))}}
        elif effect != "none":
            rule[effect] = ["gift"]
        rules.append(rule)
    return rules


def when(kind, others):
    if kind == "every":
        return st.fixed_dictionaries({"every": st.integers(5, 40)}, optional={"at": DURATIONS})
    if kind == "after" and others:
        names = st.lists(st.sampled_from(others), min_size=1, max_size=2, unique=True)
        return st.fixed_dictionaries({"after": names})
    if kind == "when":
        return st.integers(0, 8).map(lambda above: {"when": {"call": "total", "where": {"/result": {"above": above}}}})
    if kind == "error":
        return st.just({"call": "bump", "where": {"/error": {"exists": True}}})
    if kind in {"call", "world"}:
        where = st.sampled_from(NAMES).map(lambda name: {"/kwargs/name": name})
        by = {"by": st.just("world")} if kind == "world" else {}
        return st.fixed_dictionaries({"call": st.just("bump"), **by}, optional={"where": where})
    return st.fixed_dictionaries({"at": DURATIONS})


def modifiers(name):
    return st.fixed_dictionaries(
        {},
        optional={
            "delay": st.sampled_from([0, 0, 5, 10, 25]),
            "count": st.integers(1, 4),
            "until": st.integers(10, 200),
            "notice": st.just(f"{name}!"),
        },
    )


STEPS = st.one_of(
    st.tuples(st.just("call"), st.sampled_from([*NAMES, "bad"])),
    st.tuples(st.just("wait"), st.integers(0, 100), st.booleans()),
    st.tuples(st.just("reset"), st.integers(0, 1000)),
)


def send_until_answered(send):
    """Send a request until no worker dies."""
    while True:
        try:
            return send()
        except RpcError as error:
            if "The worker has died." not in error.message:
                raise


class Player:
    """Plays the same steps in a session and in its model."""

    numbers = itertools.count()

    def __init__(self, bench, session, model):
        self.bench, self.session, self.model = bench, session, model
        self.key = session["agent_path"].rsplit("/", 1)[1]

    def ask(self, method, **params):
        return send_until_answered(lambda: self.bench.rpc(method, session_id=self.session["session_id"], **params))

    def call(self, function, **kwargs):
        params = {"function": function, "kwargs": kwargs, "call_id": str(next(self.numbers))}
        return send_until_answered(lambda: self.bench.rpc("run_function", agent_key=self.key, **params))

    def step(self, kind, *how):
        if kind == "call":
            ok = self.model.call(*how)
            answer = self.call("bump", name=how[0])
            assert (answer["error"] is None) == ok
        elif kind == "wait":
            expected = self.model.wait(how[0], stop=how[1])
            result = self.call("wait", seconds=how[0], until_something_happens=how[1])["result"]
            assert {name: result[name] for name in expected} == expected
        else:
            version = self.ask("get_session")["version"]
            target = how[0] % (version + 1)
            self.ask("reset_session", version=target, call_id=str(next(self.numbers)))
            self.model.reset(target)
        self.check()

    def trace(self):
        return self.ask("get_trace", limit=1000)

    def check(self):
        ahead = self.ask("get_events")
        assert microseconds(ahead["time"]) == BEGINS + self.model.now * SECOND
        coming = [(event["event"], (microseconds(event["at"]) - BEGINS) // SECOND) for event in ahead["coming"]]
        assert coming == [(each[2]["name"], each[0]) for each in self.model.coming]
        names = [f["name"] for f in self.bench.rpc("list_functions", agent_key=self.key)["result"]]
        assert ("gift" in names) == self.model.offered.get("gift", True)
        counts = self.ask("get_environment")["counters"]["counts"]
        assert counts == self.model.counts


def comparable(records):
    """Return the members of records that must be equal in copies of a session."""
    volatile = {"started_at", "duration_ms", "call_id"}
    return [{name: value for name, value in record.items() if name not in volatile} for record in records]


def model_trace(records):
    return [
        ((microseconds(each["at"]) - BEGINS) // SECOND, each.get("event") or each["function"], not each.get("error"))
        for each in records
        if "at" in each
    ]


def create(bench, rules):
    return bench.rpc("create_session", toolpacks=["counters"], events=rules)


@pytest.fixture(scope="module")
def bench():
    with Bench(CATALOG, keep_versions=100_000) as server:
        yield server


@settings(max_examples=EXAMPLES)
@given(st.data())
def test_random_schedules_equal_a_model(bench, data):
    rules = rules_of(data.draw)
    steps = data.draw(st.lists(STEPS, min_size=1, max_size=8))
    player = Player(bench, create(bench, rules), Model(rules))
    for step in steps:
        player.step(*step)
    records = player.trace()
    assume(len(records) < 1000)  # the maximum number of records that one request returns or replays
    assert model_trace(records) == player.model.trace
    check_copies(data, bench, player, records)
    twin = Player(bench, create(bench, rules), Model(rules))
    for step in steps:
        bench.sessions.queues.cache.pop(twin.session["session_id"])  # as another worker, which reads the store
        twin.step(*step)
    assert comparable(twin.trace()) == comparable(records)


def check_copies(data, bench, player, records):
    replay = player.ask("replay_session")
    assert (replay["complete"], replay.get("diverged")) == (True, None), replay
    copied = replay["session"]["session_id"]
    assert comparable(bench.rpc("get_trace", session_id=copied, limit=1000)) == comparable(records)
    assert bench.rpc("get_events", session_id=copied) == player.ask("get_events")
    bundle = player.ask("export_bundle")["bundle"]
    exact = bench.rpc("import_bundle", bundle=bundle)
    exact_player = Player(bench, exact, copy.deepcopy(player.model))
    exact_player.check()
    exact_player.step("wait", 50, True)
    replayed = bench.rpc("import_bundle", bundle=bundle, mode="replay")
    assert replayed["complete"], replayed
    version = data.draw(st.integers(0, player.model.version))
    fork = Player(bench, player.ask("fork_session", version=version)[0], player.model.fork(version))
    fork.check()
    for step in [("wait", 30, False), ("call", "a")]:
        fork.step(*step)


class Dying:
    """A store with commits that fail now and then, before or after they are stored."""

    def __init__(self, store, draw):
        self._store, self._draw = store, draw

    def __getattr__(self, name):
        return getattr(self._store, name)

    def commit(self, commits):
        fate = self._draw()
        if fate == "before":
            raise OverloadedError("The worker has died.")
        accepted = self._store.commit(commits)
        if fate == "after":
            raise OverloadedError("The worker has died.")
        return accepted


@settings(max_examples=EXAMPLES)
@given(st.data())
def test_dying_workers_change_no_result(bench, data):
    """The commits of a call and its events are one transaction, so a worker dies before or after all of them."""
    rules = rules_of(data.draw)
    steps = data.draw(st.lists(STEPS, min_size=1, max_size=6))
    calm = Player(bench, create(bench, rules), Model(rules))
    for step in steps:
        calm.step(*step)
    drawn = iter(data.draw(st.lists(st.sampled_from(["", "before", "after"]), max_size=12)))
    committer = bench.sessions.queues._committer
    store, committer._store = committer._store, Dying(committer._store, lambda: next(drawn, ""))
    try:
        player = Player(bench, create(bench, rules), Model(rules))
        for step in steps:
            player.step(*step)
        assert comparable(player.trace()) == comparable(calm.trace())
    finally:
        committer._store = store


def test_the_model_and_the_toolpack_have_one_step():
    assert moving_world.toolpack.step_seconds == STEP
