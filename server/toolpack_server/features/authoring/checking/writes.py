"""Static search for writes to shared state: module variables and process state that a function changes.

All sessions share this state, and no fork, reset or failed call restores it. This search reports only writes that are
certain from the function's own code. Other writes, for example in libraries, can only be found by calling the function;
`shared_state` of toolpack-author does so.
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
"""Calls that change process state. Each call maps to the name of the state that it changes."""
PROCESS_NAMES = (ENVIRON,)
_TARGETS = ast.Name | ast.Subscript | ast.Attribute
CONSTANTS = (str, int, float, bool, bytes, tuple, frozenset, type(None), ModuleType, FunctionType)


class SharedWrite(NamedTuple):
    """A place where code changes state that all sessions share: a module variable or process state."""

    location: str  # file and line
    name: str  # the expression in the code, such as `os.environ.pop`
    subject: str  # the module variable, or the process state, such as `os.environ`
    of_process: bool  # whether `subject` is process state; otherwise it is a module variable


def writes(function: Callable[..., Any]) -> list[SharedWrite]:
    """Return the writes to shared state in a function, and in functions of the same module that the function uses."""
    shared: dict[str, SharedWrite] = {}
    pending, seen = [inspect.unwrap(function)], set()
    while pending:
        code = pending.pop()
        if not isinstance(code, FunctionType) or code in seen:
            continue
        seen.add(code)
        tree = function_tree(code)
        if tree is None:
            continue
        search = _WriteSearch(code, tree)
        for write in search.writes():
            shared.setdefault(write.name, write)
        module = sys.modules.get(code.__module__)
        called = [getattr(module, name, None) for name in search.read - search.local]
        pending += [other for other in called if getattr(other, "__module__", None) == code.__module__]
    return [*shared.values()]


class _WriteSearch:
    """Finds the writes to shared state in one function.

    Attributes:
        local: The names of the function's local variables and parameters.
        read: The names of all variables that the function reads.
    """

    def __init__(self, function: FunctionType, tree: ast.AST) -> None:
        self._function = function
        self._tree = tree
        nodes = [*ast.walk(tree)]
        # Names that the function declares with `global`: an assignment to them changes the module variable.
        self._global = {name for node in nodes if isinstance(node, ast.Global) for name in node.names}
        names = [node for node in nodes if isinstance(node, ast.Name)]
        self.local = {node.id for node in names if isinstance(node.ctx, ast.Store | ast.Del)} - self._global
        self.local |= {node.arg for node in nodes if isinstance(node, ast.arg)}
        self.read = {node.id for node in names if isinstance(node.ctx, ast.Load)}

    def writes(self) -> Iterator[SharedWrite]:
        """Yield the writes in the function's code, including functions defined inside it."""
        for node in ast.walk(self._tree):
            if isinstance(node, ast.Call):
                yield from self._call(node)
            elif isinstance(node, _TARGETS) and isinstance(node.ctx, ast.Store | ast.Del):
                yield from self._store(node)

    def _call(self, node: ast.Call) -> Iterator[SharedWrite]:
        """Yield a write if a call changes process state, or a shared container, or advances a shared iterator."""
        called = _dotted(node.func)
        if called in PROCESS_CALLS and called.partition(".")[0] not in self.local:
            yield self._write(node, called, PROCESS_CALLS[called])
        elif called == "next" and node.args and isinstance(node.args[0], ast.Name):
            yield from self._shared(node, node.args[0])
        elif isinstance(node.func, ast.Attribute) and node.func.attr in CHANGES:
            yield from self._shared(node, node.func.value)

    def _store(self, node: ast.Name | ast.Subscript | ast.Attribute) -> Iterator[SharedWrite]:
        """Yield a write if an assignment or a `del` changes a module variable or process state."""
        if isinstance(node, ast.Name):
            if node.id in self._global:
                yield self._write(node, node.id)
        elif _dotted(node.value) in PROCESS_NAMES:
            yield self._write(node, _dotted(node.value), _dotted(node.value))
        else:
            yield from self._shared(node, node.value)

    def _shared(self, node: ast.expr, target: ast.expr) -> Iterator[SharedWrite]:
        """Yield a write if the changed object `target` is a module variable, or is reached through one."""
        while isinstance(target, ast.Subscript | ast.Attribute):
            target = target.value
        if not isinstance(target, ast.Name) or target.id in self.local:
            return
        value = self._value(target.id)
        # Constants can't be changed, and modules are ignored. But a function's attributes are shared state.
        if value is None or (isinstance(value, CONSTANTS) and not isinstance(value, FunctionType)):
            return
        yield self._write(node, target.id)

    def _value(self, name: str) -> Any:
        """Return the value of a variable in the enclosing function or the module, or None if it isn't assigned."""
        code = self._function.__code__
        if name in code.co_freevars and self._function.__closure__:
            try:
                return self._function.__closure__[code.co_freevars.index(name)].cell_contents
            except ValueError:  # the enclosing function hasn't assigned the variable yet
                return None
        return self._function.__globals__.get(name)

    def _write(self, node: ast.expr, name: str, of_process: str = "") -> SharedWrite:
        location = f"{inspect.getsourcefile(self._function)}:{node.lineno}"
        return SharedWrite(location, name, of_process or name, bool(of_process))


def _dotted(node: ast.expr) -> str:
    """Return an expression such as `os.environ` as text. Return "" if it isn't built from names and attributes only."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        inner = _dotted(node.value)
        return f"{inner}.{node.attr}" if inner else ""
    return ""
