"""Result types with the fields that features add to them, for the OpenRPC document and the client.

An extended type keeps its name. If features add nothing to a type or to the types of its fields, the type stays the
same object.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from functools import reduce
from inspect import cleandoc
from operator import or_
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from typing_extensions import TypedDict, get_type_hints, is_typeddict  # pydantic needs this one before Python 3.12


class ExtendedTypes:
    """Result types of a server with certain features.

    Args:
        additions: For each feature, a mapping from a `TypedDict` to a `TypedDict` with further fields.
    """

    def __init__(self, additions: Iterable[Mapping[type, type]]) -> None:
        self._additions: defaultdict[type, list[type]] = defaultdict(list)
        for addition in additions:
            for kind, fields in addition.items():
                self._additions[kind].append(fields)
        self._extended_types: dict[type, type] = {}

    def of(self, kind: Any) -> Any:
        """Return a type with all additions, including additions to the types that it contains."""
        if is_typeddict(kind):
            if kind not in self._extended_types:
                self._extended_types[kind] = self._extended(kind)
            return self._extended_types[kind]
        origin, inner = get_origin(kind), get_args(kind)
        if origin is None or origin is Literal:
            return kind
        if origin is Annotated:
            return Annotated[(self.of(inner[0]), *inner[1:])]
        extended = tuple(map(self.of, inner))
        if extended == inner:
            return kind
        if origin in {Union, UnionType}:
            return reduce(or_, extended)
        return origin[extended if len(extended) > 1 else extended[0]]

    def _extended(self, kind: Any) -> Any:
        """Return a `TypedDict` with the fields of the type and its additions, or the type itself without additions."""
        # A base of the type can also have additions.
        bases = [base for base in self._additions if base is kind or base in _bases(kind)]
        additions = [fields for base in bases for fields in self._additions[base]]
        own = get_type_hints(kind, include_extras=True)
        fields = {name: self.of(each) for name, each in own.items()}
        for each in additions:
            fields |= {name: self.of(field) for name, field in get_type_hints(each, include_extras=True).items()}
        if fields == own:
            return kind
        extended: Any = TypedDict(kind.__name__, fields)  # type: ignore[misc] # built at run time
        extended.__doc__ = " ".join(cleandoc(each.__doc__ or "") for each in (kind, *additions))
        extended.__module__ = kind.__module__
        return extended


def _bases(kind: Any) -> Iterable[Any]:
    for base in getattr(kind, "__orig_bases__", ()):
        yield base
        yield from _bases(base)
