"""Conversion of a class's public methods into functions, for `Toolpack.from_class`.

The class isn't changed, because each function looks up its method in the instance when it is called. If a method can't
become a function, the error names the method and says how to exclude it.
"""

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import FunctionType
from typing import Any, Self

from toolpack_server.base.errors import RegistrationError
from toolpack_server.features.authoring.classes.signatures import read_loosely
from toolpack_server.functions_runtime import Depends, Function, error_text, function_of
from toolpack_server.packs.registration import located
from toolpack_server.snapshots.classes import annotations_of, is_foreign

Methods = Iterable[str] | Callable[[Any], object]
"""A selection of methods: their names, or a predicate that accepts a method."""


class ClassMethods:
    """The public methods of a class that become functions.

    Args:
        kind: The class.
        field: The name of the environment's field that holds the instance; "" if the toolpack has only one class.

    Attributes:
        all_names: All names that a selection of methods can use: `name` and `field.name` of each attribute.
        offered: The methods that become functions, by name.
    """

    def __init__(self, kind: type, field: str, read_only: Methods, exclude: Methods) -> None:
        self._kind = kind
        self._field = field
        methods = dict(_public_methods(kind))
        self.all_names = {each for name in _vars_of(kind) for each in (name, f"{field}.{name}")}
        if not field:
            for what, selection in (("read_only", read_only), ("exclude", exclude)):
                if not callable(selection):
                    check_names(what, names_of(selection), self.all_names)
        excluded = self._select("exclude", exclude, methods)
        self.offered = {name: method for name, method in methods.items() if name not in excluded}
        self._read_only = self._select("read_only", read_only, self.offered)
        if not self.offered:
            raise RegistrationError(
                f"{kind.__name__} has no public method with a docstring, so the toolpack would have no function: "
                "add docstrings, or exclude fewer methods."
            )

    def _select(self, what: str, selection: Methods, methods: Mapping[str, Any]) -> set[str]:
        """Return the names of the selected methods.

        Args:
            what: The name of the selection for the error: `read_only` or `exclude`.

        Raises:
            RegistrationError: A predicate raised an exception.
        """
        if not callable(selection):
            names = names_of(selection)
            return {name for name in methods if name in names or f"{self._field}.{name}" in names}
        selected = set()
        for name, method in methods.items():
            try:
                if selection(getattr(method, "__func__", method)):
                    selected.add(name)
            except Exception as error:
                raise RegistrationError(
                    f"the predicate {what} fails for {self._kind.__name__}.{name} ({error_text(error)}): "
                    "correct it, or omit the method with exclude."
                ) from error
        return selected

    def functions(self, field: str, clashing: frozenset[str]) -> list[tuple[Function, bool]]:
        """Return the functions. Each comes with True if it is read-only, else False.

        Args:
            field: The name of the environment's field that holds the instance.
            clashing: Names that several classes use for a method. Their functions get the prefix `<field>_`.
        """
        functions = []
        for name, method in self.offered.items():
            with located(getattr(method, "__func__", method)):
                try:
                    function = self._function(name, f"{field}_{name}" if name in clashing else name, field, method)
                except RegistrationError as error:
                    raise RegistrationError(f"{error} Or omit it: exclude=[{name!r}].") from error
                functions.append((function, name in self._read_only))
        return functions

    def _function(self, name: str, function_name: str, field: str, method: Any) -> Function:
        """Create the function for a method. Unless the method is static or a class method, it gets the instance."""
        plain = getattr(method, "__func__", method)
        is_static, is_class_method = isinstance(method, staticmethod), isinstance(method, classmethod)
        docstring = _docstring(self._kind, name)
        signature = read_loosely(plain, function_name, docstring, receiver=not is_static)
        kind = self._kind
        # Both functions look up the method by name at each call, so a subclass or a later patch takes effect.
        if is_static or is_class_method:

            @functools.wraps(plain)
            def run(**arguments: Any) -> Any:
                return getattr(kind, name)(**arguments)

            return function_of(signature, self._set_name(run, name), docstring)
        receiver = next(iter(inspect.signature(plain).parameters))

        @functools.wraps(plain)
        def run_method(**arguments: Any) -> Any:
            return getattr(arguments.pop(receiver), name)(**arguments)

        function = function_of(signature, self._set_name(run_method, name), docstring)
        function.dependencies = {receiver: Depends(field)}
        return function

    def _set_name(self, run: Callable[..., Any], name: str) -> Callable[..., Any]:
        """Set a function's name to the method's name in the class, because a decorator might have changed the name."""
        if run.__name__ != name:
            run.__name__, run.__qualname__ = name, f"{self._kind.__qualname__}.{name}"
        return run


def _vars_of(kind: type) -> dict[str, Any]:
    """Return the attributes of a class and its bases. Bases from the standard library and pydantic are skipped."""
    attributes: dict[str, Any] = {}
    for base in kind.__mro__:
        if not is_foreign(base):
            for name, value in vars(base).items():
                attributes.setdefault(name, value)
    return attributes


def _public_methods(kind: type) -> Iterator[tuple[str, Any]]:
    """Yield the name and the attribute of each public method with a docstring. Inherited methods come last."""
    for name, value in _vars_of(kind).items():
        if not name.startswith("_") and _is_method(kind, value) and _docstring(kind, name):
            yield name, value


def _is_method(kind: type, value: Any) -> bool:
    """Return whether an attribute is a method. A class method that returns an instance counts as a constructor."""
    if isinstance(value, classmethod):
        return not _makes_instances(kind, value)
    if isinstance(value, FunctionType | staticmethod):
        return True
    return callable(value) and hasattr(value, "__wrapped__") and not isinstance(value, type)


def _makes_instances(kind: type, method: Any) -> bool:
    """Return whether a class method is an alternative constructor, according to its return annotation."""
    returned = annotations_of(method.__func__).get("return")
    names = {base.__name__ for base in kind.__mro__[:-1]} | {"Self"}
    return returned is Self or getattr(returned, "__name__", str(returned).strip("'\"")) in names


def _docstring(kind: type, name: str) -> str:
    """Return a method's docstring, or else the docstring that a base class gives it, or ""."""
    for base in kind.__mro__:
        docstring = getattr(vars(base)[name], "__doc__", None) if name in vars(base) else None
        if docstring and not docstring.isspace():
            return inspect.cleandoc(docstring)
    return ""


def names_of(selection: Methods) -> frozenset[str]:
    """Return the names in a selection that isn't a predicate. A single string counts as one name."""
    return frozenset([selection] if isinstance(selection, str) else selection)  # type: ignore[arg-type]


def check_names(what: str, names: frozenset[str], all_names: Iterable[str]) -> None:
    """Raise `RegistrationError` if a selection of methods contains an unknown name."""
    unknown = names - set(all_names)
    if unknown:
        raise RegistrationError(f"{what} names {min(unknown)!r}, which isn't a method: correct the name.")
