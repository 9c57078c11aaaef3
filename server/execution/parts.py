"""Which fields of an environment a call can touch without the others, and how to take an environment apart by them.

A call pays for its footprint, not for the whole world. The footprint is known before the call runs: the fields that its
function depends on. So an environment is divided when it is first made. Fields stay together if they share an object
that can change, or if any one function takes them together. No function can connect two parts later, since it never
holds both.

The rule: whatever can't be told for sure (a dependency that is a callable or no field, an environment that somebody
refers back to, a class that keeps state of its own kind) leaves the environment in one part. A part is an environment
of the same class that has some of the fields only.
"""

import datetime as dt
import decimal
import enum
import uuid
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import BaseModel

from server.packs.toolpack import Toolpack
from server.snapshots.graph import walk

SEPARATOR = "/"

# What can't be changed can be shared by two parts and nobody will notice.
_UNCHANGEABLE = (
    str, int, float, complex, bytes, type(None), enum.Enum, dt.date, dt.time, dt.timedelta, dt.tzinfo,
    decimal.Decimal, uuid.UUID, type,
)  # fmt: skip

# Stands for what belongs to no field that a function can reach: the private attributes, and all fields out of reach.
_REST = ""


def toolpack_of(part: str) -> str:
    """Get the toolpack that a part belongs to."""
    return part.partition(SEPARATOR)[0]


def holds(part: str, field: str) -> bool:
    """Whether a part was made for a field; the part that is named like its toolpack is made for all."""
    _, divided, fields = part.partition(SEPARATOR)
    return not divided or field in fields.split(",")


def footprint(function: Any) -> frozenset[str] | None:
    """Get the attributes of the environment that a function takes; None if that can't be told."""
    names = {getattr(dependency, "env_dependency", None) for dependency in function.dependencies.values()}
    return frozenset(names) if all(isinstance(name, str) for name in names) else None  # type: ignore[arg-type]


def divide(toolpack: Toolpack, environment: BaseModel) -> dict[str, BaseModel]:
    """Take an initial environment apart, as far as its toolpack's functions allow."""
    footprints = [footprint(function.function) for function in toolpack.functions.values()]
    fields = list(environment.__dict__)
    if None in footprints or not _is_divisible(environment, fields):
        return {toolpack.name: environment}
    groups = _Groups([*fields, _REST])
    for together in footprints:
        if not together <= environment.__dict__.keys():  # type: ignore[operator]
            return {toolpack.name: environment}
        groups.unite(sorted(together))  # type: ignore[arg-type]
    reachable = {field for together in footprints for field in together}  # type: ignore[union-attr]
    groups.unite([_REST, *(field for field in fields if field not in reachable)])
    if not _unite_sharing(groups, environment):
        return {toolpack.name: environment}
    divided = [group for group in groups.all() if group != [_REST] or _has_rest(environment)]
    if len(divided) <= 1:
        return {toolpack.name: environment}
    return {
        f"{toolpack.name}{SEPARATOR}{','.join(field for field in group if field)}": _part(environment, group)
        for group in divided
    }


def merge(parts: Iterable[BaseModel]) -> BaseModel:
    """Put an environment together again."""
    parts = list(parts)
    if len(parts) == 1:
        return parts[0]
    held = {name: value for part in parts for name, value in part.__dict__.items()}
    first = type(parts[0])
    whole = _new(first, {name: held.pop(name) for name in [*first.model_fields, *held] if name in held})
    for part in parts:
        object.__setattr__(whole, "__pydantic_fields_set__", whole.model_fields_set | part.model_fields_set)
        for name in ("__pydantic_private__", "__pydantic_extra__"):
            if getattr(part, name) is not None:
                object.__setattr__(whole, name, getattr(part, name))
    return whole


def environments(parts: Mapping[str, BaseModel]) -> dict[str, BaseModel]:
    """Put the environments of all toolpacks together again, from all their parts."""
    by_toolpack: dict[str, list[BaseModel]] = {}
    for part, environment in parts.items():
        by_toolpack.setdefault(toolpack_of(part), []).append(environment)
    return {toolpack: merge(found) for toolpack, found in by_toolpack.items()}


def emptied(environment: BaseModel) -> BaseModel:
    """Get an environment of the same class without anything in it."""
    return _new(type(environment), {})


def _part(environment: BaseModel, group: list[str]) -> BaseModel:
    part = _new(type(environment), {field: environment.__dict__[field] for field in group if field})
    object.__setattr__(part, "__pydantic_fields_set__", {f for f in group if f in environment.model_fields_set})
    if _REST in group:
        object.__setattr__(part, "__pydantic_private__", environment.__pydantic_private__)
        object.__setattr__(part, "__pydantic_extra__", environment.__pydantic_extra__)
    return part


def _new(kind: type[BaseModel], held: dict[str, Any]) -> BaseModel:
    new = object.__new__(kind)
    object.__setattr__(new, "__dict__", held)
    object.__setattr__(new, "__pydantic_fields_set__", set())
    object.__setattr__(new, "__pydantic_private__", None)
    object.__setattr__(new, "__pydantic_extra__", None)
    return new


def _is_divisible(environment: BaseModel, fields: list[str]) -> bool:
    """Whether an environment of this class is no more than its fields, in their order, and pydantic's own state."""
    kind = type(environment)
    slots = [base for base in kind.__mro__ if base is not BaseModel and vars(base).get("__slots__")]
    declared = [name for name in kind.model_fields if name in environment.__dict__]
    return not slots and fields == declared and environment.model_fields_set <= set(fields)


def _has_rest(environment: BaseModel) -> bool:
    return environment.__pydantic_private__ is not None or environment.__pydantic_extra__ is not None


def _unite_sharing(groups: "_Groups", environment: BaseModel) -> bool:
    """Unite fields that share anything that could change; False where something refers to the environment itself."""
    rest = [environment.__pydantic_private__, environment.__pydantic_extra__]
    owners: dict[int, str] = {}
    kept = []  # the values keep the ids taken
    for field, value in [*environment.__dict__.items(), (_REST, rest)]:
        for _, _, found in walk(value):
            if found is environment:
                return False
            if not isinstance(found, _UNCHANGEABLE):
                kept.append(found)
                groups.unite([field, owners.setdefault(id(found), field)])
    return True


class _Groups:
    """Names that are united step by step (union-find)."""

    def __init__(self, names: list[str]) -> None:
        self._root = {name: name for name in names}

    def _find(self, name: str) -> str:
        while self._root[name] != name:
            name = self._root[name]
        return name

    def unite(self, names: list[str]) -> None:
        for name in names[1:]:
            self._root[self._find(name)] = self._find(names[0])

    def all(self) -> list[list[str]]:
        groups: dict[str, list[str]] = {}
        for name in self._root:
            groups.setdefault(self._find(name), []).append(name)
        return list(groups.values())
