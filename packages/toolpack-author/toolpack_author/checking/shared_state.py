"""Detection of changes outside of the environment: variables of modules, and some state of the process.

State is copied and compared before and after a call. Changes of objects that can't be copied or compared (connections,
iterators, state inside of libraries) aren't detected.
"""

import copy
import functools
import gc
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from types import CellType, FunctionType, MemberDescriptorType, ModuleType
from typing import Any, NamedTuple

from pydantic import BaseModel

from toolpack_server.features.authoring.checking.writes import ENVIRON, FOLDER
from toolpack_server.packs.toolpack import Toolpack
from toolpack_server.snapshots.comparison import first_difference
from toolpack_server.snapshots.graph import walk

MAX_OBJECTS = 20_000  # of one variable
_CACHED = ": what it caches"
_NO_STATE = (str, int, float, bool, bytes, type(None))
_SKIPPED = (ModuleType, type, FunctionType, Toolpack, property, classmethod, staticmethod, MemberDescriptorType)


class Variable(NamedTuple):
    """A variable that functions share, and therefore their sessions."""

    shown: str  # name in findings
    subject: str
    identity: int = 0  # to distinguish objects of the same name


class SharedState:
    def __init__(self, functions: Iterable[Any]) -> None:
        self._functions = [function for function in functions if isinstance(function, FunctionType)]
        self._before: dict[Variable, Any] = {}
        for name, value in self._variables():
            self._keep(name, value)
        self._seen = {name for name, _ in self._variables()}

    def changes(self) -> list[Variable]:
        """Return the variables that changed since the last call of this method, and new module variables.

        A new entry of a cache doesn't count, because that is the cache's purpose. A later change of the entry does.
        """
        changed = []
        now = dict(self._variables())
        for name in now.keys() - self._seen:
            self._keep(name, now[name])
            if name in self._before and not name.shown.endswith(_CACHED):
                changed.append(name)
        self._seen |= now.keys()
        for name, before in [*self._before.items()]:
            value = now.get(name)
            if type(value) is not type(before) or first_difference(before, value):
                changed.append(name)
                self._keep(name, value)
        return changed

    def _keep(self, name: Variable, value: Any) -> None:
        self._before.pop(name, None)
        try:
            size = 0 if isinstance(value, _NO_STATE) else sum(1 for _ in islice(walk(value), MAX_OBJECTS))
            copied = copy.deepcopy(value)
            if size < MAX_OBJECTS and not first_difference(copied, value):
                self._before[name] = copied
        except Exception:  # noqa: BLE001 - copying runs code of the value's class
            return

    def _variables(self) -> Iterator[tuple[Variable, Any]]:
        modules = {function.__module__ for function in self._functions}
        for module in sorted(modules & sys.modules.keys()):
            yield from _state_of(vars(sys.modules[module]), module, "", self._functions)
        for function in self._functions:
            cells: tuple[CellType, ...] = function.__closure__ or ()
            for name, cell in zip(function.__code__.co_freevars, cells, strict=True):
                try:
                    value = cell.cell_contents
                except ValueError:
                    continue
                if not isinstance(value, _SKIPPED):
                    yield Variable(f"{function.__qualname__}: {name}", name), value
        yield Variable(ENVIRON, ENVIRON), dict(os.environ)
        yield Variable(FOLDER, FOLDER), _folder()


def _state_of(
    names: dict[str, Any], module: str, owner: str, registered: Sequence[Any] = ()
) -> Iterator[tuple[Variable, Any]]:
    for name, value in [*names.items()]:
        if name.startswith("__") or (owner and (name.startswith(("_abc_", "model_")) or callable(value))):
            continue
        if isinstance(value, type) and value.__module__ == module and not owner:
            kept = getattr(value, "__class_vars__", None) if issubclass(value, BaseModel) else None
            held = {key: item for key, item in vars(value).items() if kept is None or key in kept}
            yield from _state_of(held, module, name)
        elif isinstance(value, FunctionType) and value.__module__ == module:
            yield from _state_of(vars(value), module, name)
            defaults = [each for each in value.__defaults__ or () if not isinstance(each, (*_SKIPPED, *_NO_STATE))]
            if defaults and not owner and value not in registered:
                yield Variable(f"{module}.{name}: defaults", name), defaults
        elif isinstance(value, functools._lru_cache_wrapper):  # noqa: SLF001 - the type has no public name
            for result in _cached(value):
                shown = f"{module}.{owner and f'{owner}.'}{name}{_CACHED}"
                yield Variable(shown, owner or name, id(result)), result
            continue
        if not isinstance(value, _SKIPPED):
            yield Variable(f"{module}.{owner and f'{owner}.'}{name}", owner or name), value


def _cached(function: Any) -> list[Any]:
    """Return the mutable results in a `functools.cache` or `lru_cache`.

    The garbage collector lists them as referents: in the dictionary of an unbounded cache, and beside the dictionary of
    a bounded one.
    """
    if not function.cache_info().currsize:
        return []
    held = [each for each in gc.get_referents(function) if each is not vars(function)]
    if function.cache_parameters()["maxsize"] is None:
        held = [value for cache in held if isinstance(cache, dict) for value in cache.values()]
    mutable = [each for each in held if isinstance(each, dict | list | set | bytearray)]
    return [each for each in mutable if not (isinstance(each, dict) and _is_of_links(each))]


def _is_of_links(cache: dict[Any, Any]) -> bool:
    return any(type(value).__name__ == "_lru_list_elem" for value in cache.values())


def _folder() -> str:
    try:
        return os.getcwd()  # noqa: PTH109 - only compared
    except OSError:
        return ""
