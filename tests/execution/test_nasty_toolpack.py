"""A toolpack with all the difficult features of real ones behaves in a session as it does in plain Python."""

import pytest
import serving
from serving import Bench, nasty

pytestmark = serving.IN_BOTH


@pytest.fixture(params=["live", "thawed"])
def bench(request):
    """Return a server that keeps live objects between calls, or a server that restores them for each call."""
    with Bench(cache_bytes=2**26 if request.param == "live" else 0) as bench:
        yield bench


@pytest.fixture
def session_id(bench):
    return bench.create("nasty")


def test_arguments_are_models_and_private_attributes_stay(bench, session_id):
    for visits in (3, 6):
        answer = bench.result(session_id, "wish", name="Bob", wish={"colour": "blue"}, times="3")
        assert answer == f"Wish <Colour.BLUE: 'blue'> {visits}"
    assert bench.result(session_id, "inspect_state")["visits"] == [0, 6]
    assert bench.rpc("get_environment", session_id=session_id, pointer="/nasty/people/1/colour") == "blue"


def test_aliases_stay_one_object_in_every_call(bench, session_id):
    assert bench.result(session_id, "rename_boss", name="Carla") is True
    assert bench.result(session_id, "inspect_state")["same"] is True
    names = [
        bench.rpc("get_environment", session_id=session_id, pointer=p)
        for p in ("/nasty/boss/name", "/nasty/people/0/name")
    ]
    assert names == ["Carla", "Carla"]


def test_no_validator_runs_after_the_environment_was_built(bench, session_id):
    before = len(nasty.validations)
    for _ in range(2):
        bench.result(session_id, "rename_boss", name="lower case")
        bench.result(session_id, "befriend", one="Bob", other="Ann")
        bench.call(session_id, "half_done")
        (fork,) = bench.rpc("fork_session", session_id=session_id)
        assert bench.result(fork["session_id"], "inspect_state")["rebuilt"] == 1
        bench.rpc("get_environment", session_id=session_id)
        bench.rpc("get_environment", format="snapshot", session_id=session_id)
    assert bench.result(session_id, "inspect_state")["rebuilt"] == 1
    assert len(nasty.validations) == before


def test_types_stay_what_they_are(bench, session_id):
    bench.result(session_id, "tag", name="Ann", tags=["x", "y"])
    bench.result(session_id, "tag", name="Zoe", tags=["z", "y"])
    state = bench.result(session_id, "inspect_state")
    expected = {
        "place": "Point",
        "tags": "frozenset",
        "maxlen": 3,
        "factory": True,
        "types": ["Child", "Person"],
        "utc": True,
    }
    assert state | expected == state
    assert state["set"] == ["boss", "by_name", "people", "places", "rebuilt", "tags"]


def test_json_goes_by_alias_with_subclass_fields_and_sorted_sets(bench, session_id):
    assert bench.result(session_id, "tag", name="Ann", tags=list("hgfedcba")) == {"Ann": list("abcdefgh")}
    world = bench.rpc("get_environment", session_id=session_id)["nasty"]
    assert world["wireName"] == "plain"
    assert world["people"][0]["toys"] == ["ball", "kite"]
    assert world["numbers"] == [1, 2, 3]
    assert [tag["name"] for tag in world["tags"]] == list("abcdefgh")
    assert world["by_tag"] == {"Ann": list("abcdefgh")}
    assert (world["price"], world["rank"], world["recent"]) == ("1.10", 1, ["c", "b", "a"])
    assert world["at"] == "2026-03-01T12:00:00Z"
    assert "_secret" not in world


def test_a_function_that_raises_half_way_changes_nothing(bench, session_id):
    before = bench.rpc("get_environment", session_id=session_id), bench.result(session_id, "inspect_state")
    for _ in range(2):
        assert bench.call(session_id, "half_done")["error"] == "RuntimeError: only half was done"
        assert (
            bench.rpc("get_environment", session_id=session_id),
            bench.result(session_id, "inspect_state"),
        ) == before
    assert bench.result(session_id, "befriend", one="Ann", other="Ann") == 1


def test_a_cycle_is_kept_though_json_cannot_show_it(bench, session_id):
    for secrets in (1, 2):
        assert bench.result(session_id, "befriend", one="Ann", other="Bob") == secrets
    assert bench.result(session_id, "inspect_state")["friends"] == [2, 1]
    with pytest.raises(serving.RpcError) as untold:
        bench.rpc("get_environment", session_id=session_id)
    assert (untold.value.code, untold.value.data) == (-32002, {"type": "ResultError"})
    bench.rpc("reset_session", session_id=session_id)
    assert bench.rpc("get_environment", session_id=session_id)["nasty"]["people"][0]["friends"] == []
