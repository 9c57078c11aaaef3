"""Static check for functions that assign to a dependency of an immutable type.

Such an assignment only rebinds a local variable of the function, so the environment doesn't change.
"""

import ast
import datetime as dt
import decimal
import enum
import fractions
import inspect
import numbers
import pathlib
import textwrap
import types
import uuid
from collections.abc import Callable, Iterable, Iterator
from types import FunctionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from typing_extensions import TypeAliasType

IMMUTABLE = (
    *(str, bytes, tuple, frozenset, range, types.NoneType, enum.Enum, uuid.UUID, pathlib.PurePath),
    *(numbers.Number, decimal.Decimal, fractions.Fraction),
    *(dt.date, dt.time, dt.timedelta, dt.tzinfo),
)
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def is_immutable(annotation: Any) -> bool:
    """Return whether an annotation shows that values of the type can't be changed in place."""
    if isinstance(annotation, TypeAliasType | getattr(types, "TypeAliasType", TypeAliasType)):
        return is_immutable(annotation.__value__)
    if annotation is None or get_origin(annotation) is Literal:
        return True
    if get_origin(annotation) is Annotated:
        return is_immutable(get_args(annotation)[0])
    if get_origin(annotation) in {Union, types.UnionType}:
        return all(map(is_immutable, get_args(annotation)))
    # The class behind a `NewType`, or behind a generic type such as `tuple[int]`.
    kind = getattr(annotation, "__supertype__", get_origin(annotation) or annotation)
    if kind is not annotation and not isinstance(kind, type):
        return is_immutable(kind)
    if not isinstance(kind, type):
        return False
    if issubclass(kind, BaseModel):
        return bool(kind.model_config.get("frozen"))
    dataclass = getattr(kind, "__dataclass_params__", None)
    return issubclass(kind, IMMUTABLE) or bool(dataclass is not None and dataclass.frozen)


def find_assignment(function: Callable[..., Any], names: Iterable[str]) -> tuple[str, int] | None:
    """Return the parameter and line of the first assignment to one of these parameters, or None without assignments."""
    tree, parameters = function_tree(function), frozenset(names)
    return None if tree is None else next(_assignments(tree.body, parameters, parameters), None)


def function_tree(function: Any) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
    """Return the syntax tree of a function with the line numbers of its file, or None if it has no source."""
    if not isinstance(function, FunctionType):
        return None
    try:
        lines, first = inspect.getsourcelines(function)
        tree = ast.parse(textwrap.dedent("".join(lines)))
    except (OSError, TypeError, SyntaxError):
        return None
    ast.increment_lineno(tree, max(first - 1, 0))
    return next((node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)), None)


def _assignments(nodes: Iterable[ast.AST], visible: frozenset[str], local: frozenset[str]) -> Iterator[tuple[str, int]]:
    """Yield assignments to the function's parameters in one scope, and in the scopes inside it.

    Args:
        visible: The parameters that the scope can read.
        local: The parameters that an assignment in this scope rebinds.
    """
    for node in nodes:
        if isinstance(node, ast.Lambda) or (isinstance(node, ast.AnnAssign) and node.value is None):
            continue  # a lambda assigns only to its own variables, and an annotation without a value assigns nothing
        for name in local.intersection(_assigned_names(node)):
            yield name, node.lineno  # type: ignore[attr-defined] # every node that binds a name has a line
        if isinstance(node, _SCOPES):
            yield from _assignments(node.decorator_list, visible, local)
            yield from _assignments(node.body, *_inner_names(node, visible))
        elif isinstance(node, _COMPREHENSIONS):  # its targets are its own variables, except the targets of `:=`
            walrus = (part for part in ast.walk(node) if isinstance(part, ast.NamedExpr))
            yield from _assignments((part.target for part in walrus), visible, local)
        else:
            yield from _assignments(ast.iter_child_nodes(node), visible, local)


def _inner_names(scope: Any, visible: frozenset[str]) -> tuple[frozenset[str], frozenset[str]]:
    """Return the parameters that an inner scope can read, and the parameters that it declares `nonlocal`."""
    nodes = [*_nodes_of_scope(scope.body)]
    declared = visible.intersection(name for node in nodes if isinstance(node, ast.Nonlocal) for name in node.names)
    if isinstance(scope, ast.ClassDef):  # the class's methods don't see the class's variables
        return visible, declared
    arguments = {node.arg for node in ast.walk(scope.args) if isinstance(node, ast.arg)}
    assigned = {name for node in nodes for name in _assigned_names(node)}
    return visible - arguments - (assigned - declared), declared


def _nodes_of_scope(nodes: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """Yield these nodes and the nodes inside them, but no nodes of inner scopes."""
    for node in nodes:
        yield node
        if not isinstance(node, (*_SCOPES, *_COMPREHENSIONS, ast.Lambda)):
            yield from _nodes_of_scope(ast.iter_child_nodes(node))


def _assigned_names(node: ast.AST) -> list[str]:
    """Return the names that a node itself, without its children, assigns to or deletes."""
    match node:
        case ast.Name(id=name, ctx=ast.Store() | ast.Del()):
            return [name]
        case (
            ast.FunctionDef(name=str(name))
            | ast.AsyncFunctionDef(name=str(name))
            | ast.ClassDef(name=str(name))
            | ast.ExceptHandler(name=str(name))
            | ast.MatchAs(name=str(name))
            | ast.MatchStar(name=str(name))
            | ast.MatchMapping(rest=str(name))
        ):
            return [name]
        case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
            return [alias.asname or alias.name.partition(".")[0] for alias in aliases]
    return []
