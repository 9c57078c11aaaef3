"""Errors that an agent can react to, with their exact texts.

They are in the envelope of the result. With `raise_on_error` they are JSON-RPC errors instead.
"""

import json
from typing import Annotated, Any

import pytest
import serving
from pydantic import BaseModel
from serving import RpcError, refused

from toolpack_server import Depends, TaskEnvironment, ToolNotFoundError, Toolpack
from toolpack_server.base.errors import MissingBlobError, OverloadedError, StateDamagedError
from toolpack_server.packs.catalog import Catalog

pytestmark = serving.IN_BOTH

INT = "Input should be a valid integer, unable to parse string as an integer"
UNKNOWN = "Extra inputs are not permitted"


def inner(function, **args):
    return {"$call": {"function": function, "args": args}}


def nested(depth):
    value = 1
    for _ in range(depth):
        value = inner("echo", value=value)
    return value


CASES = [
    # function, kwargs, the envelope's error, code, message, type
    ("fly", {}, "ToolNotFoundError: The requested function `fly` is not available.", -32003, "ToolNotFoundError"),
    (
        "echo",
        {"value": inner("fly")},
        "ToolNotFoundError: The requested function `fly` is not available.",
        -32003,
        "ToolNotFoundError",
    ),
    (
        "add",
        {"amount": "much"},
        (
            "ValidationError: 1 validation error for Input schema for `add`\namount\n"
            f"  {INT} [type=int_parsing, input_value='much', input_type=str]"
        ),
        -32004,
        "ValidationError",
    ),
    (
        "total",
        {"colour": 1},
        (
            "ValidationError: 1 validation error for Input schema for `total`\ncolour\n"
            f"  {UNKNOWN} [type=extra_forbidden, input_value=1, input_type=int]"
        ),
        -32004,
        "ValidationError",
    ),
    ("add_then", {"how": "raise"}, "LookupError: half of it is done", -32002, "LookupError"),
    (
        "add_then",
        {"how": "lambda"},
        (
            "SnapshotError: `ledger.anything` can't be stored, its type is `function`: "
            "code isn't state; store its name and look the function up."
        ),
        -32002,
        "SnapshotError",
    ),
    (
        "add_and_return",
        {"what": "object"},
        "ResultError: a value of type object has no JSON form: Unable to serialize unknown type: <class 'object'>",
        -32002,
        "ResultError",
    ),
    (
        "add_and_return",
        {"what": "digits"},
        "ResultError: a value of type int at /0 has no JSON form: an integer may have at most 308 digits",
        -32002,
        "ResultError",
    ),
    (
        "add_and_return",
        {"what": "cycle"},
        "ResultError: a value of type list at /0 has no JSON form: it refers to itself",
        -32002,
        "ResultError",
    ),
    (
        "add_and_return",
        {"what": "much"},
        "TooLargeError: the result has 3000002 bytes as JSON; 1048576 are allowed.",
        -32007,
        "TooLargeError",
    ),
]


@pytest.mark.parametrize(("function", "kwargs", "error", "code", "kind"), CASES)
def test_each_envelope_error_has_a_json_rpc_equivalent(bench, function, kwargs, error, code, kind):
    session_id = bench.create()
    assert bench.call(session_id, function, **kwargs) == {"result": "", "error": error}
    with pytest.raises(RpcError) as raised:
        bench.call(session_id, function, {"raise_on_error": True}, **kwargs)
    assert raised.value.code == code
    assert f"{kind}: {raised.value.message}" == error
    assert raised.value.data["type"] == kind
    assert [r["error"] for r in bench.rpc("get_trace", session_id=session_id)] == [error, error]


def test_invalid_arguments_are_listed_one_by_one(bench):
    with pytest.raises(RpcError) as raised:
        bench.call(bench.create(), "add", {"raise_on_error": True}, amount="much", colour=1)
    assert raised.value.data == {
        "type": "ValidationError",
        "errors": [
            {"loc": ["amount"], "msg": INT, "type": "int_parsing"},
            {"loc": ["colour"], "msg": UNKNOWN, "type": "extra_forbidden"},
        ],
    }


def test_a_result_is_unchanged_and_both_keys_are_always_present(bench):
    session_id = bench.create()
    for value in [None, True, 0, -0.5, "", "text", "\u2028 é 😀", [], {}, [1, [2]], {"a": None}, 2**64, 2**200]:
        for _ in range(2):
            envelope = bench.call(session_id, "echo", {"raise_on_error": True}, value=value)
            assert envelope == {"result": value, "error": None}


def test_calls_nest_16_deep_and_no_deeper(bench):
    session_id = bench.create()
    assert bench.result(session_id, "echo", value=nested(16)) == 1
    error = bench.call(session_id, "echo", value=nested(17))["error"]
    assert error.startswith("ValidationError: 1 validation error for Input schema for `echo`\necho\n")
    assert "Calls can be nested 16 deep, no deeper" in error


def test_no_other_value_is_treated_as_a_call(bench):
    session_id = bench.create()
    for value in [
        {"$call": {"function": "total"}},
        {"$call": {"function": "total", "args": {}, "id": "x"}},
        {"$call": {"function": "total", "args": []}},
        {"$call": {"function": 1, "args": {}}},
        {"$call": "total"},
        {"$call": {"function": "total", "args": {}}, "more": 1},
        {"function": "total", "args": {}},
        [{"$call": {"function": "total", "args": {}}}],
        {"deeper": {"$call": {"function": "total", "args": {}}}},
    ]:
        assert bench.result(session_id, "echo", value=value) == value


def test_an_inner_result_is_passed_as_an_object(bench):
    assert bench.result(bench.create("ledger", "vault"), "append_to", target=inner("get_ledger"), amount=1) == 1


def test_a_call_counts_as_read_only_only_if_every_inner_call_is(bench):
    session_id = bench.create()
    bench.result(session_id, "total")
    assert bench.version(session_id) == 0
    bench.result(session_id, "echo", value=inner("total"))
    assert bench.version(session_id) == 1
    halves = bench.create("halves")
    bench.result(halves, "pass_on", value=inner("read_b"))
    assert bench.version(halves) == 0
    for version, call in enumerate((inner("push_a", number=7), inner("pass_on", value=inner("push_a", number=8))), 1):
        bench.result(halves, "pass_on", value=call)
        assert bench.version(halves) == version
    assert bench.result(halves, "read_b") == [7, 8]
    assert bench.rpc("get_environment", session_id=halves, pointer="/halves/shared_b") == [7, 8]


@pytest.mark.parametrize(
    "error",
    [
        ToolNotFoundError("nothing of that name in the shop"),
        OverloadedError("too much to do"),
        StateDamagedError("broken"),
        MissingBlobError("gone"),
    ],
)
def test_a_functions_error_stays_its_own_under_any_name(error, make_bench):
    pack = Toolpack("imitator")

    @pack.function
    def imitate() -> None:
        """Raise an error that the server raises, too."""
        raise error

    bench = make_bench(Catalog({"imitator": pack}))
    session_id = bench.create("imitator")
    assert bench.call(session_id, "imitate")["error"] == f"{type(error).__name__}: {error}"
    with pytest.raises(RpcError) as raised:
        bench.call(session_id, "imitate", {"raise_on_error": True})
    assert raised.value.code == -32002
    assert len(bench.rpc("get_trace", session_id=session_id)) == 2


class Hiding(TaskEnvironment):
    any: Any = None


HIDDEN: list[tuple[Any, str]] = [
    (10**400, "int at /any has no JSON form: an integer may have at most 308 digits"),
    ([{"a/b": {(1, b"\xff")}}], "bytes at /any/0/a~1b/0/1 has no JSON form: "),
]


@pytest.mark.parametrize(("value", "why"), HIDDEN)
def test_a_value_without_json_is_named_and_blocks_nothing(make_bench, value, why):
    pack = Toolpack("hiding", Hiding)

    @pack.function
    def hide(env: Annotated[Hiding, Depends(lambda env: env)]) -> None:
        """Keep a value without a JSON form."""
        env.any = value

    bench = make_bench(Catalog({"hiding": pack}))
    session_id = bench.create("hiding")
    bench.result(session_id, "hide")
    for method in "get_environment", "diff_environment":
        error = refused(-32002, bench.rpc, method, session_id=session_id)
        assert error.message.startswith(f"The environment of 'hiding' can't be shown: a value of type {why}")
    bench.rpc("reset_session", session_id=session_id)
    assert bench.rpc("get_environment", session_id=session_id) == {"hiding": {"any": None}}


def test_a_reply_is_always_valid_json(bench):
    session_id = bench.create()
    body = '{"jsonrpc": "2.0", "id": 1, "method": "run_function", "params": ["%s", "echo", {"value": [1e308, -0.0]}]}'
    reply = bench.answer(body % session_id)
    assert json.loads(reply, parse_constant=pytest.fail)["result"]["result"] == [1e308, 0.0]


class Purse(BaseModel):
    coins: int = 0


class PurseEnvironment(TaskEnvironment):
    purse: Purse = Purse()


def damaged(environment):
    del environment
    return Purse(coins="many")


purses = Toolpack("purses", PurseEnvironment)


@purses.function
def count_coins(purse: Annotated[Purse, Depends(damaged)]) -> int:
    """Count the coins."""
    return purse.coins


def test_a_failing_dependency_is_the_toolpacks_mistake(make_bench):
    bench = make_bench(Catalog({"purses": purses}))
    with pytest.raises(RpcError) as raised:
        bench.rpc("run_function", session_id=bench.create("purses"), function="count_coins", raise_on_error=True)
    assert (raised.value.code, raised.value.data) == (-32002, {"type": "ValidationError"})
