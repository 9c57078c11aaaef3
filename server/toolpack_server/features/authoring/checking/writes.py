"""A look at the code of functions: what they write outside of the environment.

All sessions share the variables of a module and the state of the process, and no fork, reset or failed call restores
them. Only what is certain by the code alone is reported. What is hidden is found only by calling the function
(see `shared_state`), or not at all: what a library changes, or a function that is chosen while the program runs.
"""

import ast
import inspect
import sys
from collections.abc import Callable, Iterator
from types import FunctionType, ModuleType
from typing import Any, NamedTuple

from toolpack_server.packs.rebinding import function_tree

CHANGES = {
    *("append", "extend", "insert", "remove", "pop", "clear", "sort", "reverse", "appendleft", "popleft", "rotate"),
    *("update", "setdefault", "popitem", "add", "discard", "intersection_update", "difference_update", "subtract"),
}
ENVIRON, FOLDER = "os.environ", "the working directory"
PROCESS_CALLS = {
    **{f"os.environ.{change}": ENVIRON for change in ("update", "setdefault", "pop", "clear")},
    "os.chdir": FOLDER,
    **{
        call: call
        for call in (
            *("os.putenv", "os.unsetenv", "os.umask", "random.seed", "random.setstate", "numpy.random.seed"),
            *("np.random.seed", "locale.setlocale", "time.tzset", "sys.path.append", "sys.path.insert"),
            *("sys.setrecursionlimit", "signal.signal", "signal.alarm", "socket.setdefaulttimeout"),
        )
    },
}
"""Calls that change the state of the process, with what each of them changes."""
PROCESS_NAMES = (ENVIRON,)
_TARGETS = ast.Name | ast.Subscript | ast.Attribute
CONSTANTS = (str, int, float, bool, bytes, tuple, frozenset, type(None), ModuleType, FunctionType)


class SharedWrite(NamedTuple):
    """Something that a function writes."""

    place: str  # file and line
    name: str  # in the code
    subject: str  # the variable, or the part of the process's state
    of_process: bool  # it belongs to the process, not to a module


def writes(function: Callable[..., Any]) -> list[SharedWrite]:
    """Find what a function writes outside of its arguments, itself or through functions of its module."""
    found: dict[str, SharedWrite] = {}
    pending, seen = [inspect.unwrap(function)], set()
    while pending:
        code = pending.pop()
        if not isinstance(code, FunctionType) or code in seen:
            continue
        seen.add(code)
        tree = function_tree(code)
        if tree is None:
            continue
        look = _Look(code, tree)
        for write in look.writes():
            found.setdefault(write.name, write)
        module = sys.modules.get(code.__module__)
        called = [getattr(module, name, None) for name in look.read - look.local]
        pending += [other for other in called if getattr(other, "__module__", None) == code.__module__]
    return [*found.values()]


class _Look:
    def __init__(self, function: FunctionType, tree: ast.AST) -> None:
        self._function = function
        self._tree = tree
        nodes = [*ast.walk(tree)]
        self._global = {name for node in nodes if isinstance(node, ast.Global) for name in node.names}
        names = [node for node in nodes if isinstance(node, ast.Name)]
        self.local = {node.id for node in names if isinstance(node.ctx, ast.Store | ast.Del)} - self._global
        self.local |= {node.arg for node in nodes if isinstance(node, ast.arg)}
        self.read = {node.id for node in names if isinstance(node.ctx, ast.Load)}

    def writes(self) -> Iterator[SharedWrite]:
        for node in ast.walk(self._tree):
            if isinstance(node, ast.Call):
                yield from self._call(node)
            elif isinstance(node, _TARGETS) and isinstance(node.ctx, ast.Store | ast.Del):
                yield from self._store(node)

    def _call(self, node: ast.Call) -> Iterator[SharedWrite]:
        called = _dotted(node.func)
        if called in PROCESS_CALLS and called.partition(".")[0] not in self.local:
            yield self._write(node, called, PROCESS_CALLS[called])
        elif called == "next" and node.args and isinstance(node.args[0], ast.Name):
            yield from self._shared(node, node.args[0])
        elif isinstance(node.func, ast.Attribute) and node.func.attr in CHANGES:
            yield from self._shared(node, node.func.value)

    def _store(self, node: ast.Name | ast.Subscript | ast.Attribute) -> Iterator[SharedWrite]:
        if isinstance(node, ast.Name):
            if node.id in self._global:
                yield self._write(node, node.id)
        elif _dotted(node.value) in PROCESS_NAMES:
            yield self._write(node, _dotted(node.value), _dotted(node.value))
        else:
            yield from self._shared(node, node.value)

    def _shared(self, node: ast.expr, target: ast.expr) -> Iterator[SharedWrite]:
        """Say so if a changed object is a variable of the module, or belongs to one."""
        while isinstance(target, ast.Subscript | ast.Attribute):
            target = target.value
        if not isinstance(target, ast.Name) or target.id in self.local:
            return
        held = self._held(target.id)
        if held is None or (isinstance(held, CONSTANTS) and not isinstance(held, FunctionType)):
            return
        yield self._write(node, target.id)

    def _held(self, name: str) -> Any:
        """Get what a variable of the module, or of the function around this one, holds."""
        code = self._function.__code__
        if name in code.co_freevars and self._function.__closure__:
            try:
                return self._function.__closure__[code.co_freevars.index(name)].cell_contents
            except ValueError:  # an empty cell
                return None
        return self._function.__globals__.get(name)

    def _write(self, node: ast.expr, name: str, of_process: str = "") -> SharedWrite:
        place = f"{inspect.getsourcefile(self._function)}:{node.lineno}"
        return SharedWrite(place, name, of_process or name, bool(of_process))


def _dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        inner = _dotted(node.value)
        return f"{inner}.{node.attr}" if inner else ""
    return ""
