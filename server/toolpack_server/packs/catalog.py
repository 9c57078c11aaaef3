"""The toolpacks that a server has loaded, with the classes and fingerprints derived from them.

Everything here is fixed before the first request, and never changes afterwards.
"""

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field, is_dataclass
from functools import lru_cache

from pydantic import BaseModel

from toolpack_server.base.errors import InvalidParamsError, shown
from toolpack_server.packs.inventory import Entry, Inventory
from toolpack_server.packs.names import ambiguous_names, called_names, without_dots
from toolpack_server.packs.pack_function import PackFunction
from toolpack_server.packs.sources import Source
from toolpack_server.packs.toolpack import Toolpack
from toolpack_server.snapshots.classes import ClassTable, fingerprint, is_foreign
from toolpack_server.snapshots.layouts import BUILTIN_BASES

CHOICES = 256  # of toolpacks


@dataclass(eq=False)
class Catalog:
    """Toolpacks by name, in the order in which they were loaded."""

    toolpacks: dict[str, Toolpack]
    # Messages for the operator, such as what to install for an unavailable toolpack.
    notices: list[str] = field(default_factory=list)
    sources: Mapping[str, Source] = field(default_factory=dict)  # of the toolpacks that were found in modules
    classes: ClassTable = field(init=False)
    # The classes in environments that JSON shows as their instances' public attributes.
    plain: frozenset[type] = field(init=False)
    fingerprints: dict[str, str] = field(init=False)  # the fingerprint of each toolpack's environment classes

    def __post_init__(self) -> None:
        packs = self.toolpacks.values()
        self.classes = ClassTable(
            [pack.environment_class for pack in packs], [kind for pack in packs for kind in pack.state_types]
        )
        of_classes = {kind for pack in packs if pack.holds_instances for kind in pack.state_types}
        self.plain = frozenset(cls for cls in self.classes.layouts if is_plain(cls, of_classes))
        self.fingerprints = {
            name: fingerprint([pack.environment_class], pack.state_types) for name, pack in self.toolpacks.items()
        }
        # Kept, as each new session asks. The order of toolpacks is the client's, so there are more than can be kept.
        self.unclear = lru_cache(maxsize=CHOICES)(lambda names: ambiguous(self.toolpacks[name] for name in names))

    def inventory(self) -> Inventory:
        entries = {
            name: Entry(self.fingerprints[name], tuple(pack.functions), pack.opt_in)
            for name, pack in self.toolpacks.items()
        }
        return Inventory(entries, self.notices)

    def versions(self, names: Iterable[str]) -> dict[str, str]:
        """Get the versions of the distributions that toolpacks came with, by toolpack."""
        sources = {name: self.sources.get(name) for name in names}
        return {name: source.version for name, source in sources.items() if source and source.version}

    def choose(self, names: Iterable[str] | None) -> tuple[str, ...]:
        """Get the names of the toolpacks that a session gets: those asked for, or all that are not `opt_in`.

        Raises:
            InvalidParamsError: A name is unknown, or functions of the chosen toolpacks can't be told apart.
        """
        if names is None:
            return tuple(name for name, pack in self.toolpacks.items() if not pack.opt_in)
        chosen = tuple(dict.fromkeys(names))
        for name in chosen:
            if name not in self.toolpacks:
                raise InvalidParamsError(
                    f"There is no toolpack {shown(name)!r}: choose from {', '.join(self.toolpacks)}."
                )
        unclear = self.unclear(chosen)
        if unclear:
            raise InvalidParamsError(f"These toolpacks can't be in one session: {unclear}. Choose fewer.")
        return chosen

    def functions(self, names: Iterable[str]) -> dict[str, PackFunction]:
        """Get the functions of a session with some toolpacks, by what they are called there, in registration order.

        A name with a dot occurs in both of its spellings; `listed` gives each function once.
        """
        packs = [self.toolpacks[name] for name in names]
        called = called_names({pack.name: pack.functions for pack in packs})
        found = {}
        for pack in packs:
            for registered, function in pack.functions.items():
                name = called[pack.name, registered]
                found[name] = found[without_dots(name)] = function.renamed(name)
        return found

    def listed(self, names: Iterable[str]) -> list[PackFunction]:
        return [function for name, function in self.functions(names).items() if name == function.name]

    def registered(self, names: Iterable[str]) -> list[PackFunction]:
        """Get the functions of some toolpacks, as they are registered."""
        return [function for name in names for function in self.toolpacks[name].functions.values()]

    def spellings(self) -> frozenset[str]:
        """Return all names by which functions can be called in any session."""
        return frozenset(
            spelling
            for toolpack, pack in self.toolpacks.items()
            for name in pack.functions
            for spelling in (name, f"{toolpack}.{name}", without_dots(f"{toolpack}.{name}"))
        )


def is_plain(cls: type, of_classes: Container[type]) -> bool:
    """Return whether the instances of a class are shown as plain objects: they are neither models nor values.

    Pydantic shows a dataclass as its fields, private ones too, and can't show one that refers to itself. So those of
    toolpacks that are made of classes are plain objects.
    """
    if is_foreign(cls) or issubclass(cls, (BaseModel, *BUILTIN_BASES)):
        return False
    return cls in of_classes or not is_dataclass(cls)


def ambiguous(packs: Iterable[Toolpack]) -> str:
    """Say which functions of these toolpacks can't be told apart in one session; "" if all can."""
    found = [*map(".".join, ambiguous_names(called_names({pack.name: pack.functions for pack in packs})))]
    return f"{' and '.join(found)} have the same name where names allow no dots" if found else ""
