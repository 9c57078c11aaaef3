"""The types of results with the members that features add to them.

A type keeps its name. One to which nothing is added, nor to what is in it, stays the same object.
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
    """Gets types of results as they are in a server with certain features.

    Args:
        more: Of each feature, further members, as a `TypedDict`, by the `TypedDict` that has them.
    """

    def __init__(self, more: Iterable[Mapping[type, type]]) -> None:
        self._more: defaultdict[type, list[type]] = defaultdict(list)
        for added in more:
            for kind, members in added.items():
                self._more[kind].append(members)
        self._made: dict[type, type] = {}

    def of(self, kind: Any) -> Any:
        if is_typeddict(kind):
            if kind not in self._made:
                self._made[kind] = self._extended(kind)
            return self._made[kind]
        origin, inner = get_origin(kind), get_args(kind)
        if origin is None or origin is Literal:
            return kind
        if origin is Annotated:
            return Annotated[(self.of(inner[0]), *inner[1:])]
        found = tuple(map(self.of, inner))
        if found == inner:
            return kind
        return reduce(or_, found) if origin in {Union, UnionType} else origin[found if len(found) > 1 else found[0]]

    def _extended(self, kind: Any) -> Any:
        # What a type derives from may have more members, too.
        bases = [base for base in self._more if base is kind or base in _bases(kind)]
        added = [members for base in bases for members in self._more[base]]
        own = get_type_hints(kind, include_extras=True)
        members = {name: self.of(each) for name, each in own.items()}
        for each in added:
            members |= {name: self.of(member) for name, member in get_type_hints(each, include_extras=True).items()}
        if members == own:
            return kind
        made: Any = TypedDict(kind.__name__, members)  # type: ignore[misc] # known now only
        made.__doc__ = " ".join(cleandoc(each.__doc__ or "") for each in (kind, *added))
        made.__module__ = kind.__module__
        return made


def _bases(kind: Any) -> Iterable[Any]:
    for base in getattr(kind, "__orig_bases__", ()):
        yield base
        yield from _bases(base)
