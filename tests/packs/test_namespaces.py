"""Functions with the same name in several toolpacks of a session: these get a prefix, other functions don't."""

from typing import Annotated

import pytest
import serving
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field

from toolpack_server import Depends, TaskEnvironment, Toolpack
from toolpack_server.observability.exposition import exposition
from toolpack_server.packs.catalog import Catalog
from toolpack_server.packs.names import ambiguous_names, session_names, without_dots


class Box(TaskEnvironment):
    things: list[str] = Field(default_factory=list)


Things = Annotated[list[str], Depends("things")]


def box(name, *functions, opt_in=False):
    toolpack = Toolpack(name, Box, opt_in=opt_in)

    def put(things: Things, thing: str = "") -> list[str]:
        """Put something into the box.

        :param thing: The thing.
        """
        things.append(f"{thing} in {name}")
        return things

    def look(things: Things) -> list[str]:
        """Look into the box."""
        return things

    toolpack.function(put)
    toolpack.function(read_only=True)(look)
    for extra in functions:

        def only(things: Things) -> str:
            """Return the name of the box."""
            things.append("seen")
            return name

        only.__name__ = extra
        toolpack.function(only)
    return toolpack


@pytest.fixture(scope="module")
def bench():
    packs = [box("red", "paint"), box("blue.dark", "wash"), box("green", "paint", "green__put", opt_in=True)]
    with serving.Bench(Catalog({pack.name: pack for pack in packs})) as server:
        yield server


def names(bench, session, form="native"):
    descriptions = bench.rpc("list_functions", session_id=session, format=form)["result"]
    return [function["function"]["name"] if form == "openai" else function["name"] for function in descriptions]


def test_functions_with_the_same_name_get_their_toolpacks_prefix(bench):
    session = bench.create("red", "blue.dark")
    dotted = ["red.put", "red.look", "paint", "blue.dark.put", "blue.dark.look", "wash"]
    assert names(bench, session) == names(bench, session, "gemini") == dotted
    for form in ("openai", "anthropic", "mcp"):
        assert names(bench, session, form) == [name.replace(".", "__") for name in dotted]


def test_session_without_duplicate_names_has_no_prefixes(bench):
    assert names(bench, bench.create("red")) == ["put", "look", "paint"]
    everything = [function["name"] for function in bench.rpc("list_functions")["result"]]
    assert everything == ["put", "look", "paint", "put", "look", "wash", "put", "look", "paint", "green__put"]


def test_both_spellings_of_a_prefixed_name_can_be_called(bench):
    session = bench.create("red", "blue.dark")
    assert bench.result(session, "red.put", thing="a") == ["a in red"]
    assert bench.result(session, "red__put", thing="b") == ["a in red", "b in red"]
    assert bench.result(session, "blue__dark__put", thing="c") == ["c in blue.dark"]
    assert bench.result(session, "blue.dark.look") == ["c in blue.dark"]
    assert bench.result(session, "paint") == "red"
    error = bench.call(session, "put", thing="d")["error"]
    assert error == "ToolNotFoundError: The requested function `put` is not available."
    assert [record["function"] for record in bench.rpc("get_trace", session_id=session)][:2] == ["red.put", "red__put"]
    assert bench.rpc("get_environment", session_id=session)["red"] == {"things": ["a in red", "b in red", "seen"]}
    assert bench.version(session) == 4  # the second `look` was read-only


def test_nested_calls_use_the_prefixed_names(bench):
    session = bench.create("red", "blue.dark")
    inner = {"$call": {"function": "wash", "args": {}}}
    assert bench.result(session, "red.put", thing=inner) == ["blue.dark in red"]
    assert bench.rpc("get_environment", session_id=session)["blue.dark"] == {"things": ["seen"]}


def test_name_that_looks_prefixed_gets_a_prefix_too(bench):
    session = bench.create("red", "green")
    assert names(bench, session) == [
        *("red.put", "red.look", "red.paint"),
        *("green.put", "green.look", "green.paint", "green.green__put"),
    ]
    assert bench.result(session, "green__put", thing="x") == ["x in green"]
    assert bench.result(session, "green__green__put") == "green"


def test_metrics_use_the_function_name_without_prefix(bench):
    session = bench.create("red", "blue.dark")
    bench.result(session, "blue__dark__put", thing="x")
    lines = serving.wait_until(
        lambda: [
            line
            for line in exposition(bench.service.metrics, None).decode().splitlines()
            if 'function="put"' in line and 'toolpack="blue.dark"' in line
        ]
    )
    assert lines


def test_forks_and_resets_keep_the_prefixed_names(bench):
    session = bench.create("red", "blue.dark")
    bench.result(session, "red.put", thing="a")
    (fork,) = bench.rpc("fork_session", session_id=session)
    assert bench.result(fork["session_id"], "red.look") == ["a in red"]


words = st.from_regex(r"[ab](_{0,2}[ab]){0,2}", fullmatch=True)


@given(
    st.dictionaries(st.from_regex(r"[ab]([._]{1,2}[ab])?", fullmatch=True), st.lists(words, unique=True), max_size=4)
)
def test_names_are_unique_in_both_spellings_or_reported(toolpacks):
    called = session_names(toolpacks)
    assert len(called) == sum(map(len, toolpacks.values()))
    assert all(name in (registered[1], ".".join(registered)) for registered, name in called.items())
    if not ambiguous_names(called):
        spellings = [{name, without_dots(name)} for name in called.values()]
        assert len(set().union(*spellings)) == sum(map(len, spellings))
    plain = [name for names in toolpacks.values() for name in names]
    if len(set(plain)) == len(plain):
        assert not any("." in name for name in called.values())
