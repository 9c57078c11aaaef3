"""Several participants in one session: each has its own address, permissions and counts.

A participant can't see what belongs to another participant.
"""

import asyncio
import json
import sys
import threading
from typing import Any

import pytest
import serving
from market import CATALOG, PARTICIPANTS, TASK, Market, Played, bid, look, look_behind, play, sold
from serving import KEY, PACKS, Bench, refused, wait_until

from toolpack_server import Task, Toolpack
from toolpack_server.base.errors import RegistrationError
from toolpack_server.cli.local import memory_settings
from toolpack_server.features.evaluation.episodes.progress import Episodes
from toolpack_server.features.evaluation.tasks.checks import check_tasks
from toolpack_server.features.replay.bundle_format import compressed_part, unpack
from toolpack_server.features.replay.bundle_format import pack as packed
from toolpack_server.packs.catalog import Catalog
from toolpack_server.packs.loading import load_catalog
from toolpack_server.snapshots.seal import KeyedHash


@pytest.fixture(scope="module")
def market():
    with Bench(CATALOG) as server:
        yield server


@pytest.fixture(params=["memory", "sqlite", "redis"])
def bench(request, store_url, make_bench):
    return make_bench(CATALOG, store_url(request.param))


def other_bundle(bundle, change, key=KEY):
    """Return a bundle with changed lines, sealed with the same key."""
    import base64  # noqa: PLC0415 - only this function needs it

    keyed = KeyedHash(key, "bundle")
    raw = unpack(compressed_part(base64.b64decode(bundle), keyed), 10**8, 10**8, lambda _size: None, blobs=True)
    lines = [json.loads(line) for line in raw]
    change(lines)
    sealed_lines = packed([json.dumps(line, separators=(",", ":")).encode() for line in lines], keyed, 10**8, 10**8)
    return base64.b64encode(sealed_lines).decode()


# Permissions


def test_each_participant_has_its_own_address(bench):
    played = play(bench)
    paths = played.session.get("participants")
    assert [*paths] == ["agent", "buyer", "seller"]
    assert paths["agent"] == {name: played.session[name] for name in ("agent_path", "mcp_path")}
    assert len({path for each in paths.values() for path in each.values()}) == 6
    assert played.session.get("participants") == bench.rpc("get_session", session_id=played.id).get("participants")
    (summary,) = bench.rpc("list_sessions")
    assert summary.get("participants") == paths
    tasks = {name: played.send(name, "get_task") for name in paths}
    assert tasks["buyer"] == {
        "prompt": "Buy for 5.",
        "max_calls": 3,
        "calls": 0,
        "done": False,
        "name": "buyer",
        "others": ["agent", "seller"],
    }
    assert "prompt" not in tasks["seller"]
    assert tasks["agent"]["others"] == ["buyer", "seller"]
    functions = {name: [each["name"] for each in played.send(name, "list_functions")["result"]] for name in paths}
    assert functions == {
        "agent": ["look", "bid", "look_behind"],
        "buyer": ["look", "bid"],
        "seller": ["look", "bid", "look_behind"],
    }
    assert played.call("buyer", "bid", amount=3) == {"result": [3], "error": None}
    assert played.call("seller", "look_behind") == {"result": [3], "error": None}
    assert played.call("buyer", "look")["result"] == 9
    assert [record["by"] for record in played.trace()] == ["buyer", "seller", "buyer"]
    bench.call(played.id, "look")
    assert played.trace()[-1]["by"] == "client"


def test_participant_learns_nothing_of_other_functions(market):
    played = play(market, {"x": {"functions": ["look"]}, "y": {"functions": []}})
    hidden = played.call("x", "look_behind")["error"]
    assert hidden == "ToolNotFoundError: The requested function `look_behind` is not available."
    error = refused(-32003, played.send, "x", "run_function", function="look_behin", raise_on_error=True)
    assert error.data["similar"] == []
    assert played.send("y", "list_functions")["result"] == []
    assert "is not available" in played.call("y", "look")["error"]
    nested = {"$call": {"function": "look_behind", "args": {}}}
    assert "look_behind` is not available" in played.call("x", "look", amount=nested)["error"]


def test_request_overrides_the_participants_of_a_task(market):
    played = play(market, {}, task="market/sale")
    tasks = {name: played.send(name, "get_task") for name in ("agent", "buyer")}
    assert (tasks["agent"]["prompt"], tasks["agent"].get("max_calls")) == ("Sell it.", 4)
    assert (tasks["buyer"]["prompt"], tasks["buyer"].get("max_calls")) == ("Buy it.", 1)
    overrides = {"agent": {"max_calls": 2}, "buyer": {"prompt": "Pay 4.", "functions": None}, "judge": {}}
    played = play(market, overrides, task="market/sale")
    tasks = {name: played.send(name, "get_task") for name in ("agent", "buyer", "judge")}
    assert (tasks["agent"]["prompt"], tasks["agent"].get("max_calls")) == ("Sell it.", 2)
    assert (tasks["buyer"]["prompt"], tasks["buyer"].get("max_calls")) == ("Pay 4.", 1)
    assert len(played.send("buyer", "list_functions")["result"]) == 3
    assert [each["name"] for each in played.send("agent", "list_functions")["result"]] == ["look"]
    participants = market.rpc("get_task", task="market/sale").get("participants")
    assert participants == {"buyer": {"functions": ["bid"], "prompt": "Buy it.", "max_calls": 1}}


def test_edited_task_does_not_change_an_existing_session(make_bench):
    edited: Any = Toolpack("market", Market)
    edited.function(look)
    edited.add_task(Task("sale", "Sell it.", sold, participants={"buyer": {"max_calls": 1}}))
    bench = make_bench(Catalog({"market": edited}))
    played = play(bench, {}, task="market/sale")
    loaded = edited.task_list.all()
    loaded["sale"] = Task("sale", "Wait.", sold, max_calls=0, participants={"buyer": {"max_calls": 9}})
    tasks = {name: played.send(name, "get_task") for name in ("agent", "buyer")}
    assert (tasks["agent"]["prompt"], tasks["agent"].get("max_calls"), tasks["buyer"].get("max_calls")) == (
        "Sell it.",
        None,
        1,
    )


WRONG: list[tuple[Any, str]] = [
    (
        {"client": {}},
        "Participant 'client': use 1-64 letters, digits or `_.-` as its name, and not `client` or `world`.",
    ),
    ({"world": {}}, "Participant 'world': use 1-64 letters, digits or `_.-` as its name, and not `client` or `world`."),
    ({"a/b": {}}, "Participant 'a/b': use 1-64 letters, digits or `_.-` as its name, and not `client` or `world`."),
    ({"x" * 65: {}}, "Participant 'x"),
    ({"x": []}, "Participant 'x' is a list: give an object of functions, max_calls, prompt, answers."),
    ({"x": 3}, "Participant 'x' is a number: give an object of functions, max_calls, prompt, answers."),
    (
        {"x": {"functons": []}},
        "Participant 'x': unknown field 'functons': choose from functions, max_calls, prompt, answers.",
    ),
    ({"x": {"max_calls": -1}}, "Participant 'x': max_calls must be a non-negative integer."),
    ({"x": {"max_calls": True}}, "Participant 'x': max_calls must be a non-negative integer."),
    ({"x": {"functions": "look"}}, "Participant 'x': functions must be a list of strings."),
    ({"x": {"prompt": 3}}, "Participant 'x': prompt must be a string or a list of {role, content}."),
    ({"x": {"prompt": [{"role": "user"}]}}, "Participant 'x': prompt must be a string or a list of {role, content}."),
    ({"x": {"answers": 1}}, "Participant 'x': answers must be true or false."),
    (
        {str(number): {} for number in range(16)},
        "A session has at most 16 participants including its agent; the request has 17.",
    ),
    ({"x": {"prompt": "y" * 70_005}}, "All participants together have 70024 bytes; at most 65536 are allowed."),
]


@pytest.mark.parametrize(("participants", "problem"), WRONG, ids=range(len(WRONG)))
def test_invalid_participants_are_rejected_by_sessions_and_tasks(market, participants, problem):
    count = len(market.rpc("list_sessions"))
    detail = refused(-32602, market.rpc, "create_session", participants=participants).data["detail"]
    assert detail.startswith(problem)
    with pytest.raises(RegistrationError) as error:
        Task("wrong", "Do it.", participants=participants)
    assert str(error.value).startswith(f"task 'wrong': {problem}"[:-1])
    assert len(market.rpc("list_sessions")) == count


def test_unknown_functions_of_participants_are_rejected(market):
    def detail_of(functions):
        participants = {"x": {"functions": functions}}
        return refused(-32602, market.rpc, "create_session", participants=participants).data["detail"]

    assert detail_of(["lok"]) == "Participant 'x': the session has no function 'lok'. Did you mean look?"
    assert detail_of(["look", "zzz"]) == "Participant 'x': the session has no function 'zzz'."
    play(market, {"x": {"functions": ["market.look"]}})


def test_sixteen_participants_are_allowed(market):
    played = play(market, {f"p{number}": {} for number in range(15)})
    assert [played.call(name, "look")["result"] for name in played.session.get("participants")] == [9] * 16


# One participant against another


def test_key_opens_only_its_own_address_and_cannot_be_forged(market):
    played, other = play(market), play(market)
    keys = {name: played.key(name) for name in played.session.get("participants")}
    buyer, seller, stranger = keys["buyer"], keys["seller"], other.key("buyer")
    forged = [
        *(buyer[:48], buyer[48:], buyer[:-1], buyer + "0", buyer.upper(), buyer[48:] + buyer[:48]),
        *(buyer[:48] + seller[48:], seller[:48] + buyer[48:], buyer[:48] + stranger[48:], stranger[:48] + buyer[48:]),
        *(keys["agent"] + buyer[48:], keys["agent"] * 2, buyer[:48] + keys["agent"], buyer[:48] + played.id),
        *("0" * 96, " " + buyer[1:], "+" + buyer[1:], buyer[:50] + "_" + buyer[51:], "٣" * 96, ""),
        *(
            buyer[:position] + f"{int(buyer[position], 16) ^ 1:x}" + buyer[position + 1 :]
            for position in (0, 47, 48, 95)
        ),
    ]
    for key in forged:
        refused(-32001, market.rpc, "get_task", agent_key=key)
    assert played.id not in buyer
    assert played.session["agent_path"][8:] not in buyer
    assert len({keys["agent"][:20], buyer[:20], seller[:20], buyer[48:68], seller[48:68], stranger[:20]}) == 6
    assert played.send("buyer", "get_task")["name"] == "buyer"


def test_keys_end_with_their_session_and_forks_get_new_ones(market):
    played = play(market)
    (fork,) = (Played(market, each) for each in market.rpc("fork_session", session_id=played.id))
    assert not {*map(played.key, PARTICIPANTS)} & {*map(fork.key, PARTICIPANTS)}
    assert played.send("buyer", "get_task")["name"] == "buyer"
    market.rpc("close_session", session_id=played.id)
    for method in ("get_task", "list_functions"):
        refused(-32001, played.send, "buyer", method)
    refused(-32001, played.call, "buyer", "look")
    assert fork.call("buyer", "look")["result"] == 9


def test_call_ids_are_separate_for_each_participant(market):
    played = play(market)
    assert played.call("buyer", "bid", "x", amount=1)["result"] == [1]
    assert played.call("seller", "bid", "x", amount=2)["result"] == [1, 2]
    assert played.call("buyer", "bid", "seller/x", amount=3)["result"] == [1, 2, 3]
    for call_id in ("x", "buyer/x", "agent:buyer/x"):
        call = {"call_id": call_id}
        answer = market.rpc("run_function", session_id=played.id, function="look", **call)
        assert answer == {"result": 9, "error": None}
    assert played.call("buyer", "bid", "x", amount=1)["result"] == [1]
    assert played.call("buyer", "bid", "seller/x", amount=3)["result"] == [1, 2, 3]
    refused(-32009, played.call, "seller", "bid", "x", amount=1)
    recorded = [(record["by"], record.get("call_id")) for record in played.trace()]
    assert recorded[:3] == [("buyer", "buyer/x"), ("seller", "seller/x"), ("buyer", "buyer/seller/x")]
    assert recorded[3:] == [("client", call_id) for call_id in ("x", "buyer/x", "agent:buyer/x")]
    assert market.version(played.id) == 3


def test_client_methods_are_not_at_a_participants_address(market):
    played = play(market)
    for method in ("get_trace", "fork_session", "reset_session", "get_environment", "close_session", "get_session"):
        refused(-32601, played.send, "seller", method)


# Counts and the answer


def test_calls_are_counted_per_participant(bench):
    played = play(bench)
    played.call("buyer", "look", "first")
    played.call("buyer", "look", "first")
    assert "ValidationError" in played.call("buyer", "bid")["error"]
    played.call("seller", "look")
    bench.call(played.id, "look")
    assert [played.count(name) for name in ("agent", "buyer", "seller")] == [0, 2, 1]
    nested = {"$call": {"function": "look", "args": {}}}
    problem = "With its nested calls this counts as 2 calls; 1 of your 3 are left: nest fewer."
    assert problem in played.call("buyer", "bid", amount=nested)["error"]
    assert played.count("buyer") == 3
    over = "EpisodeOverError: all 3 of your calls are used, so no further one is run."
    assert played.call("buyer", "look")["error"] == over
    assert played.send("buyer", "get_task")["done"] is True
    assert played.send("seller", "get_task")["done"] is False
    assert played.call("seller", "look")["error"] is None
    assert [record["by"] for record in played.trace()].count("buyer") == 3


def test_counts_belong_to_the_path(market):
    played = play(market)
    played.call("buyer", "bid", amount=1)
    played.call("buyer", "bid", amount=2)
    played.call("seller", "look")
    (fork,) = (Played(market, each) for each in market.rpc("fork_session", session_id=played.id, version=1))
    (replayed_fork,) = (Played(market, each) for each in market.rpc("fork_session", session_id=fork.id))
    assert [each.count("buyer") for each in (fork, replayed_fork)] == [1, 1]
    replayed_fork.call("buyer", "look")
    (third,) = (Played(market, each) for each in market.rpc("fork_session", session_id=replayed_fork.id))
    assert [each.count("buyer") for each in (played, fork, replayed_fork, third)] == [2, 1, 2, 2]
    assert third.count("seller") == 0
    market.rpc("reset_session", session_id=played.id, version=1)
    assert (played.count("buyer"), played.count("seller")) == (1, 0)
    market.rpc("reset_session", session_id=played.id)
    assert played.count("buyer") == 0
    assert third.send("buyer", "get_task")["prompt"] == "Buy for 5."


def test_one_answer_ends_the_session_for_all_participants(bench):
    played = play(bench)
    played.call("agent", "bid", amount=1)
    problem = "You can't submit the answer of this session: another participant does that."
    assert refused(-32602, played.send, "buyer", "submit_answer", answer="mine").data["detail"] == problem
    assert played.send("seller", "submit_answer", answer="sold") is True
    assert played.send("agent", "submit_answer", answer="sold") is True
    refused(-32014, played.send, "agent", "submit_answer", answer="not sold")
    over = "EpisodeOverError: the answer has been submitted, so no further call is run."
    for name in played.session.get("participants"):
        assert played.call(name, "look")["error"] == over
        assert played.send(name, "get_task")["done"] is True
    record = played.trace()[-1]
    assert (record["kind"], record["answer"], record["by"]) == ("answer", "sold", "seller")
    bench.rpc("reset_session", session_id=played.id)
    assert played.send("agent", "submit_answer", answer="not sold") is True
    other = play(bench)
    bench.rpc("submit_answer", session_id=other.id, answer="x")
    assert other.trace()[0]["by"] == "client"


# Bundles and replays


def test_bundle_and_replay_keep_permissions_counts_and_records(bench):
    played = play(bench)
    played.call("buyer", "bid", "x", amount=1)
    played.call("seller", "look")
    played.call("buyer", "bid", amount=2)
    bench.rpc("reset_session", session_id=played.id, version=1)
    played.call("buyer", "look")
    played.send("seller", "submit_answer", answer="sold")
    exact = Played(bench, bench.rpc("import_bundle", bundle=played.bundle()))
    assert exact.trace() == played.trace()
    replays = [
        bench.rpc("import_bundle", bundle=played.bundle(), mode="replay"),
        bench.rpc("replay_session", session_id=played.id),
        bench.rpc("replay_session", session_id=exact.id),
    ]
    assert [replay["complete"] for replay in replays] == [True] * 3
    for other in [exact, *(Played(bench, replay["session"]) for replay in replays)]:
        assert [*other.session.get("participants")] == ["agent", "buyer", "seller"]
        assert other.send("buyer", "get_task") == played.send("buyer", "get_task")
        assert [record.get("by") for record in other.trace()] == [record.get("by") for record in played.trace()]
    assert exact.call("buyer", "bid", "x", amount=1)["result"] == [1]


def _rights(**changed):
    def change(lines):
        lines[0]["head"]["feature_options"]["participants"] |= changed

    return change


def _without_agent(lines):
    del lines[0]["head"]["feature_options"]["participants"]["agent"]


def _agent_last(lines):
    participants = lines[0]["head"]["feature_options"]["participants"]
    participants["agent"] = participants.pop("agent")


def _first_record(**changed):
    def change(lines):
        record = next(line["record"] for line in lines if "record" in line)
        for side, members in changed.items():
            record[side == "private"].update(members)

    return change


WHOLE = {"functions": None, "max_calls": None, "prompt": None, "answers": True}


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (_rights(buyer={**WHOLE, "functions": ["steal"]}), "Participant 'buyer': the session has no function 'steal'."),
        (
            _rights(buyer={**WHOLE, "max_calls": "many"}),
            "Participant 'buyer': max_calls must be a non-negative integer.",
        ),
        (_rights(buyer={}), "The participants aren't in the stored form"),
        (_without_agent, "The participants aren't in the stored form"),
        (_agent_last, "The participants aren't in the stored form"),
        (_rights(**{f"p{n}": WHOLE for n in range(14)}), "A session has at most 16 participants"),
        (_first_record(private={"progress": [{"buyer": 0}, None]}), "Record 0 of the bundle has a progress"),
        (_first_record(private={"progress": [7, None]}), "Record 0 of the bundle has a progress"),
        (_first_record(private={"progress": "none"}), "Record 0 of the bundle has a progress"),
        (_first_record(private={"progress": [{"buyer": 1}, 0]}), "Record 0 of the bundle has a progress"),
        (
            _first_record(shown={"by": "seller"}),
            "Record 0 of the bundle has a sender, recipient or call_id that isn't the session's.",
        ),
        (
            _first_record(shown={"by": "thief"}),
            "Record 0 of the bundle has a sender, recipient or call_id that isn't the session's.",
        ),
        (
            _first_record(shown={"call_id": "seller/x"}),
            "Record 0 of the bundle has a sender, recipient or call_id that isn't the session's.",
        ),
    ],
    ids=range(13),
)
def test_bundle_is_validated_even_if_sealed_with_our_key(market, change, problem):
    played = play(market)
    played.call("buyer", "bid", "x", amount=1)
    played.call("seller", "look")
    count = len(market.rpc("list_sessions"))
    bundle = other_bundle(played.bundle(), change)
    assert refused(-32602, market.rpc, "import_bundle", bundle=bundle).data["detail"].startswith(problem)
    assert len(market.rpc("list_sessions")) == count


def test_bundle_of_a_fork_is_validated_too(market):
    played = play(market)
    played.call("buyer", "bid", amount=1)
    (fork,) = (Played(market, each) for each in market.rpc("fork_session", session_id=played.id))
    fork.call("buyer", "look")
    market.rpc("import_bundle", bundle=fork.bundle())
    wrong = other_bundle(fork.bundle(), _first_record(private={"progress": [{"buyer": 0}, None]}))
    refused(-32602, market.rpc, "import_bundle", bundle=wrong)


def test_bundle_with_altered_permissions_is_rejected(market):
    bundle = other_bundle(play(market).bundle(), _rights(buyer=WHOLE), key=KEY)
    assert Played(market, market.rpc("import_bundle", bundle=bundle)).send("buyer", "get_task").get("max_calls") is None
    with Bench(CATALOG, key=b"another key, of another server!!") as other:
        refused(-32012, other.rpc, "import_bundle", bundle=bundle)


def test_replayed_bundle_cannot_add_permissions(market):
    played = play(market)
    played.call("buyer", "bid", amount=1)
    stranger = other_bundle(played.bundle(), _first_record(shown={"by": "thief"}))
    error = refused(-32602, market.rpc, "import_bundle", bundle=stranger, mode="replay")
    assert error.data["detail"] == "The session has no address named 'thief'."
    wrong = other_bundle(played.bundle(), _rights(buyer={**WHOLE, "functions": 3}))
    error = refused(-32602, market.rpc, "import_bundle", bundle=wrong, mode="replay")
    assert error.data["detail"] == "Participant 'buyer': functions must be a list of strings."


# Sessions without participants


def test_storage_is_unchanged_without_participants(make_bench):
    bench = make_bench(load_catalog((PACKS,), ("chores", "ledger")))
    assert "toolpacks.chores" in sys.modules
    session = bench.rpc("create_session", task="chores/dishes", call_id="mine")
    # The id is derived from this request.
    assert "participants" not in bench.service.context.session_request().model_dump()
    assert session.get("participants") is None
    key = session["agent_path"].removeprefix("/agents/")
    bench.rpc("run_function", agent_key=key, function="do", kwargs={"chore": "dishes"}, call_id="x")
    bench.rpc("submit_answer", agent_key=key, answer="done")
    stored = bench.store.get(session["session_id"])[0]
    assert (stored.recipe, stored.details) == (b'[["chores"],{"task":"chores/dishes"}]\n[{},{}]', b"")
    call, answer = bench.store.records(session["session_id"], -1, 2)
    lines = [record.body.split(b"\n") for record in (call, answer)]
    assert call.call_id == "agent:x"
    assert lines[0][0].startswith(
        b'{"index":0,"kind":"call","call_id":"x","function":"do","kwargs":{"chore":"dishes"},'
    )
    assert lines[0][1] == b'{"digest":"df93a2cf95dc68b51b179598c3a52117","failure":null,"progress":[1,null]}'
    assert lines[1][0].startswith(b'{"index":1,"kind":"answer","answer":"done","version":1,')
    assert lines[1][1] == b'{"progress":[1,1]}'
    assert bench.rpc("get_task", agent_key=key).keys() == {"prompt", "max_calls", "calls", "done"}
    assert serving.KEY == KEY


# Tasks


def test_solution_names_the_participant_of_each_call(market):
    session_id = play(market, {}, task="market/sale").id
    assert market.rpc("get_solution", session_id=session_id)["calls"] == [
        {"function": "look", "kwargs": {}, "by": "agent"},
        {"function": "bid", "kwargs": {"amount": 5}, "by": "buyer"},
    ]


def test_solution_with_an_unknown_participant_is_rejected():
    with pytest.raises(RegistrationError) as error:
        Task("wrong", "Do it.", participants={"buyer": {}}, solution=[("bid", {"amount": 5}, "byer")])
    assert str(error.value) == (
        "task 'wrong': the call of `bid` in its solution is made by 'byer', which isn't a participant of the task: "
        "name one of its participants."
    )


def test_evaluator_sees_the_participant_of_each_call(market):
    played = play(market, {}, task="market/sale")
    played.call("buyer", "bid", amount=5)
    assert market.rpc("evaluate_session", session_id=played.id)["passed"] is True
    other = play(market, {"seller": {}}, task="market/sale")
    other.call("seller", "bid", amount=5)
    verdict = market.rpc("evaluate_session", session_id=other.id)
    assert [check["passed"] for check in verdict["checks"]] == [True, False]


def problems_of_check(task):
    """Return the result of `check --tasks` for a task."""
    pack: Any = Toolpack("market", Market)
    for function in (look, bid, look_behind):
        pack.function(function)
    pack.add_task(task)
    return asyncio.run(check_tasks(memory_settings((), None), Catalog({"market": pack})))


def test_check_runs_a_solution_with_the_participants_permissions():
    assert problems_of_check(TASK) == (1, [])
    options: dict[str, Any] = {"participants": {"buyer": {"functions": ["bid"], "max_calls": 1}}}
    by_agent = Task(
        "sale", "Sell it.", sold, solution=[("look", {}), ("bid", {"amount": 5})], functions=["look"], **options
    )
    assert "the call of `bid` by agent in its solution fails: ToolNotFoundError" in problems_of_check(by_agent)[1][0]
    twice = [("bid", {"amount": 5}, "buyer")] * 2
    problem = "the call of `bid` by buyer in its solution fails: EpisodeOverError: all 1 of your calls are used"
    assert problem in problems_of_check(Task("sale", "Sell it.", sold, solution=twice, **options))[1][0]
    misspelt = Task("sale", "Sell it.", sold, solution=twice, participants={"buyer": {"functions": ["bit"]}})
    assert (
        "Participant 'buyer': the session has no function 'bit'. Did you mean bid?" in problems_of_check(misspelt)[1][0]
    )
    computed = Task("sale", "Sell it.", sold, solution=lambda _market: [("bid", {"amount": 5}, "byer")], **options)
    assert (
        "the call of `bid` in its solution is made by 'byer', which isn't a participant"
        in problems_of_check(computed)[1][0]
    )


def test_abandoned_thread_does_not_corrupt_record_counts(make_bench, monkeypatch):
    """An abandoned job has read the session's record count. The session continues before the job's thread ends."""
    bench = make_bench(CATALOG, timeout_seconds=0.5)
    played = play(bench, {"buyer": {"answers": True}, "seller": {}})
    bench.sessions.queues.cache.pop(played.id)  # as after a call in another worker
    stored, started, gate = Episodes.stored, threading.Event(), threading.Event()

    def stored_late(*arguments):
        count = stored(*arguments)
        if not started.is_set():
            started.set()
            gate.wait(serving.PATIENCE)
        return count

    monkeypatch.setattr(Episodes, "stored", stored_late)
    refused(-32010, bench.rpc, "add_message", session_id=played.id, role="user", content="Hello.")
    assert played.call("buyer", "look")["error"] is None
    gate.set()
    wait_until(lambda: not bench.sessions.queues.threads._stuck, "the end of the thread")
    assert played.call("buyer", "look")["error"] is None
    bundle = bench.rpc("export_bundle", session_id=played.id)["bundle"]
    assert bench.rpc("import_bundle", bundle=bundle)["session_id"]
