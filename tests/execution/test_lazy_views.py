"""Views and comparisons of environments in pieces load only the pieces that they show.

Their results equal those of environments that are stored as a whole.
"""

import random
from collections import Counter
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import jsonpointer
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, PlainSerializer, computed_field, field_serializer
from test_lazy_environments import PART, Executor

from toolpack_server import Depends, Toolpack
from toolpack_server.base.errors import ResultError, StateDamagedError
from toolpack_server.execution import lazy_environment
from toolpack_server.execution.views import view, view_changes
from toolpack_server.functions_runtime import TaskEnvironment
from toolpack_server.jsonio.selection import select, select_changes
from toolpack_server.jsonio.strict import dumps, loads
from toolpack_server.sessions.views import json_patch
from toolpack_server.snapshots.lazy_graph import LazyGraph
from toolpack_server.snapshots.splitting import split

CALLS = 6
POINTERS = 8


class Rec(BaseModel):
    model_config = ConfigDict(extra="allow")
    key: int = 0
    data: Any = None
    ref: Any = Field(None, serialization_alias="seeAlso")


@dataclass
class Note:
    text: str = ""
    data: Any = None
    ref: Any = None


class Thing:
    """A plain object: JSON shows it once, and refers to it elsewhere."""

    def __init__(self, data: Any = None) -> None:
        self.data = data
        self.ref = None


class Shelf(BaseModel):
    by_name: dict[str, Any] = Field({}, alias="byName")
    other: Any = None


class Counted(Shelf):
    @computed_field
    @property
    def count(self) -> int:
        return len(self.by_name)


class Listed(Shelf):
    @field_serializer("other")
    def names(self, _: Any) -> list[str]:
        return [*self.by_name]


class Storage(TaskEnvironment):
    recs: dict[str, Any] = Field({})
    items: list[Any] = Field([])
    numbers: dict[Any, Any] = Field({})
    shelf: Any = None
    short: Annotated[dict[str, Any], PlainSerializer(lambda value: [*value])] = Field({})
    favourite: Any = None


class Choices(random.Random):
    def one_in(self, count: int) -> bool:
        return self.randrange(count) == 0


def value(choices, pool, depth=0):
    case = choices.randrange(12)
    if case < 5 or depth > 2:
        return choices.choice([1, True, 1.0, "x", None, 2.5, float("nan"), 10**20, "long string"])
    inner = partial(value, choices, pool, depth + 1)
    makers = [
        lambda: [inner() for _ in range(choices.randrange(3))],
        lambda: {choices.choice(["a", "b/~", 3, "3"]): inner() for _ in range(choices.randrange(3))},
        lambda: {choices.randrange(50) for _ in range(3)},
        lambda: choices.choice(pool) if pool else None,
        lambda: Note("note", inner()),
        lambda: Rec(key=9, data=inner()),
        lambda: Thing(inner()) if choices.one_in(4) else inner(),
    ]
    return makers[case - 5]()


def record(choices, pool, key):
    created = choices.choice([Rec, Rec, Rec, Note])(data=value(choices, pool))
    if choices.one_in(4) and pool:
        created.ref = choices.choice(pool)
    if isinstance(created, Rec):
        created.key = key
        if choices.one_in(6):
            created.more = value(choices, pool)
    return created


def storage(seed):
    choices = Choices(seed)
    env = Storage(shelf=choices.choice([Shelf, Shelf, Counted, Listed])())
    pool: list[Any] = []
    for container in (env.recs, env.numbers, env.shelf.by_name, env.short):
        for key in range(choices.choice([0, 4, 9])):
            name = key if container is env.numbers and choices.randrange(2) else f"k{key}"
            container[name] = record(choices, pool, key)
            pool.append(container[name])
    for key in range(choices.choice([0, 4, 9])):
        env.items.append(choices.choice(pool) if pool and choices.one_in(9) else record(choices, pool, key))
    pool += env.items
    if choices.one_in(3):
        env.favourite = value(choices, pool)
    return env


def act(env: Annotated[Storage, Depends(lambda env: env)], seed: int) -> int:
    """Change the storage.

    :param seed: A seed.
    """
    choices = Choices(seed)
    for _ in range(1 + choices.randrange(3)):
        change(choices, env)
    return seed


def change(choices, env):
    containers = [env.recs, env.numbers, env.shelf.by_name]
    pool = [item for container in containers for item in [*container.values()][:3]] + env.items[-2:]
    removed = [item.ref for item in pool if isinstance(item.ref, dict) and item.ref is not env.recs]
    target = choices.choice([env.recs, env.recs, *containers, env.short, *removed, *removed])
    key = choices.choice([*target] or ["none"])
    case = choices.randrange(14)
    if case < 4 and key in target:
        target[key].data = value(choices, pool)
    elif case == 4 and key in target:
        target[key].ref = choices.choice([None, *pool, env.recs if choices.one_in(3) else env.items])
    elif case == 5:
        target[f"new{choices.randrange(9)}"] = record(choices, pool, 7)
    elif case == 6:
        target.pop(key, None)
    elif case == 7 and key in target:
        target[key] = target.pop(key)
    elif case == 8 and env.items:
        choices.choice(env.items).data = value(choices, pool)
    elif case == 9:
        env.items.append(record(choices, pool, 8)) if choices.randrange(3) else env.items.reverse()
    elif case == 10:
        env.favourite = choices.choice([None, value(choices, pool), *pool])
    elif case == 11 and choices.one_in(3):
        env.recs, env.shelf.by_name = env.shelf.by_name, dict(env.recs)
    elif case == 12 and env.items and choices.one_in(3):
        env.items[-1].ref, env.recs = env.recs, {}
    elif case == 13 and key in target and choices.one_in(3):
        target["twin"] = target[key]


class Versions:
    """A session in pieces, the same session as a whole, and their versions."""

    def __init__(self, seed):
        def make() -> Storage:
            return storage(seed)

        pack = Toolpack("storage", make, state_types=[Rec, Note, Thing, Shelf, Counted, Listed])
        pack.register_function(act)
        self.executors = Executor(1, pack), Executor(0, pack)
        self.snapshots = [self.now]

    @property
    def now(self):
        return tuple(executor.snapshot for executor in self.executors)

    @property
    def is_in_pieces(self):
        return [*self.executors[0].parts] != ["storage"]

    def act(self, seed):
        one, other = (executor.run("act", seed=seed) for executor in self.executors)
        assert one.result == other.result
        self.snapshots.append(self.now)

    def reset(self, version):
        for executor, snapshot in zip(self.executors, self.snapshots[version], strict=True):
            executor.parts, executor.live = dict(snapshot.parts), {}


def whole_view(executor, snapshot):
    try:
        return loads(view(executor.codec, snapshot))
    except ResultError:
        return None


def resolve(text, pointer):
    try:
        return dumps(jsonpointer.resolve_pointer(loads(text), pointer, ""))
    except jsonpointer.JsonPointerException:
        return "nothing"


def pointers_in(view_json, pointer=""):
    yield pointer
    items = (
        view_json.items()
        if isinstance(view_json, dict)
        else enumerate(view_json)
        if isinstance(view_json, list)
        else ()
    )
    for step, item in items:
        yield from pointers_in(item, f"{pointer}/{jsonpointer.escape(str(step))}")


def check_views(choices, executor, snapshot, expected):
    pointers = [*pointers_in(expected)]
    chosen = choices.sample(pointers, min(POINTERS, len(pointers)))
    for pointer in [*chosen, f"{chosen[0]}/none", "/storage/recs/none", "/storage/items/77", "/storage/shelf/by_name"]:
        steps = [*map(jsonpointer.unescape, pointer.split("/")[1:])]
        text = view(executor.codec, snapshot, steps)
        assert resolve(text, pointer) == resolve(dumps(expected), pointer), pointer


def check_changes(versions, one, other):
    pieces, complete = (
        [snapshots[index] for index in (one, other)] for snapshots in zip(*versions.snapshots, strict=True)
    )
    expected = [whole_view(versions.executors[1], snapshot) for snapshot in complete]
    if None in expected:
        return
    text = view_changes(versions.executors[0].codec, *pieces)
    if text:
        patch = json_patch(*loads(text))
        if all(each["path"] for each in patch):
            assert patch == json_patch(*expected)
            counts["compared"] += 1


counts: Counter[str] = Counter()


def compare_with_whole(seed):
    choices = Choices(seed)
    versions, others = Versions(seed), Versions(seed)
    if not versions.is_in_pieces:
        return
    for number in range(3):
        others.act(seed + number)
    for number in range(2):
        versions.act(seed + number)
    versions.snapshots += others.snapshots  # versions of another session, whose pieces have another base
    for number in range(CALLS):
        versions.act(choices.randrange(10**6))
        if choices.one_in(5):
            versions.reset(choices.choice([*range(3), *range(7, number + 8)]))
        for executor, snapshot in zip(versions.executors, versions.now, strict=True):
            expected = whole_view(versions.executors[1], versions.now[1])
            if expected is not None:
                check_views(choices, executor, snapshot, expected)
                counts["views"] += 1
        last = len(versions.snapshots) - 1
        check_changes(versions, last, choices.randrange(last))
        check_changes(versions, last - 1, last)


@pytest.fixture
def few_items(monkeypatch):
    monkeypatch.setattr(lazy_environment, "split", partial(split, min_items=3))


IN_RANDOM_ORDER = {"deadline": None, "suppress_health_check": [*HealthCheck]}


@pytest.mark.usefixtures("few_items")
@settings(max_examples=6, **IN_RANDOM_ORDER)
@given(seed=st.integers(0, 2**32))
def test_views_and_comparisons_equal_those_of_the_whole(seed):
    compare_with_whole(seed)


@pytest.mark.heavy
@pytest.mark.usefixtures("few_items")
@settings(max_examples=60, **IN_RANDOM_ORDER)
@given(seed=st.integers(0, 2**32))
def test_many_views_and_comparisons_equal_those_of_the_whole(seed):
    compare_with_whole(seed)


@pytest.fixture
def people():
    return Executor(1)


@pytest.fixture
def loaded_groups(monkeypatch):
    """Return a list that records the number of each loaded group."""
    groups = []
    load = LazyGraph._load_group
    monkeypatch.setattr(LazyGraph, "_load_group", lambda graph, number: (groups.append(number), load(graph, number))[1])
    return groups


def test_view_of_one_object_loads_no_other(people, loaded_groups):
    snapshot = people.snapshot
    groups = loads(view(people.codec, snapshot, ["people", "people", "p1"]))
    assert groups == {"people": {"people": {"p1": loads(view(people.codec, snapshot))["people"]["people"]["p1"]}}}
    loaded_groups.clear()
    view(people.codec, snapshot, ["people", "people", "p1"])
    assert len(loaded_groups) <= 4  # the trunk, its dict, the object and its friend


def test_comparison_loads_only_objects_that_may_differ(people, loaded_groups):
    before = people.snapshot
    people.run("rename", key="p2", name="Bo")
    after = people.snapshot
    loaded_groups.clear()
    left, right = loads(view_changes(people.codec, before, after))
    people_shown = {*left["people"]["people"], *right["people"]["people"]}
    # p1 refers to p2. The call has loaded p3, the favourite, and the order of its set may have changed since.
    assert {"p1", "p2"} <= people_shown <= {"p1", "p2", "p3"}
    assert len(loaded_groups) <= 10
    assert json_patch(left, right) == [
        {"op": "replace", "path": "/people/people/p1/friends/0/name", "value": "Bo"},
        {"op": "replace", "path": "/people/people/p2/name", "value": "Bo"},
    ]


def test_view_of_a_damaged_object_is_refused(people):
    view(people.codec, people.snapshot)
    groups = people.codec.lazy_kind.bases.get(people.parts[PART]).base.groups
    for number, group in groups.items():
        if number and group.roots and group.chunks is None:
            groups[number] = group._replace(data=b"damaged")
    for steps in [], ["people", "people", "p1"]:
        with pytest.raises(StateDamagedError):
            view(people.codec, people.snapshot, steps)


def test_selection_keeps_what_a_serializer_sees():
    env = Storage(short={"a": 1, "b": 2}, recs={"a": 1, "b": 2})
    assert select(env, ["recs", "a"]).__dict__ == {"recs": {"a": 1}}
    assert select(env, ["short", "a"]).__dict__ == {"short": {"a": 1, "b": 2}}
    for kind in Counted, Listed:
        shelf = kind(byName={"a": 1, "b": 2})
        assert select(shelf, ["byName", "a"]) is shelf
        assert select_changes(shelf, kind(byName={"a": 1}), lambda *_: True)[0] is shelf
    changed = select_changes(env, Storage(short={"a": 1}, recs={"a": 1}), lambda one, _: one == 1)
    assert changed[0].short == {"a": 1, "b": 2}
    assert changed[0].recs == {"b": 2}
    assert select({"1": 1, 1: 2}, ["1"]) == {"1": 1, 1: 2}


def test_moved_items_are_shown_in_a_comparison():
    # JSON shows a plain object at the first reference to it.
    left, right = {"a": 1, "b": 2, "c": 3}, {"b": 2, "a": 1, "c": 3}
    assert select_changes(left, right, lambda *_: True) == (left, right)
    assert select_changes(left, {**left}, lambda one, _: one < 3) == ({"c": 3}, {"c": 3})
    moved = {"x": {"a": 1, "b": 2}, "y": {"a": 1, "b": 3}}, {"y": {"a": 1, "b": 4}, "x": {"a": 1, "b": 5}}
    assert select_changes(*moved, lambda one, _: one == 1) == moved, "equal items may refer to those before them"
