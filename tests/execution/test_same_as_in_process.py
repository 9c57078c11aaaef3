"""A session gives the same results as `FunctionsRuntime` in one process, for any calls in any order.

The runtime works on one live environment, without snapshots, parts or versions, so it is the model. After a failed call
the model is restored from a copy, because a session's calls are atomic.
"""

import asyncio
import copy
import functools
import json
import sys

import pytest
import serving
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from toolpack_server import FunctionCall, FunctionsRuntime, Toolpack
from toolpack_server.engine.pace import Pace
from toolpack_server.jsonio.view import to_json
from toolpack_server.packs.catalog import Catalog

PACK = serving.CATALOG.toolpacks["halves"]


def twin(plain):
    """Return an async version of a plain function."""

    @functools.wraps(plain)
    async def awaited(*args, **kwargs):
        await asyncio.sleep(0)
        return plain(*args, **kwargs)

    return awaited


def async_catalog():
    """Return the same toolpack with async functions."""
    module = sys.modules["toolpacks.halves"]
    pack = Toolpack("halves", module.make)
    for name, function in PACK.functions.items():
        pack.function(twin(getattr(module, name)), read_only=function.read_only)
    return Catalog({"halves": pack})


CATALOGS = {"plain": serving.CATALOG, "on threads": async_catalog(), "on a shared loop": async_catalog()}

numbers = st.integers(0, 9)
shelves = st.recursive(
    st.sampled_from([("get_left", {}), ("get_right", {})]),
    lambda inner: inner.map(lambda call: ("pass_on", {"value": call})),
    max_leaves=3,
)
pushes = st.tuples(st.just("push_right"), st.fixed_dictionaries({"number": numbers}))
calls = st.one_of(
    st.tuples(st.sampled_from(["push_left", "push_right", "push_a"]), st.fixed_dictionaries({"number": numbers})),
    st.tuples(st.sampled_from(["get_left", "get_right", "read_b"]), st.just({})),
    st.tuples(st.just("put_right"), st.fixed_dictionaries({"shelf": shelves})),
    st.tuples(st.just("push_on"), st.fixed_dictionaries({"shelf": shelves, "number": numbers})),
    st.tuples(st.just("push_left"), st.fixed_dictionaries({"number": pushes})),
)


def encode(call, encode_nested):
    """Return the JSON of a call. `encode_nested` encodes arguments that are calls."""
    function, kwargs = call
    args = {
        name: encode_nested(*encode(arg, encode_nested)) if isinstance(arg, tuple) else arg
        for name, arg in kwargs.items()
    }
    return function, args


def on_the_wire(call):
    return encode(call, lambda function, args: {"$call": {"function": function, "args": args}})


def in_process(call):
    return encode(call, lambda function, args: FunctionCall.model_construct(function=function, args=args))


def as_json(value):
    try:
        return json.loads(to_json(value))
    except Exception:  # noqa: BLE001 - a cycle
        return None


@pytest.fixture(params=CATALOGS)
def catalog(request, monkeypatch):
    if request.param == "on a shared loop":  # from the first call on, also if it is quick
        monkeypatch.setattr(Pace, "may_share", lambda *_: True)
    return CATALOGS[request.param]


@pytest.mark.parametrize("cache_bytes", [0, 2**26], ids=["thawed", "live"])
@given(history=st.lists(calls, max_size=12))
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_history_of_calls_has_the_results_of_the_runtime(catalog, cache_bytes, history):
    bench = serving.Bench(catalog, cache_bytes=cache_bytes)
    session_id = bench.create("halves")
    runtime = FunctionsRuntime([function.function for function in PACK.functions.values()])
    model = PACK.build({})
    for call in history:
        before = copy.deepcopy(model)
        result, error = runtime.run_function(model, *in_process(call))
        result = json.loads(to_json(result))
        function, kwargs = on_the_wire(call)
        assert bench.call(session_id, function, **kwargs) == {"result": result, "error": error}
        if error is not None:
            model = before
        assert bench.rpc("get_environment", session_id=session_id)["halves"] == as_json(model)
    (fork,) = bench.rpc("fork_session", session_id=session_id)
    for function in ("get_left", "get_right", "read_b"):
        expected = as_json(runtime.run_function(model, function, {})[0])
        for session in (session_id, fork["session_id"]):
            assert bench.result(session, function) == expected
    assert bench.result(fork["session_id"], "push_left", number=0) == model.left._touched + 1
    bench.close()
