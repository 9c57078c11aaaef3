"""Lazy environments: a call on a large environment loads and stores only the pieces that it uses.

Its results are the same as on an environment that is stored as a whole.
"""

import inspect
import random
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, Field, PrivateAttr
from serving import NO_VOLUMES

from toolpack_server import Depends, Toolpack
from toolpack_server.base.errors import StateDamagedError
from toolpack_server.execution.call import call
from toolpack_server.execution.codec import Codec
from toolpack_server.execution.initial import build
from toolpack_server.execution.runtime import SessionRuntime
from toolpack_server.execution.snapshot import Snapshot
from toolpack_server.execution.views import thawed
from toolpack_server.execution.volumes import volume_pointers
from toolpack_server.execution.world import ExecutionContext
from toolpack_server.functions_runtime import TaskEnvironment
from toolpack_server.packs.catalog import Catalog
from toolpack_server.packs.lazy_obstacles import lazy_obstacle
from toolpack_server.snapshots.comparison import difference
from toolpack_server.volumes.volume import Limits, VolumeContext, is_piece

COUNT = 200
PART = "people/:objects:0"


class Person(BaseModel):
    name: str
    age: int = 30
    friends: list["Person"] = []
    tags: set[str] = {"a", "b", "c"}
    _seen: int = PrivateAttr(0)


class People(TaskEnvironment):
    people: dict[str, Person] = Field(default_factory=dict)
    favourite: Person | None = None


PeopleById = Annotated[dict[str, Person], Depends("people")]


def make_people() -> People:
    env = People(people={f"p{i}": Person(name=f"name {i}") for i in range(COUNT)})
    env.people["p1"].friends.append(env.people["p2"])
    env.favourite = env.people["p3"]
    return env


def read(people: PeopleById, key: str) -> str:
    return people[key].name


def rename(people: PeopleById, key: str, name: str) -> str:
    people[key].name = name
    return name


def befriend(people: PeopleById, key: str, other: str) -> int:
    people[key].friends.append(people[other])
    return len(people[key].friends)


def add(people: PeopleById, key: str) -> int:
    people[key] = Person(name=key, friends=[people["p0"]])
    return len(people)


def remove(people: PeopleById, key: str) -> int:
    del people[key]
    return len(people)


def fail(people: PeopleById, key: str) -> None:
    people[key].name = "failed"
    raise ValueError("it fails")


def lie(people: PeopleById, key: str) -> str:
    people[key].age += 1
    return people[key].name


def keep(people: PeopleById, key: str) -> None:
    leaked.append(people[key])


def age_all(people: PeopleById) -> int:
    for person in people.values():
        person.age += 1
    return sum(person.age for person in people.values())


leaked: list[Any] = []
READERS = {"read", "lie"}


class Executor:
    """Runs calls on one session, as a worker does, but without a store."""

    def __init__(self, lazy_min_bytes, pack=None):
        self.pack = pack or toolpack()
        catalog = Catalog({self.pack.name: self.pack})
        volumes = VolumeContext(NO_VOLUMES.kinds, NO_VOLUMES.scratch, Limits(lazy_min_bytes=lazy_min_bytes))
        self.codec = Codec(catalog, b"k" * 32, 2**25, volumes)
        self.context = ExecutionContext(self.codec, 2**20)
        built = build(self.context, self.pack.name, {})
        self.parts = {part: blob_id for part, (blob_id, _) in built.items()}
        self.blobs = dict(built.values())
        self.live: dict[str, Any] = {}
        self.runtime = SessionRuntime(catalog.functions((self.pack.name,)), 100)

    @property
    def snapshot(self):
        return Snapshot(self.parts, {part: self.blobs[blob_id] for part, blob_id in self.parts.items()}, self.live)

    def run(self, function, /, *, verify=False, **arguments):
        """Run a function, and return the outcome. `verify` checks that a read-only function changes nothing."""
        plan = self.runtime.plan(function, arguments)
        plan.compares = verify
        snapshot = self.snapshot
        outcome = call(plan, snapshot, self.context)
        self.live = {**snapshot.live, **outcome.live}
        self.parts = self.parts | {part: blob_id for part, (blob_id, _) in outcome.blobs.items()}
        self.blobs |= dict(outcome.blobs.values())
        return outcome

    @property
    def environment(self):
        return thawed(self.codec, self.snapshot)[self.pack.name]


def toolpack():
    pack = Toolpack("people", make_people)
    for function in (read, rename, befriend, add, remove, fail, lie, keep, age_all):
        pack.register_function(with_docstring(function), read_only=function.__name__ in READERS)
    return pack


def with_docstring(function):
    parameters = [*inspect.signature(function).parameters][1:]
    function.__doc__ = "Do it.\n\n" + "\n".join(f":param {name}: A {name}." for name in parameters)
    return function


@pytest.fixture
def lazy():
    return Executor(1)


def stored_bytes(outcome):
    return sum(len(blob) for _, blob in outcome.blobs.values())


def test_large_environment_is_stored_in_pieces(lazy):
    assert [*lazy.parts] == [PART]
    assert is_piece(PART)
    assert volume_pointers(lazy.parts) == {}
    assert difference(make_people(), lazy.environment) is None


def test_change_of_one_object_stores_its_piece(lazy):
    outcome = lazy.run("rename", key="p7", name="Ada")
    assert stored_bytes(outcome) < len(lazy.blobs[lazy.parts[PART]]) / 20
    assert lazy.environment.people["p7"].name == "Ada"


def test_added_and_removed_objects_are_stored(lazy):
    lazy.run("add", key="new")
    lazy.run("remove", key="p5")
    env = lazy.environment
    assert [*env.people][-1] == "new"
    assert "p5" not in env.people
    assert env.people["new"].friends[0] is env.people["p0"]


def test_objects_stay_shared(lazy):
    lazy.run("befriend", key="p1", other="p9")
    lazy.run("rename", key="p2", name="Bo")
    env = lazy.environment
    assert env.people["p1"].friends == [env.people["p2"], env.people["p9"]]
    assert env.people["p1"].friends[0] is env.people["p2"]
    assert env.favourite is env.people["p3"]


def test_failed_call_changes_nothing(lazy):
    lazy.run("read", key="p4")
    assert lazy.run("fail", key="p4").failure is not None
    assert lazy.run("read", key="p4").result == b'"name 4"'


def test_change_by_a_read_only_function_is_dropped(lazy):
    lazy.run("lie", key="p4")
    assert lazy.run("lie", key="p4").blobs == {}
    assert lazy.environment.people["p4"].age == 30


def test_change_by_a_read_only_function_is_reported(lazy):
    outcome = lazy.run("lie", key="p4", verify=True)
    assert outcome.comparison.broken[:2] == ("people", "lie")
    assert outcome.comparison.broken[2].startswith("env.people['p4'].age")


def test_object_kept_after_its_call_cannot_be_used(lazy):
    leaked.clear()
    lazy.run("keep", key="p4")
    with pytest.raises(ValueError, match="belongs to a call that has ended"):
        leaked[0].name  # noqa: B018


def test_long_chains_are_merged(lazy):
    for number in range(40):
        lazy.run("rename", key=f"p{number % 11}", name=f"n{number}")
    lazy.run("age_all")
    lazy.run("remove", key="p50")
    lazy.run("age_all")
    env = lazy.environment
    assert [env.people[f"p{i}"].name for i in range(11)] == [f"n{29 + (i - 29) % 11}" for i in range(11)]
    assert {person.age for person in env.people.values()} == {32}
    assert len(env.people) == COUNT - 1


@pytest.mark.parametrize("damage", ["other version", "other session"])
def test_exchanged_pieces_are_refused(lazy, damage):
    other = Executor(1)
    first, second = lazy, lazy if damage == "other version" else other
    first.run("rename", key="p1", name="one")
    piece = first.parts["people/:objects:1"], first.blobs[first.parts["people/:objects:1"]]
    second.run("rename", key="p1", name="two")
    second.run("rename", key="p2", name="three")
    second.live = {}
    newest = max(second.parts)
    second.parts = second.parts | {newest: piece[0]}
    second.blobs |= {piece[0]: piece[1]}
    with pytest.raises(StateDamagedError):
        second.run("read", key="p1")


def test_random_calls_equal_those_on_a_whole_environment():
    choices = random.Random(7)
    lazy, reference = Executor(1), Executor(0)
    for _ in range(150):
        key, other = (f"p{choices.randrange(12)}" for _ in range(2))
        function, arguments = choices.choice(
            [
                ("read", {"key": key}),
                ("rename", {"key": key, "name": other}),
                ("befriend", {"key": key, "other": other}),
                ("add", {"key": key}),
                ("remove", {"key": key}),
                ("fail", {"key": key}),
                ("age_all", {}),
            ]
        )
        if choices.random() < 0.3:
            lazy.live = {}
        results = [executor.run(function, **arguments) for executor in (lazy, reference)]
        assert results[0].result == results[1].result
        assert (results[0].failure and results[0].failure.text) == (results[1].failure and results[1].failure.text)
    assert difference(reference.environment, lazy.environment) is None


def test_small_or_opted_out_environment_is_stored_as_a_whole():
    assert [*Executor(10**6).parts] == ["people"]
    pack = toolpack()
    pack.lazy = False
    assert [*Executor(1, pack).parts] == ["people"]


def test_no_obstacle_is_found_in_this_module():
    assert lazy_obstacle(toolpack()) is None
