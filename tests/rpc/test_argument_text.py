"""Arguments as JSON text, as in models' tool calls, and unknown keys in arguments."""

import json

import pytest
from pydantic import BaseModel, ConfigDict
from serving import Bench, refused

from toolpack_server import Toolpack
from toolpack_server.packs.catalog import Catalog


def run(bench, session_id, function, kwargs, **params):
    return bench.rpc("run_function", session_id=session_id, function=function, kwargs=kwargs, **params)


def test_a_text_with_an_object_counts_as_the_object(bench):
    session_id = bench.create()
    assert run(bench, session_id, "add", '{"amount": 3}') == {"result": 3, "error": None}
    assert run(bench, session_id, "add", {"amount": 3}) == {"result": 6, "error": None}
    inner = '{"amount": {"$call": {"function": "total", "args": {}}}}'
    assert run(bench, session_id, "add", inner)["result"] == 12
    assert run(bench, session_id, "total", "")["result"] == 12
    records = bench.rpc("get_trace", session_id=session_id)
    assert records[0]["kwargs"] == records[1]["kwargs"] == {"amount": 3}
    assert records[3]["kwargs"] == {}


def test_a_text_and_its_object_are_the_same_call(bench):
    session_id = bench.create()
    run(bench, session_id, "add", '{"amount": 3}', call_id="a")
    assert run(bench, session_id, "add", {"amount": 3}, call_id="a")["result"] == 3
    refused(-32009, run, bench, session_id, "add", '{"amount": 4}', call_id="a")


BROKEN = [
    ('{"amount": 3', "the arguments aren't JSON: unexpected end of data: line 1 column 13 (char 12)"),
    ("[3]", 'the arguments aren\'t a JSON object, like {"name": "value"}'),
    ("3", 'the arguments aren\'t a JSON object, like {"name": "value"}'),
]


@pytest.mark.parametrize(("text", "problem"), BROKEN)
def test_a_text_without_an_object_is_the_agents_mistake(bench, text, problem):
    session = bench.rpc("create_session", toolpacks=["ledger"])
    session_id, key = session["session_id"], session["agent_path"].rpartition("/")[2]
    failed = {"result": "", "error": f"ValidationError: {problem}"}
    assert run(bench, session_id, "add", text, call_id="a") == failed
    assert bench.rpc("run_function", agent_key=key, function="add", kwargs=text) == failed
    error = refused(-32004, run, bench, session_id, "add", text, raise_on_error=True)
    assert error.message == problem
    assert error.data == {"type": "ValidationError", "errors": [{"loc": [], "msg": problem, "type": "json_invalid"}]}
    records = bench.rpc("get_trace", session_id=session_id)
    assert [(record["kwargs"], record["error"], record["version"]) for record in records] == [
        ({"$text": text}, failed["error"], 0)
    ] * 3
    assert run(bench, session_id, "add", text, call_id="a") == failed
    refused(-32009, run, bench, session_id, "add", text + " ", call_id="a")


@pytest.mark.parametrize("kwargs", [1, True, ["amount", 3]])
def test_any_other_json_is_the_agents_mistake_too(bench, kwargs):
    session_id = bench.create()
    assert run(bench, session_id, "add", kwargs) == {"result": "", "error": f"ValidationError: {BROKEN[1][1]}"}
    (record,) = bench.rpc("get_trace", session_id=session_id)
    assert record["kwargs"] == {"$text": json.dumps(kwargs, separators=(",", ":"))}


def test_null_is_no_arguments(bench):
    assert run(bench, bench.create(), "total", None) == {"result": 0, "error": None}


def test_a_text_has_the_limits_of_a_body(make_bench):
    bench = make_bench(max_json_values=1000, max_json_depth=10)
    session_id = bench.create()
    many = json.dumps({"amount": [1] * 1100})
    assert "1000 values" in run(bench, session_id, "add", many)["error"]
    deep = '{"amount": ' + "[" * 12 + "]" * 12 + "}"
    assert "10 deep" in run(bench, session_id, "add", deep)["error"]
    long = json.dumps({"amount": "x" * 100_000})
    assert "ValidationError: 1 validation error" in run(bench, session_id, "add", long)["error"]
    assert bench.rpc("get_trace", session_id=session_id)[2]["kwargs"]["amount"] == "x" * 100_000


class Address(BaseModel):
    street: str = ""


class Person(BaseModel):
    name: str = ""
    address: Address = Address()


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")


toolpack = Toolpack("people")


@toolpack.function
def greet(person: Person) -> str:
    """Greet a person.

    :param person: The person.
    """
    return f"Hello {person.name} in {person.address.street}"


@toolpack.function
def greet_all(people: list[Person]) -> int:
    """Greet several people.

    :param people: The people.
    """
    return len(people)


@toolpack.function
def note(anything: Open) -> dict[str, str]:
    """Store a value.

    :param anything: The value.
    """
    return dict(anything.model_extra or {})


@pytest.fixture
def people():
    bench = Bench(Catalog({"people": toolpack}))
    yield bench, bench.create("people")
    bench.close()


def test_keys_unknown_to_a_model_are_refused_at_any_depth(people):
    bench, session_id = people
    good = {"name": "Ann", "address": {"street": "Elm"}}
    assert bench.result(session_id, "greet", person=good) == "Hello Ann in Elm"
    for bad, where in [
        ({"name": "Ann", "age": 3}, "person.age"),
        ({"name": "Ann", "address": {"stret": "Elm"}}, "person.address.stret"),
    ]:
        error = bench.call(session_id, "greet", person=bad)["error"]
        assert where in error
        assert "Extra inputs are not permitted" in error
    assert "people.1.age" in bench.call(session_id, "greet_all", people=[good, {"age": 3}])["error"]


def test_a_model_with_extra_keys_still_accepts_them(people):
    bench, session_id = people
    assert bench.result(session_id, "note", anything={"colour": "red"}) == {"colour": "red"}


def test_schemas_say_whether_unknown_keys_are_allowed(people):
    bench, session_id = people
    parameters = {
        each["name"]: each["parameters"] for each in bench.rpc("list_functions", session_id=session_id)["result"]
    }
    assert [each["additionalProperties"] for each in parameters["greet"]["$defs"].values()] == [False, False]
    assert [each["additionalProperties"] for each in parameters["note"]["$defs"].values()] == [True]


def test_functions_with_similar_names_are_suggested(bench):
    session_id = bench.create()
    error = refused(-32003, run, bench, session_id, "totl", {}, raise_on_error=True, call_id="a")
    assert error.message == "The requested function `totl` is not available."
    assert error.data == {"type": "ToolNotFoundError", "similar": ["total"]}
    refusal = refused(-32003, run, bench, session_id, "totl", {}, raise_on_error=True, call_id="a")
    assert refusal.data == error.data
    assert refused(-32003, run, bench, session_id, "xyz", {}, raise_on_error=True).data["similar"] == []
