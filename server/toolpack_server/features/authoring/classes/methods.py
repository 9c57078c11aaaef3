"""The public methods of a class as functions.

Nothing of this touches the class, and a function looks its method up in the instance when it is called. A
problem's text names the method, and the argument of `from_class` that omits it.
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
"""Names of methods, or a predicate of a method."""


class ClassMethods:
    """The public methods of a class."""

    def __init__(self, kind: type, field: str, read_only: Methods, exclude: Methods) -> None:
        self._kind = kind
        self._field = field
        methods = dict(_public_methods(kind))
        self.known = {known for name in _vars_of(kind) for known in (name, f"{field}.{name}")}
        if not field:
            for what, chosen in (("read_only", read_only), ("exclude", exclude)):
                if not callable(chosen):
                    check_names(what, names_of(chosen), self.known)
        excluded = self._chosen("exclude", exclude, methods)
        self.offered = {name: method for name, method in methods.items() if name not in excluded}
        self._read_only = self._chosen("read_only", read_only, self.offered)
        if not self.offered:
            raise RegistrationError(f"{kind.__name__} has no public method with a docstring: nothing can be offered.")

    def _chosen(self, what: str, chosen: Methods, methods: Mapping[str, Any]) -> set[str]:
        if not callable(chosen):
            names = names_of(chosen)
            return {name for name in methods if name in names or f"{self._field}.{name}" in names}
        found = set()
        for name, method in methods.items():
            try:
                if chosen(getattr(method, "__func__", method)):
                    found.add(name)
            except Exception as error:
                raise RegistrationError(
                    f"the predicate {what} fails for {self._kind.__name__}.{name} ({error_text(error)}): "
                    "correct it, or omit the method with exclude."
                ) from error
        return found

    def functions(self, field: str, clashing: frozenset[str]) -> list[tuple[Function, bool]]:
        """Make the functions; names that clash get the field's name in front."""
        found = []
        for name, method in self.offered.items():
            with located(getattr(method, "__func__", method)):
                try:
                    made = self._function(name, f"{field}_{name}" if name in clashing else name, field, method)
                except RegistrationError as error:
                    raise RegistrationError(f"{error} Or omit it: exclude=[{name!r}].") from error
                found.append((made, name in self._read_only))
        return found

    def _function(self, name: str, called: str, field: str, method: Any) -> Function:
        plain = getattr(method, "__func__", method)
        static, of_class = isinstance(method, staticmethod), isinstance(method, classmethod)
        docstring = _docstring(self._kind, name)
        signature = read_loosely(plain, called, docstring, receiver=not static)
        kind = self._kind
        if static or of_class:

            @functools.wraps(plain)
            def run(**arguments: Any) -> Any:
                return getattr(kind, name)(**arguments)

            return function_of(signature, self._named(run, name), docstring)
        receiver = next(iter(inspect.signature(plain).parameters))

        @functools.wraps(plain)
        def run_method(**arguments: Any) -> Any:
            return getattr(arguments.pop(receiver), name)(**arguments)

        made = function_of(signature, self._named(run_method, name), docstring)
        made.dependencies = {receiver: Depends(field)}
        return made

    def _named(self, run: Callable[..., Any], name: str) -> Callable[..., Any]:
        """Call it as its class does: one that a decorator has made may have the decorator's name for it."""
        if run.__name__ != name:
            run.__name__, run.__qualname__ = name, f"{self._kind.__qualname__}.{name}"
        return run


def _vars_of(kind: type) -> dict[str, Any]:
    """Get the attributes that a class and its bases define, those of the standard library and of pydantic excepted."""
    found: dict[str, Any] = {}
    for base in kind.__mro__:
        if not is_foreign(base):
            for name, value in vars(base).items():
                found.setdefault(name, value)
    return found


def _public_methods(kind: type) -> Iterator[tuple[str, Any]]:
    """Yield the public methods with a docstring, as the class holds them; its own come before those of its bases."""
    for name, value in _vars_of(kind).items():
        if not name.startswith("_") and _is_method(kind, value) and _docstring(kind, name):
            yield name, value


def _is_method(kind: type, value: Any) -> bool:
    if isinstance(value, classmethod):
        return not _makes_instances(kind, value)
    if isinstance(value, FunctionType | staticmethod):
        return True
    return callable(value) and hasattr(value, "__wrapped__") and not isinstance(value, type)


def _makes_instances(kind: type, method: Any) -> bool:
    """Return whether a class method is another constructor, by its return annotation."""
    returned = annotations_of(method.__func__).get("return")
    names = {base.__name__ for base in kind.__mro__[:-1]} | {"Self"}
    return returned is Self or getattr(returned, "__name__", str(returned).strip("'\"")) in names


def _docstring(kind: type, name: str) -> str:
    for base in kind.__mro__:
        docstring = getattr(vars(base)[name], "__doc__", None) if name in vars(base) else None
        if docstring and not docstring.isspace():
            return inspect.cleandoc(docstring)
    return ""


def names_of(chosen: Methods) -> frozenset[str]:
    return frozenset([chosen] if isinstance(chosen, str) else chosen)  # type: ignore[arg-type]


def check_names(what: str, names: frozenset[str], known: Iterable[str]) -> None:
    unknown = names - set(known)
    if unknown:
        raise RegistrationError(f"{what} names {min(unknown)!r}, which isn't a method: correct the name.")
