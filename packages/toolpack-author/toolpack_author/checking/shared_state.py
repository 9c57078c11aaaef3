"""Detection of changes outside the environment, such as changes to module variables and to the process's state.

All sessions share this state, and no reset restores it, so a function that changes it breaks isolation. The state is
copied before a call and compared with the copy afterwards. Changes to objects that can't be copied or compared, such as
connections, iterators and state inside libraries, aren't detected.
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

MAX_OBJECTS = 20_000  # a variable with more objects isn't compared
_CACHE_SUFFIX = ": what it caches"
_NO_STATE = (str, int, float, bool, bytes, type(None))
_SKIPPED = (ModuleType, type, FunctionType, Toolpack, property, classmethod, staticmethod, MemberDescriptorType)


class Variable(NamedTuple):
    """A variable outside the environment, which all sessions share."""

    shown: str  # name in findings
    subject: str  # name that identifies the variable, to merge findings
    identity: int = 0  # distinguishes objects with the same name


class SharedState:
    """Copies of the variables that functions use. `Trial` compares them after each call, to find changes."""

    def __init__(self, functions: Iterable[Any]) -> None:
        self._functions = [function for function in functions if isinstance(function, FunctionType)]
        self._before: dict[Variable, Any] = {}
        for name, value in self._variables():
            self._store_copy(name, value)
        self._seen = {name for name, _ in self._variables()}

    def changes(self) -> list[Variable]:
        """Return the variables that changed since the last call of this method, and new variables.

        A new entry in a cache doesn't count as a change, because caches exist to gain entries. A later change to this
        entry counts.
        """
        changed = []
        now = dict(self._variables())
        for name in now.keys() - self._seen:
            self._store_copy(name, now[name])
            if name in self._before and not name.shown.endswith(_CACHE_SUFFIX):
                changed.append(name)
        self._seen |= now.keys()
        for name, before in [*self._before.items()]:
            value = now.get(name)
            if type(value) is not type(before) or first_difference(before, value):
                changed.append(name)
                self._store_copy(name, value)
        return changed

    def _store_copy(self, name: Variable, value: Any) -> None:
        """Store a copy for the next comparison, unless the value is too large or can't be copied exactly."""
        self._before.pop(name, None)
        try:
            size = 0 if isinstance(value, _NO_STATE) else sum(1 for _ in islice(walk(value), MAX_OBJECTS))
            copied = copy.deepcopy(value)
            if size < MAX_OBJECTS and not first_difference(copied, value):
                self._before[name] = copied
        except Exception:  # noqa: BLE001 - copying runs code of the value's class
            return

    def _variables(self) -> Iterator[tuple[Variable, Any]]:
        """Yield the variables in the functions' modules and closures, and those of the process."""
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
    """Yield the variables of a module or class, including the attributes of its classes and functions.

    Args:
        names: The values of the module, class or function, by name.
        owner: Name of the class or function. "" for a module.
        registered: Functions of toolpacks, whose default values aren't variables.
    """
    for name, value in [*names.items()]:
        if name.startswith("__") or (owner and (name.startswith(("_abc_", "model_")) or callable(value))):
            continue
        if isinstance(value, type) and value.__module__ == module and not owner:
            class_variables = getattr(value, "__class_vars__", None) if issubclass(value, BaseModel) else None
            attributes = {
                key: item for key, item in vars(value).items() if class_variables is None or key in class_variables
            }
            yield from _state_of(attributes, module, name)
        elif isinstance(value, FunctionType) and value.__module__ == module:
            yield from _state_of(vars(value), module, name)
            defaults = [each for each in value.__defaults__ or () if not isinstance(each, (*_SKIPPED, *_NO_STATE))]
            if defaults and not owner and value not in registered:
                yield Variable(f"{module}.{name}: defaults", name), defaults
        elif isinstance(value, functools._lru_cache_wrapper):  # noqa: SLF001 - the type has no public name
            for result in _cached_results(value):
                shown = f"{module}.{owner and f'{owner}.'}{name}{_CACHE_SUFFIX}"
                yield Variable(shown, owner or name, id(result)), result
            continue
        if not isinstance(value, _SKIPPED):
            yield Variable(f"{module}.{owner and f'{owner}.'}{name}", owner or name), value


def _cached_results(function: Any) -> list[Any]:
    """Return the mutable results in a `functools.cache` or `lru_cache`.

    A cache has no public access to its results, but the garbage collector lists them as its referents. In an
    unbounded cache, the results are in its dictionary. In a bounded cache, they are beside the dictionary.
    """
    if not function.cache_info().currsize:
        return []
    attributes = [each for each in gc.get_referents(function) if each is not vars(function)]
    if function.cache_parameters()["maxsize"] is None:
        attributes = [value for cache in attributes if isinstance(cache, dict) for value in cache.values()]
    mutable = [each for each in attributes if isinstance(each, dict | list | set | bytearray)]
    return [each for each in mutable if not (isinstance(each, dict) and _is_linked_list(each))]


def _is_linked_list(cache: dict[Any, Any]) -> bool:
    """Return whether a dictionary belongs to a bounded cache, where the values are links instead of results."""
    return any(type(value).__name__ == "_lru_list_elem" for value in cache.values())


def _folder() -> str:
    """Return the current folder, or "" if it was deleted."""
    try:
        return os.getcwd()  # noqa: PTH109 - only compared
    except OSError:
        return ""
