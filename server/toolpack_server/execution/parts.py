"""Parts of an environment: groups of fields that are stored separately, so that a call loads only the parts it uses.

A call's *footprint*, the set of fields that its function depends on, is known before the call runs. So an environment
can be divided when it is created. Two fields stay together if they share a mutable object, or if one function uses both
fields. So no function uses two parts, and no function can make one part refer to another.

An environment isn't divided if a dependency is a callable or isn't a field, if an object refers back to the
environment, or if its class keeps state outside its fields. A part is an environment of the same class with only some
of the fields.
"""

import datetime as dt
import decimal
import enum
import uuid
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

from pydantic import BaseModel

from toolpack_server.packs.toolpack import Toolpack
from toolpack_server.snapshots.graph import holders
from toolpack_server.volumes.volume import is_piece, volume_of

SEPARATOR = "/"

# Immutable types. Two parts can share objects of these types.
_IMMUTABLE = (
    str, int, float, complex, bytes, type(None), enum.Enum, dt.date, dt.time, dt.timedelta, dt.tzinfo,
    decimal.Decimal, uuid.UUID, type,
)  # fmt: skip

# Stands, among the names of fields, for a model's private attributes and extra fields. No function depends on these.
_REST = ""


def toolpack_of(part: str) -> str:
    return part.partition(SEPARATOR)[0]


def holds(part: str, field: str) -> bool:
    """Return whether a part contains a field. A part named like its toolpack contains all fields."""
    _, divided, fields = part.partition(SEPARATOR)
    return not divided or field in fields.split(",")


def footprint(function: Any) -> frozenset[str] | None:
    """Return the attributes of the environment that a function uses, or None if they are unknown."""
    names = {getattr(dependency, "env_dependency", None) for dependency in function.dependencies.values()}
    return frozenset(names) if all(isinstance(name, str) for name in names) else None  # type: ignore[arg-type]


def divide(toolpack: Toolpack, environment: BaseModel, volumes: frozenset[str] = frozenset()) -> dict[str, BaseModel]:
    """Divide an initial environment into parts. Return it as one part if it can't be divided; see the module docstring.

    Args:
        volumes: The names of the environment's volumes, which the caller has taken out of it.
    """
    footprints = [footprint(function.function) for function in toolpack.functions.values()]
    if volumes:
        footprints = [names and names - volumes for names in footprints]
    fields = list(environment.__dict__)
    if None in footprints or not _is_divisible(environment, fields):
        return {toolpack.name: environment}
    groups = _Groups([*fields, _REST])
    for names in footprints:
        if not names <= environment.__dict__.keys():  # type: ignore[operator]
            return {toolpack.name: environment}
        groups.unite(sorted(names))  # type: ignore[arg-type]
    # The fields that no function uses form one group with the rest.
    reachable = {field for names in footprints for field in names}  # type: ignore[union-attr]
    groups.unite([_REST, *(field for field in fields if field not in reachable)])
    # Skip the slow search for shared objects if there is only one group, because the search can only unite groups.
    if len(_nonempty(groups, environment)) <= 1 or not _unite_sharing(groups, environment):
        return {toolpack.name: environment}
    nonempty = _nonempty(groups, environment)
    if len(nonempty) <= 1:
        return {toolpack.name: environment}
    return {
        f"{toolpack.name}{SEPARATOR}{','.join(field for field in group if field)}": _make_part(environment, group)
        for group in nonempty
    }


def merge(parts: Iterable[BaseModel]) -> BaseModel:
    """Combine the parts of one environment. Return a single part unchanged."""
    parts = list(parts)
    if len(parts) == 1:
        return parts[0]
    values = {name: value for part in parts for name, value in part.__dict__.items()}
    # An empty part can be an instance of a base class of the environment's class, so use the most derived class.
    kind: type[BaseModel] = max(map(type, parts), key=lambda cls: len(cls.__mro__))
    whole = _new(kind, {name: values.pop(name) for name in [*kind.model_fields, *values] if name in values})
    for part in parts:
        object.__setattr__(whole, "__pydantic_fields_set__", whole.model_fields_set | part.model_fields_set)
        for name in ("__pydantic_private__", "__pydantic_extra__"):
            if getattr(part, name) is not None:
                object.__setattr__(whole, name, getattr(part, name))
    return whole


def environments(parts: Mapping[str, BaseModel]) -> dict[str, BaseModel]:
    """Return the environment of each toolpack, combined from its parts."""
    by_toolpack: dict[str, list[BaseModel]] = {}
    for part, environment in parts.items():
        by_toolpack.setdefault(toolpack_of(part), []).append(environment)
    return {toolpack: merge(pieces) for toolpack, pieces in by_toolpack.items()}


def emptied(kind: type[BaseModel]) -> BaseModel:
    """Return an environment without any field."""
    return _new(kind, {})


@lru_cache(maxsize=1024)  # in most calls and sessions, the parts have the same names
def parts_of(parts: tuple[str, ...], toolpack: str) -> tuple[str, ...]:
    """Return the parts of a toolpack's environment among a session's parts, sorted, without pieces of volumes."""
    return tuple(sorted(part for part in parts if toolpack_of(part) == toolpack and not is_piece(part)))


@lru_cache(maxsize=1024)
def without_volumes(parts: tuple[str, ...], toolpack: str, footprint: frozenset[str]) -> frozenset[str]:
    """Return a footprint without the names of the toolpack's volumes, because volumes are stored outside the parts."""
    return footprint - {
        volume_of(part).partition(SEPARATOR)[2] for part in parts if toolpack_of(part) == toolpack and is_piece(part)
    }


@lru_cache(maxsize=1024)
def parts_in_use(parts: tuple[str, ...], toolpack: str, footprint: frozenset[str] | None) -> tuple[str, ...]:
    """Return the parts of a toolpack's environment that a call with this footprint most probably uses.

    Return all parts of the toolpack if the footprint is unknown, or if its fields aren't in a single part.

    Args:
        parts: The names of all parts of the session.
    """
    candidates = parts_of(parts, toolpack)
    if footprint is not None and len(parts) > len(candidates):
        rest = without_volumes(parts, toolpack, footprint)
        if footprint and not rest:
            return ()
        footprint = rest
    if footprint is not None and len(candidates) > 1:
        holding = tuple(part for part in candidates if any(holds(part, name) for name in footprint))
        if len(holding) == 1:
            return holding
    return candidates


def _make_part(environment: BaseModel, group: list[str]) -> BaseModel:
    """Return an environment of the same class with only these fields. It shares their values with the original."""
    part = _new(type(environment), {field: environment.__dict__[field] for field in group if field})
    object.__setattr__(part, "__pydantic_fields_set__", {f for f in group if f in environment.model_fields_set})
    if _REST in group:
        object.__setattr__(part, "__pydantic_private__", environment.__pydantic_private__)
        object.__setattr__(part, "__pydantic_extra__", environment.__pydantic_extra__)
    return part


def _new(kind: type[BaseModel], values: dict[str, Any]) -> BaseModel:
    """Return an instance with these values, without running the class's own code, such as validators."""
    new = object.__new__(kind)
    object.__setattr__(new, "__dict__", values)
    object.__setattr__(new, "__pydantic_fields_set__", set())
    object.__setattr__(new, "__pydantic_private__", None)
    object.__setattr__(new, "__pydantic_extra__", None)
    return new


def _is_divisible(environment: BaseModel, fields: list[str]) -> bool:
    """Return whether an environment consists only of its fields, in declared order, and of pydantic's own state."""
    kind = type(environment)
    slots = [base for base in kind.__mro__ if base is not BaseModel and vars(base).get("__slots__")]
    declared = [name for name in kind.model_fields if name in environment.__dict__]
    return not slots and fields == declared and environment.model_fields_set <= set(fields)


def _nonempty(groups: "_Groups", environment: BaseModel) -> list[list[str]]:
    """Return the groups that contain at least one value."""
    return [group for group in groups.all() if group != [_REST] or _has_rest(environment)]


def _has_rest(environment: BaseModel) -> bool:
    return environment.__pydantic_private__ is not None or environment.__pydantic_extra__ is not None


def _unite_sharing(groups: "_Groups", environment: BaseModel) -> bool:
    """Unite fields that share a mutable object. Return False if an object refers to the environment itself."""
    rest = [environment.__pydantic_private__, environment.__pydantic_extra__]
    owners: dict[int, str] = {}
    seen = []  # keeps the objects alive, so that Python doesn't reuse their ids
    for field, value in [*environment.__dict__.items(), (_REST, rest)]:
        for holder in holders(value):
            if holder is environment:
                return False
            if not isinstance(holder, _IMMUTABLE):
                seen.append(holder)
                owner = owners.setdefault(id(holder), field)
                if owner != field:
                    groups.unite([field, owner])
    return True


class _Groups:
    """Disjoint sets of names (union-find)."""

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
