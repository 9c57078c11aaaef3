"""The errands: solutions pass, attempts that don't wait or come too late fail, and forks show an event's effect."""

import pytest
import serving

from toolpack_server.packs.loading import load_catalog

CATALOG = load_catalog((), ("errands",))
TASKS = {f"errands/{name}": task for name, task in CATALOG.toolpacks["errands"].task_list.all().items()}


@pytest.fixture(scope="module")
def bench():
    with serving.Bench(CATALOG) as server:
        yield server


class Player:
    """An agent in a session."""

    def __init__(self, bench, session):
        self.bench, self.session_id = bench, session["session_id"]
        self.key = session["agent_path"].removeprefix("/agents/")

    def play(self, calls, answer=""):
        for function, kwargs in calls:
            self.bench.rpc("run_function", agent_key=self.key, function=function, kwargs=kwargs)
        return self.bench.rpc("evaluate_session", session_id=self.session_id, answer=answer)


def attempt(bench, name, calls):
    return Player(bench, bench.rpc("create_session", task=name)).play(calls, TASKS[name].answer)


@pytest.mark.parametrize("name", TASKS)
def test_solution_passes_and_each_wait_is_needed(bench, name):
    calls = TASKS[name].solution
    assert attempt(bench, name, calls)["passed"]
    waits = [index for index, (function, _) in enumerate(calls) if function == "wait"]
    assert waits
    for index in waits:
        assert not attempt(bench, name, calls[:index] + calls[index + 1 :])["passed"], index
    late = ("wait", {"seconds": 2400, "until_something_happens": False})
    if calls[waits[-1] + 1][0] != "list_mails" or name == "errands/form":  # a mail can be read at any time
        assert not attempt(bench, name, [*calls[: waits[-1] + 1], late, *calls[waits[-1] + 1 :]])["passed"]


def test_verdict_has_the_agents_reaction_times(bench):
    verdict = attempt(bench, "errands/swim-lane", TASKS["errands/swim-lane"].solution)
    assert verdict["reactions"] == {"fare_moves": 1830, "booking_opens": 30}
    failed = attempt(bench, "errands/swim-lane", [("wait", {"seconds": 3600, "until_something_happens": False})])
    assert "reactions" not in failed


def test_recorded_verdict_keeps_the_reaction_times(bench):
    player = Player(bench, bench.rpc("create_session", task="errands/swim-lane"))
    player.play(TASKS["errands/swim-lane"].solution)
    verdict = bench.rpc("evaluate_session", session_id=player.session_id, record=True)
    assert verdict["reactions"]["booking_opens"] == 30
    (record,) = bench.rpc("get_trace", session_id=player.session_id)[-1:]
    assert record["reactions"] == verdict["reactions"]
    summaries = bench.rpc("summarize_sessions", limit=1000)["sessions"]
    (summary,) = [each for each in summaries if each["session_id"] == player.session_id]
    assert summary["verdict"]["reactions"] == verdict["reactions"]


def test_forks_at_noon_show_the_effect_of_the_courier(bench):
    session = bench.rpc("create_session", task="errands/kettle")
    until_noon = {"seconds": 10_800, "until_something_happens": False}
    Player(bench, session).play([("wait", until_noon), ("order", {"item": "kettle"})])
    rewards = []
    for without in ([], ["courier_rings"]):
        (fork,) = bench.rpc("fork_session", session_id=session["session_id"], without_events=without)
        verdict = Player(bench, fork).play([("wait", {"seconds": 7200}), ("take_in", {})])
        rewards.append(verdict["reward"])
        assert ("courier_rings" in verdict["reactions"]) == (not without)
    assert rewards == [1.0, 0.0]


def test_times_of_a_parents_records_count_in_a_fork(bench):
    player = Player(bench, bench.rpc("create_session", task="errands/kettle"))
    player.play([("order", {"item": "kettle"}), ("wait", {"seconds": 7200}), ("list_parcels", {})])
    (fork,) = bench.rpc("fork_session", session_id=player.session_id)
    assert Player(bench, fork).play([("list_parcels", {}), ("take_in", {})])["reactions"]["courier_rings"] == 90
    verdict = player.play([("take_in", {})])
    assert verdict["reactions"]["courier_rings"] == 60
    (fork,) = bench.rpc("fork_session", session_id=player.session_id)
    assert Player(bench, fork).play([("order", {"item": "lamp"})])["reactions"] == verdict["reactions"]


def test_a_reset_forgets_earlier_reactions(bench):
    player = Player(bench, bench.rpc("create_session", task="errands/swim-lane"))
    solution = TASKS["errands/swim-lane"].solution
    player.play(solution[:1])
    version = bench.rpc("get_session", session_id=player.session_id)["version"]
    assert player.play(solution[1:])["passed"]
    bench.rpc("reset_session", session_id=player.session_id, version=version)
    verdict = player.play([("get_fare", {}), ("get_fare", {}), *solution[1:]])
    assert verdict["reactions"]["booking_opens"] == 90
