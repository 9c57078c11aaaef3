"""Search of a toolpack's modules for code that could tell a lazy instance from an ordinary instance.

A lazy instance loads its data when it is first accessed. Until then it differs from an ordinary instance of a class `C`
in two ways. `type(x) is C` is false. And pydantic compares types in a union, so it would serialize the instance as a
base class of `C` that the union lists. If a toolpack has such code, its environment isn't loaded lazily.
"""

import ast
import builtins
import inspect
import sys
from collections.abc import Iterator
from functools import lru_cache
from types import ModuleType

from toolpack_server.packs.toolpack import Toolpack
from toolpack_server.snapshots.classes import ClassTable, is_foreign

_BUILTINS = frozenset(vars(builtins))


@lru_cache(maxsize=256)
def lazy_obstacle(pack: Toolpack) -> str | None:
    """Return the file, the line and a description of such code, or None if the toolpack's modules contain no such code.

    A toolpack's modules are the modules that define its functions or the classes that its environment contains.
    """
    table = ClassTable([pack.environment_class], pack.state_types)
    names = {cls.__module__ for cls in table.layouts if not is_foreign(cls)}
    names |= {getattr(inspect.unwrap(entry.function.run), "__module__", "") for entry in pack.functions.values()}
    bases = {base for cls in table.layouts for base in cls.__mro__[1:-1] if not is_foreign(base)}
    for name in sorted(names):
        module = sys.modules.get(name)
        for line, what in () if module is None else _obstacles(module, bases):
            return f"{inspect.getsourcefile(module)}:{line}: {what}"  # type: ignore[arg-type] # the module has a source
    return None


def _obstacles(module: ModuleType, bases: set[type]) -> Iterator[tuple[int, str]]:
    """Yield the lines of a module that compare types, or that name a base class in a union."""
    try:
        tree = ast.parse(inspect.getsource(module))
    except (OSError, TypeError, SyntaxError):  # the module has no Python source
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare) and _compares_types(node):
            yield node.lineno, "it compares `type(…)` by identity with a class"
        elif _is_union(node):
            named = [vars(module).get(inner.id) for inner in ast.walk(node) if isinstance(inner, ast.Name)]
            base = next((cls.__name__ for cls in named if isinstance(cls, type) and cls in bases), None)
            if base is not None:
                yield node.lineno, f"it has a union with `{base}`, a base class of others"  # type: ignore[attr-defined]


def _compares_types(node: ast.Compare) -> bool:
    """Return whether a comparison is `type(x) is C`, and `C` isn't a builtin type."""
    operands = [node.left, *node.comparators]
    return (
        any(isinstance(operator, ast.Is | ast.IsNot) for operator in node.ops)
        and any(map(_is_type_call, operands))
        and not any(map(_is_builtin, operands))
    )


def _is_type_call(node: ast.expr) -> bool:
    """Return whether a node is a call of `type`."""
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "type"


def _is_builtin(node: ast.expr) -> bool:
    """Return whether an operand is a builtin type, or `type(None)`."""
    if isinstance(node, ast.Call):
        return _is_type_call(node) and all(isinstance(argument, ast.Constant) for argument in node.args)
    return isinstance(node, ast.Name) and node.id in _BUILTINS


def _is_union(node: ast.AST) -> bool:
    """Return whether a node is a union of types: `A | B`, or `Union[A, B]`."""
    if isinstance(node, ast.BinOp):
        return isinstance(node.op, ast.BitOr)
    return isinstance(node, ast.Subscript) and ast.unparse(node.value).rpartition(".")[2] == "Union"
