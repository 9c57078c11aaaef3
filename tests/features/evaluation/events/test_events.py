"""Events in a world that moves: the page's example, wrong rules, limits, and events together with other requests."""

import contextlib
import inspect
import io
import json
import re
import sys
import threading
from pathlib import Path
from typing import Annotated, Any, Self

import pytest
from moving_world import CATALOG, Counters, bump
from patience import PATIENCE
from serving import Bench, refused, wait_until

import toolpack_server
from toolpack_server import Depends, Toolpack
from toolpack_server.base.errors import OverloadedError, RegistrationError
from toolpack_server.features.evaluation.event_rules import EventRule
from toolpack_server.features.evaluation.events.operations import FunctionEvent
from toolpack_server.features.evaluation.events.world import WORLD_PACK
from toolpack_server.features.evaluation.participants.message_waiters import MessageWaiters
from toolpack_server.features.evaluation.tasks import summaries
from toolpack_server.features.evaluation.tasks.summary_order import sort_summaries
from toolpack_server.packs.catalog import Catalog
from toolpack_server.packs.loading import load_catalog
from toolpack_server.packs.toolpack import Toolpack as CoreToolpack

PAGE = (Path(__file__).parents[4] / "docs" / "write" / "moving.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def bench():
    with Bench(CATALOG) as server:
        yield server


def create(bench, rules, **params):
    session = bench.rpc("create_session", toolpacks=["counters"], events=rules, **params)
    key = session["agent_path"].rsplit("/", 1)[1]

    def run(function, **kwargs):
        return bench.rpc("run_function", agent_key=key, function=function, kwargs=kwargs)

    return session["session_id"], key, run


def test_the_pages_example_prints_the_shown_output(tmp_path, monkeypatch):
    town, script, *_ = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    (output,) = re.findall(r"^```text\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    (tmp_path / "town.py").write_text(town, encoding="utf-8")
    monkeypatch.delitem(sys.modules, "toolpacks.town", raising=False)
    with Bench(load_catalog((tmp_path,), ("town",))) as bench:
        monkeypatch.setattr(toolpack_server, "Client", lambda _url: Sender(bench, {}))
        agent = lambda url: Sender(bench, {"agent_key": url.rsplit("/", 1)[1]})  # noqa: E731 - a stand-in
        monkeypatch.setattr(toolpack_server, "AgentClient", agent)
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(script, "wait.py", "exec"), {})
    assert printed.getvalue() == output


class Sender:
    """A stand-in for the client, which sends its requests to a bench."""

    def __init__(self, bench: Bench, params: dict[str, Any]) -> None:
        self._bench, self._params = bench, params

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def run_function(self, function: str, kwargs: dict[str, Any]) -> Any:
        return self._bench.rpc("run_function", function=function, kwargs=kwargs, **self._params)

    def __getattr__(self, method: str) -> Any:
        def send(session_id: str | None = None, **params: Any) -> Any:
            own = {} if session_id is None else {"session_id": session_id}
            return self._bench.rpc(method, **own, **params, **self._params)

        return send


@pytest.mark.parametrize(
    ("rule", "says"),
    [
        ({"name": "x", "eror": 1}, "Event 'x': unknown field 'eror'; choose from name, at, every"),
        ({"name": "x", "at": 1, "call": "bump"}, "Event 'x': it has 2 of at, every, after, call, when; give one."),
        ({"name": "x"}, "Event 'x': it has none of at, every"),
        ({"name": "x", "at": 1, "do": "sned"}, "Event 'x': the session has no function 'sned'."),
        ({"name": "x", "call": "sned"}, "Event 'x': the session has no function 'sned'."),
        ({"name": "x", "when": "bump"}, "Event 'x': 'bump' isn't read-only, so it can't be a condition."),
        ({"name": "x", "after": "y"}, "Event 'x': after names 'y', but there is no such event."),
        ({"name": "x", "at": "noon"}, "Event 'x': at must be a time like"),
        ({"name": "x", "every": 0.5}, "Event 'x': every must be at least 1 second."),
        ({"name": "x", "at": 1, "offer": "gift", "withdraw": "bump"}, "Event 'x': it has 2 of do, say, offer"),
        ({"name": "x", "call": "bump", "where": {"/eror": 1}}, "Event 'x': where has '/eror'; begin with /function"),
        ({"name": "x", "call": "bump", "where": {"/result": {"matches": "("}}}, "Event 'x': matches must be a regular"),
        ({"name": "x" * 65, "at": 1}, "its name must have 1-64 letters"),
    ],
)
def test_a_wrong_rule_is_refused_in_a_sentence(bench, rule, says):
    assert says in refused(-32602, create, bench, {"rules": [rule]}).data["detail"]


def test_too_many_rules_are_refused(bench):
    assert "at most 50 event rules" in refused(-32602, create, bench, [{"at": 1}] * 51).data["detail"]
    assert "at most 50 event rules" in refused(-32602, create, bench, [{"at": 1, "notice": "x" * 2**20}]).data["detail"]


def test_a_wrong_event_rule_is_reported_with_its_file():
    pack = Toolpack("wrong", Counters)
    with pytest.raises(RegistrationError, match=r"test_events.py.*Event 'tick': unknown field 'eror'"):

        @pack.event(every=1, eror=2)
        def tick() -> None:
            """Tick."""


def test_a_wait_over_too_many_events_ends_early(bench):
    session, _, run = create(bench, [{"every": 1, "do": "bump", "args": {"name": "a"}}])
    result = run("wait", seconds=5000)["result"]
    assert (result["time"], result["waited"]) == ("2026-03-02T09:16:40Z", 1000.0)
    assert bench.rpc("get_environment", session_id=session)["counters"]["counts"] == {"a": 1000}
    assert run("get_time")["result"] == "2026-03-02T09:16:50Z"


def test_a_call_after_too_many_events_is_refused(bench):
    events = {"rules": [{"every": 1, "do": "bump", "args": {"name": "a"}}], "step": 2000}
    session, _, run = create(bench, events)
    error = run("bump", name="b")["error"]
    assert error == "TooManyEventsError: More than 1000 events are due before this call: call `wait` first."
    assert bench.rpc("get_environment", session_id=session)["counters"]["counts"] == {"a": 1000}


def test_events_that_trigger_each_other_end(bench):
    rules = [{"name": "loop", "call": "bump", "by": "world", "do": "bump", "args": {"name": "a"}}]
    rules.append({"name": "first", "call": "bump", "do": "bump", "args": {"name": "a"}})
    session, _, run = create(bench, rules)
    assert run("bump", name="b")["error"] is None
    records = bench.rpc("get_trace", session_id=session)
    assert len(records) == 1 + 16
    assert records[-1]["problem"] == "Event 'loop': 16 events have set each other off without time passing"


def test_an_event_without_its_value_is_a_problem_of_the_call(bench):
    rule = {"name": "x", "call": "bump", "do": "bump", "args": {"name": {"$get": "/result/name"}}}
    session, _, run = create(bench, [rule])
    assert run("bump", name="b")["error"] is None
    (record,) = bench.rpc("get_trace", session_id=session)
    assert record["problem"] == "Event 'x': the call has no value at '/result/name'"


def test_notices_are_kept_and_the_oldest_are_lost(bench):
    _, _, run = create(bench, [{"every": 1, "count": 60, "notice": "tick"}])
    run("wait", seconds=0)
    for _ in range(7):
        run("bump", name="a")
    assert len(run("wait")["result"]["news"]) == 50


def test_a_client_can_run_event_functions_but_an_agent_cannot():
    pack = Toolpack("secret", Counters)

    @pack.event(every=60)
    def tick(counts: Annotated[dict[str, int], Depends("counts")]) -> None:
        """Tick."""
        counts["ticks"] = counts.get("ticks", 0) + 1

    with Bench(Catalog({"secret": pack, "world": WORLD_PACK})) as other:
        for events in (None, {"rules": []}):
            session = other.rpc("create_session", toolpacks=["secret"], **({"events": events} if events else {}))
            key = session["agent_path"].rsplit("/", 1)[1]
            names = [each["name"] for each in other.rpc("list_functions", agent_key=key)["result"]]
            assert names == ([] if events else ["wait", "get_time"])
            assert "not available" in other.rpc("run_function", agent_key=key, function="tick", kwargs={})["error"]
            assert other.call(session["session_id"], "tick")["error"] is None


def test_a_fork_without_an_event_lacks_only_this_event(bench):
    rules = [{"name": "a", "at": 100, "notice": "a"}, {"name": "b", "at": 100, "notice": "b"}]
    session, _, run = create(bench, rules)
    run("bump", name="x")
    (fork,) = bench.rpc("fork_session", session_id=session, without_events=["a"])
    key = fork["agent_path"].rsplit("/", 1)[1]
    assert bench.rpc("run_function", agent_key=key, function="wait", kwargs={})["result"]["news"] == ["b"]
    assert run("wait")["result"]["news"] == ["a", "b"]
    error = refused(-32602, bench.rpc, "fork_session", session_id=session, without_events=["c"])
    assert error.data["detail"] == "The session has no event 'c': it has a, b."


def test_a_fork_before_an_event_can_be_without_it(bench):
    """Both events and the wait change the world from one version to the next."""
    rules = [{"name": "a", "at": 100, "notice": "a"}, {"name": "b", "at": 100, "notice": "b"}]
    session, _, run = create(bench, rules)
    assert run("wait", seconds=200)["result"]["news"] == ["a", "b"]
    events = [record.get("event") for record in bench.rpc("get_trace", session_id=session)]
    assert events == ["a", "b", None]
    for before, without, news in ((0, [], "ab"), (0, ["a"], "b"), (1, [], "ab"), (1, ["b"], "a"), (2, [], "ab")):
        (fork,) = bench.rpc("fork_session", session_id=session, before=before, without_events=without)
        key = fork["agent_path"].rsplit("/", 1)[1]
        result = bench.rpc("run_function", agent_key=key, function="wait", kwargs={"seconds": 200})["result"]
        assert result["news"] == [*news], (before, without)


def test_a_nested_wait_is_refused(bench):
    _, _, run = create(bench, [{"at": 1}])
    nested = {"$call": {"function": "wait", "args": {}}}
    assert "can't be nested" in run("bump", name=nested)["error"]


def test_an_expected_version_is_compared_before_the_events(bench):
    session, _, _ = create(bench, [{"every": 1, "do": "bump", "args": {"name": "a"}}])
    call = {"session_id": session, "function": "bump", "kwargs": {"name": "b"}}
    assert bench.rpc("run_function", expected_version=0, **call)["error"] is None
    refused(-32005, bench.rpc, "run_function", expected_version=0, **call)
    assert bench.version(session) == 11


def test_concurrent_calls_and_waits_keep_the_order_of_time(bench):
    session, _, run = create(bench, [{"every": 7, "do": "bump", "args": {"name": "a"}, "notice": "a"}])
    work = [lambda: run("wait", seconds=30), lambda: run("bump", name="b"), lambda: bench.call(session, "total")]
    threads = [threading.Thread(target=each) for each in work * 8]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    records = bench.rpc("get_trace", session_id=session, limit=1000)
    assert sum(record["by"] != "world" for record in records) == 24
    assert [record["at"] for record in records] == sorted(record["at"] for record in records)
    assert bench.rpc("replay_session", session_id=session)["complete"]


def test_a_failed_perturbed_call_sets_off_only_rules_on_errors(bench):
    rules = [{"name": "ok", "call": "bump"}, {"name": "bad", "call": "bump", "where": {"/error": {"exists": True}}}]
    for rule, happened in (({"error": "E: no"}, ["bad"]), ({"lost": "E: no"}, ["ok"]), ({"phantom": True}, [])):
        session, _, run = create(bench, rules, perturbations={"rules": [{"functions": "bump", **rule}]})
        run("bump", name="a")
        trace = bench.rpc("get_trace", session_id=session)
        assert [record["event"] for record in trace if "event" in record] == happened, rule


def test_spread_is_drawn_within_its_bounds():
    rule = EventRule("x", {}, spread=10)
    assert {rule.draw("", number) for number in range(500)} == {*range(11)}
    exponential = EventRule("x", {}, every=10**9, spread="exponential")
    drawn = [exponential.draw("seed", number) for number in range(2000)]
    assert 0.9e9 < sum(drawn) / len(drawn) < 1.1e9


def test_the_authors_class_takes_all_arguments_of_the_core_class():
    own, core = (inspect.signature(each.__init__).parameters for each in (Toolpack, CoreToolpack))
    assert [*own][: len(core)] == [*core]
    assert [own[name].default for name in core] == [core[name].default for name in core]


@pytest.mark.parametrize("record", [False, True])
def test_an_evaluation_first_runs_the_events_that_a_call_caused(monkeypatch, record):
    """The worker was too busy to run the events after the call. Forks and bundles inherit them, so they run there."""
    pack = Toolpack("counting", Counters, begins="2026-03-02T09:00:00Z")
    pack.register_function(bump)

    @pack.task("x", "Count.", events=[{"name": "x", "call": "bump", "do": "bump", "args": {"name": "x"}}])
    def x(rollout: Any) -> bool:
        return rollout.environment.counts == {"a": 1, "x": 1}

    def too_busy(*_: Any) -> None:
        raise OverloadedError("The server is busy.")

    with Bench(Catalog({"counting": pack, "world": WORLD_PACK})) as other:
        session_id = other.rpc("create_session", task="counting/x")["session_id"]
        with monkeypatch.context() as patch:
            patch.setattr(FunctionEvent, "change", too_busy)
            patch.setattr(FunctionEvent, "changing", too_busy)
            assert other.call(session_id, "bump", name="a")["error"] is None
        copies = [*other.rpc("fork_session", session_id=session_id)]
        copies.append(other.rpc("import_bundle", bundle=other.rpc("export_bundle", session_id=session_id)["bundle"]))
        for copied in [session_id, *(each["session_id"] for each in copies)]:
            assert other.rpc("get_environment", session_id=copied)["counting"]["counts"] == {"a": 1}
            assert other.rpc("evaluate_session", session_id=copied, record=record)["passed"]


def test_an_evaluation_does_not_wait_for_a_call_after_a_settled_one():
    gate, checks = threading.Event(), []
    pack = Toolpack("counting", Counters, begins="2026-03-02T09:00:00Z")
    pack.register_function(bump)

    @pack.function(read_only=True)
    def check() -> bool:
        """Check nothing."""
        checks.append("one")
        return False

    @pack.function
    def slow(counts: Annotated[dict[str, int], Depends("counts")]) -> None:
        """Wait."""
        checks.append("slow")
        gate.wait(PATIENCE)
        counts["slow"] = 1

    @pack.task("x", "Count.", events=[{"name": "x", "when": {"call": "check"}}])
    def x(rollout: Any) -> bool:
        return rollout.environment.counts == {"a": 1}

    with Bench(Catalog({"counting": pack, "world": WORLD_PACK})) as other, contextlib.ExitStack() as ending:
        ending.callback(gate.set)
        session_id = other.rpc("create_session", task="counting/x")["session_id"]
        other.call(session_id, "bump", name="a")
        call = other.later_call(session_id, "slow")
        wait_until(lambda: "slow" in checks)
        before = len(checks)
        verdict = other.rpc("evaluate_session", session_id=session_id)
        assert (verdict["passed"], verdict["version"], call.done()) == (True, 1, False)
        assert len(checks) == before


def too_late(gate):
    """Return a toolpack. Its functions `late_check` and `late` wait for a gate if a counter isn't 0."""
    pack = Toolpack("counting", Counters, begins="2026-03-02T09:00:00Z")
    pack.register_function(bump)

    @pack.function(read_only=True, timeout_seconds=0.1)
    def late_check(counts: Annotated[dict[str, int], Depends("counts")]) -> bool:
        """Check the counts."""
        return bool(counts) and gate.wait(PATIENCE)

    @pack.function(timeout_seconds=0.1)
    def late() -> bool:
        """Wait."""
        return gate.wait(PATIENCE)

    @pack.task("x", "Count.")
    def x(rollout: Any) -> bool:
        return rollout.environment.counts == {"a": 1}

    return Catalog({"counting": pack, "world": WORLD_PACK})


@pytest.mark.parametrize(
    ("rule", "says"),
    [
        ({"when": {"call": "late_check"}}, "The condition of event 'x' took longer than 0.1 s."),
        ({"call": "bump", "do": "late"}, "`late` took longer than 0.1 s"),
    ],
)
def test_events_that_cannot_finish_make_a_verdict_invalid(monkeypatch, rule, says):
    gate, labels = threading.Event(), {"run": "a"}

    def too_busy(*_: Any) -> None:
        raise OverloadedError("The server is busy.")

    with Bench(too_late(gate)) as other, contextlib.ExitStack() as ending:
        ending.callback(gate.set)
        other.rpc("create_session", task="counting/x", labels=labels)
        rules = [{"name": "x", **rule}]
        session_id = other.rpc("create_session", task="counting/x", events=rules, labels=labels)["session_id"]
        with monkeypatch.context() as patch:
            patch.setattr(FunctionEvent, "changing", too_busy)
            assert other.call(session_id, "bump", name="a")["error"] is None
        page = other.rpc("summarize_sessions", labels=labels, evaluate=True)["sessions"]
        assert sorted(each["verdict"]["valid"] for each in page) == [False, True]
        for options in ({}, {"raise_on_error": False}, {"record": True}):
            verdict = other.rpc("evaluate_session", session_id=session_id, **options)
            assert (verdict["passed"], verdict["valid"]) == (True, False)
            assert (verdict["failure"]["kind"], verdict["failure"]["type"]) == ("infrastructure", "TimeoutError")
            assert says in verdict["failure"]["message"]
        assert other.rpc("summarize_sessions", labels=labels)["rates"] == []
        if "when" in rule:
            assert says in refused(-32010, other.rpc, "get_events", session_id=session_id).message


def test_an_evaluation_is_refused_while_the_server_is_too_busy(monkeypatch):
    def too_busy(*_: Any) -> None:
        raise OverloadedError("The server is busy.")

    with Bench(too_late(threading.Event())) as other:
        rules = [{"name": "x", "call": "bump", "do": "late"}]
        session_id = other.rpc("create_session", task="counting/x", events=rules)["session_id"]
        monkeypatch.setattr(FunctionEvent, "changing", too_busy)
        other.call(session_id, "bump", name="a")
        refused(-32006, other.rpc, "evaluate_session", session_id=session_id, raise_on_error=False)


@pytest.mark.parametrize("order", ["version", "-calls"])
def test_sorted_summaries_do_not_hold_the_rules_of_sessions(bench, monkeypatch, order):
    sorted_summaries = []

    def spy(sessions, *args):
        sorted_summaries.extend(sessions)
        return sort_summaries(sorted_summaries, *args)

    monkeypatch.setattr(summaries, "sort_summaries", spy)
    rules = [{"name": str(number), "at": 1 + number, "notice": "n" * 200} for number in range(50)]
    labels = {"sorted": order}
    session_id, *_ = create(
        bench, rules, labels=labels, perturbations={"rules": [{"functions": "bump", "error": "E: no"}]}
    )
    (summary,) = bench.rpc("summarize_sessions", labels=labels, order=order)["sessions"]
    assert (summary["session_id"], summary["variant"]) == (session_id, "rules")
    assert len(json.dumps(sorted_summaries)) < 1000


def create_conversation(bench, rules):
    """Create a session with an agent and a user. Return its id and a function that sends requests of a participant."""
    session = bench.rpc("create_session", toolpacks=["counters"], events=rules, participants={"user": {}})
    keys = {name: paths["agent_path"].rsplit("/", 1)[1] for name, paths in session["participants"].items()}
    return session["session_id"], lambda by, method, **params: bench.rpc(method, agent_key=keys[by], **params)


def test_participants_get_the_messages_of_events(bench):
    rules = [
        {"name": "news", "at": 60, "say": "The shop closes."},
        {"name": "hint", "call": "bump", "say": "Once more!", "as": "user", "to": "agent", "notice": "A message."},
    ]
    session_id, send = create_conversation(bench, rules)
    send("agent", "run_function", function="bump", kwargs={"name": "a"})
    send("user", "run_function", function="wait", kwargs={"seconds": 100, "until_something_happens": False})
    hint = {"index": 0, "by": "user", "to": "agent", "content": "Once more!"}
    news = {"index": 1, "by": "world", "content": "The shop closes."}
    assert send("agent", "listen") == {"messages": [hint, news], "done": False}
    assert send("user", "listen")["messages"] == [hint, news]
    records = bench.rpc("get_trace", session_id=session_id)
    assert [(each["kind"], each.get("event"), each.get("at", "")[11:]) for each in records] == [
        ("call", None, "09:00:10Z"),
        ("message", "hint", "09:00:10Z"),
        ("message", "news", "09:01:00Z"),
        ("call", None, "09:01:50Z"),
    ]
    replay = bench.rpc("replay_session", session_id=session_id)
    assert (replay["complete"], replay.get("diverged")) == (True, None)
    copied = bench.rpc("get_trace", session_id=replay["session"]["session_id"])
    assert [each.get("content") for each in copied] == [each.get("content") for each in records]
    bundle = bench.rpc("export_bundle", session_id=session_id)["bundle"]
    exact = bench.rpc("import_bundle", bundle=bundle)["session_id"]
    assert bench.rpc("get_trace", session_id=exact)[1]["content"] == "Once more!"
    assert bench.rpc("import_bundle", bundle=bundle, mode="replay")["complete"]
    (fork,) = bench.rpc("fork_session", session_id=session_id)
    key = fork["participants"]["agent"]["agent_path"].rsplit("/", 1)[1]
    assert bench.rpc("listen", agent_key=key)["messages"] == [hint, news]


def test_a_listener_is_woken_by_an_event(bench, monkeypatch):
    woken = []
    monkeypatch.setattr(bench.service.feature(MessageWaiters), "changed", woken.append)
    for rule in ({"call": "bump"}, {"at": 60}, {"call": "bump", "delay": 5}):
        session_id, send = create_conversation(bench, [{**rule, "say": "Once more!"}])
        send("agent", "run_function", function="bump", kwargs={"name": "a"})
        send("agent", "run_function", function="wait", kwargs={"seconds": 100})
        assert woken.count(session_id) == 2, rule
        assert [message["content"] for message in send("user", "listen")["messages"]] == ["Once more!"]


def test_a_listener_is_woken_by_an_event_of_a_cancelled_call(monkeypatch):
    gate, started, woken = threading.Event(), threading.Event(), []
    pack = Toolpack("counters", Counters, begins="2026-03-02T09:00:00Z")
    pack.register_function(bump)

    @pack.function
    def slow() -> None:
        """Wait."""
        started.set()
        gate.wait(PATIENCE)

    with Bench(Catalog({"counters": pack, "world": WORLD_PACK})) as other, contextlib.ExitStack() as ending:
        ending.callback(gate.set)
        rules = [{"name": "x", "call": "bump", "do": "slow"}, {"name": "y", "after": "x", "say": "Done."}]
        session_id, _ = create_conversation(other, rules)
        call = other.later_call(session_id, "bump", name="a")
        started.wait(PATIENCE)

        def changed(session_id: str) -> None:
            _, head = other.store.get(session_id)
            woken.append(head.index)

        monkeypatch.setattr(other.service.feature(MessageWaiters), "changed", changed)
        call.cancel()
        gate.set()
        wait_until(lambda: 2 in woken, "a waking after the message")


@pytest.mark.parametrize(
    ("rule", "participants", "says"),
    [
        ({"say": "Hello"}, {}, "Event 'x': its message has no recipients: create the session with participants."),
        ({"say": "Hello", "to": "bob"}, {"user": {}}, "Event 'x': the session has no participant 'bob'."),
        ({"say": "Hello", "as": "bob"}, {"user": {}}, "Event 'x': the session has no participant 'bob'."),
        ({"to": "user"}, {"user": {}}, "Event 'x': to names a participant of a message; give it with say."),
        ({"say": "Hello", "do": "bump"}, {"user": {}}, "Event 'x': it has 2 of do, say, offer, withdraw"),
    ],
)
def test_a_message_without_its_participants_is_refused(bench, rule, participants, says):
    error = refused(-32602, create, bench, [{"name": "x", "at": 1, **rule}], participants=participants)
    assert says in error.data["detail"]
