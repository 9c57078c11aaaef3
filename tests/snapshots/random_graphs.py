"""Random object graphs, and random functions that read and change them, for tests of pieces."""

import random
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict, PrivateAttr

from toolpack_server.snapshots.classes import ClassTable


class Rec(BaseModel):
    model_config = ConfigDict(extra="allow")
    key: int = 0
    data: Any = None
    ref: Any = None
    _private: Any = PrivateAttr(None)


@dataclass
class Data:
    key: int = 0
    data: Any = None
    ref: Any = None


@dataclass(frozen=True)
class Frozen:
    key: int = 0
    data: Any = None


@dataclass(slots=True)
class Slotted:
    key: int = 0
    data: Any = None
    ref: Any = None


class Plain:
    __hash__ = None

    def __init__(self, key=0):
        self.key = key
        self.data = None
        self.ref = None

    def __eq__(self, other):
        return self.__class__ is other.__class__ and self.key == other.key


class Keyed:
    """A class with its own `__hash__`, which reads a field."""

    def __init__(self, key=0):
        self.key = key
        self.data = None
        self.ref = None

    def __eq__(self, other):
        return isinstance(other, Keyed) and self.key == other.key

    def __hash__(self):
        return hash(self.key)


class World(BaseModel):
    model_config = ConfigDict(arbitrary_types_allowed=True)
    records: dict[Any, Any] = {}
    items: list[Any] = []
    more: dict[Any, Any] = {}
    other: Any = None


KINDS = [Rec, Data, Slotted, Plain, Frozen, Keyed]
_CHANGEABLE = (Rec, Data, Slotted, Plain, Keyed)
CLASSES = ClassTable([World], KINDS)


class Choices(random.Random):
    """Random choices that are the same in each copy of a graph."""

    def one_in(self, count):
        return self.randrange(count) == 0


def value(choices, pool, depth=0):
    """Create an object, or take one from the pool."""

    def inner():
        return value(choices, pool, depth + 1)

    case = choices.randrange(13)
    if case < 3 or depth > 2 or (case == 3 and not pool):
        return choices.choice([1, "x", None, 2.5, "long string", (1, 2), True])
    makers = {
        3: lambda: choices.choice(pool),
        4: lambda: [inner() for _ in range(choices.randrange(4))],
        5: lambda: {choices.choice(["a", "b", 3, "cc"]): inner() for _ in range(choices.randrange(4))},
        6: lambda: {choices.randrange(50) for _ in range(choices.randrange(4))},
        7: lambda: (inner(), inner()),
        8: lambda: bytearray(b"ab"),
        9: lambda: {instance(choices, pool, depth, Keyed), instance(choices, pool, depth, Frozen, plain=True)},
    }
    return makers.get(case, lambda: instance(choices, pool, depth, choices.choice(KINDS)))()


def instance(choices, pool, depth, kind, *, plain=False):
    if kind is Frozen:
        return Frozen(choices.randrange(100), None if plain else value(choices, pool, depth + 1))
    created = kind(key=choices.randrange(100))
    created.data = value(choices, pool, depth + 1)
    return created


def world(seed):
    """Create a graph with shared objects, cycles, and references back to its containers."""
    choices = Choices(str(seed))
    env = World()
    pool: list[Any] = []
    shared = [value(choices, pool) for _ in range(choices.randrange(4))]
    for name in ("records", "items", "more"):
        kinds = [choices.choice(KINDS)] if choices.randrange(2) else KINDS
        for index in range(choices.choice([0, 3, 8, 20])):
            created = _entry(choices, env, pool, shared, choices.choice(kinds), index)
            pool.append(created)
            if name == "items":
                env.items.append(created)
                if choices.one_in(30):
                    env.items.append(choices.choice(pool))
            else:
                getattr(env, name)[choices.choice([f"k{index}", index])] = created
    if choices.one_in(3):
        env.other = value(choices, pool)
    return env


def _entry(choices, env, pool, shared, kind, index):
    if kind is Frozen:
        return Frozen(index, value(choices, pool))
    created = kind(key=index)
    created.data = value(choices, pool)
    if choices.one_in(4) and shared:
        created.ref = choices.choice(shared)
    if choices.one_in(8) and pool:
        created.ref = choices.choice(pool)
    if choices.one_in(20):
        created.ref = getattr(env, choices.choice(["records", "items"]))
    if choices.one_in(40):
        created.ref = env
    if choices.one_in(25):
        created.ref = created
    if kind is Rec and choices.one_in(5):
        created._private = value(choices, pool)
    if kind is Rec and choices.one_in(5):
        created.extra_one = value(choices, pool)
    return created


def _reach(choices, env):
    """Follow a few random references from the environment, as a function of an author could."""
    node = choices.choice([env.records, env.items, env.more, env, env.other])
    for _ in range(choices.randrange(6)):
        following = _step(choices, node)
        if following is None:
            break
        node = following
    return node


def _step(choices, node):
    if isinstance(node, dict):
        return node[choices.choice([*node])] if node else None
    if isinstance(node, list | tuple):
        return choices.choice(node) if node else None
    if isinstance(node, _CHANGEABLE):
        return getattr(node, choices.choice(["data", "ref"]))
    if isinstance(node, Frozen):
        return node.data
    if isinstance(node, World):
        return getattr(node, choices.choice(["records", "items", "more", "other"]))
    return None


def act(seed, env):
    """Run a random function, and return its result. It may raise."""
    choices = Choices(str(seed))
    seen: list[Any] = []
    for _ in range(1 + choices.randrange(5)):
        target = _reach(choices, env)
        pool = [node for node in (_reach(choices, env), _reach(choices, env)) if node is not None]
        _change(choices, target, pool, seen, choices.randrange(10))
    if choices.one_in(8):
        raise ValueError("the function fails")
    return repr(seen)


def _change(choices, target, pool, seen, case):
    if isinstance(target, dict):
        _change_dict(choices, target, pool, seen, case)
    elif isinstance(target, list):
        _change_list(choices, target, pool, seen, case)
    elif isinstance(target, _CHANGEABLE):
        _change_instance(choices, target, pool, seen, case)
    elif isinstance(target, set):
        target.add(choices.randrange(99))
    elif isinstance(target, bytearray):
        target += b"z"
    elif isinstance(target, World):
        _change_world(choices, target, pool, case)


def _change_dict(choices, target, pool, seen, case):
    if case < 4:
        target[choices.choice(["k1", "new", 7, f"n{choices.randrange(9)}"])] = value(choices, pool)
    elif case < 6 and target:
        del target[choices.choice([*target])]
    elif case == 6 and target:
        key = choices.choice([*target])
        target[key] = target.pop(key)
    elif case == 7:
        seen.append(len(target))
    elif case == 8 and target:
        target[choices.choice([*target])] = choices.choice([*target.values()])
    elif case == 9:
        target[choices.choice(["m1", "m2"])] = choices.choice(KINDS[:4])(key=choices.randrange(9))


def _change_list(choices, target, pool, seen, case):
    if case < 3:
        target.append(value(choices, pool))
    elif case == 3 and target:
        target.pop(choices.randrange(len(target)))
    elif case == 4:
        target.insert(choices.randrange(len(target) + 1), value(choices, pool))
    elif case == 5:
        target.reverse()
    elif case == 6 and target:
        target[choices.randrange(len(target))] = choices.choice(target)
    elif case == 7:
        seen.append(len(target))
    elif case == 8 and pool:
        target.append(pool[0])


def _change_instance(choices, target, pool, seen, case):
    if case < 3 and not isinstance(target, Keyed):
        target.key = choices.randrange(1000)
    elif case < 5:
        target.data = value(choices, pool)
    elif case == 5 and pool:
        target.ref = pool[0]
    elif case == 6:
        target.ref = None
    elif case == 7 and isinstance(target, Rec):
        target._private = value(choices, pool)
    elif case == 8 and isinstance(target, Rec):
        target.zz = value(choices, pool)
    else:
        seen.append((type(target.data).__name__, target.key, isinstance(target, Rec)))


def _change_world(choices, target, pool, case):
    if case == 0:
        target.other = value(choices, pool)
    elif case == 1:
        target.more = dict(target.more)
    elif case == 2 and pool and isinstance(pool[0], list):
        target.items = pool[0]
    elif case == 3:
        target.records, target.more = target.more, target.records
