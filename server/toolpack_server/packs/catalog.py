"""Catalog of the toolpacks that a server has loaded, with the classes of their environments and their fingerprints.

The catalog is complete before the first request and doesn't change afterwards.
"""

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field, is_dataclass
from functools import lru_cache

from pydantic import BaseModel

from toolpack_server.base.errors import InvalidParamsError, shown
from toolpack_server.packs.inventory import Entry, Inventory
from toolpack_server.packs.names import ambiguous_names, session_names, without_dots
from toolpack_server.packs.pack_function import PackFunction
from toolpack_server.packs.sources import Source
from toolpack_server.packs.toolpack import Toolpack
from toolpack_server.snapshots.classes import ClassTable, fingerprint, is_foreign
from toolpack_server.snapshots.layouts import BUILTIN_BASES

MAX_CACHED_CHOICES = 256  # max combinations of toolpacks for which `ambiguity` is cached


@dataclass(eq=False)
class Catalog:
    """Toolpacks by name, in the order of loading.

    Attributes:
        notices: Messages for the operator, for example which package an unavailable toolpack needs.
        sources: The module of each toolpack that was loaded from a module.
        classes: The classes whose instances environments can contain.
        plain: The classes whose instances are shown in JSON as their public attributes.
        fingerprints: The fingerprint of each toolpack's environment classes.
    """

    toolpacks: dict[str, Toolpack]
    notices: list[str] = field(default_factory=list)
    sources: Mapping[str, Source] = field(default_factory=dict)
    classes: ClassTable = field(init=False)
    plain: frozenset[type] = field(init=False)
    fingerprints: dict[str, str] = field(init=False)

    def __post_init__(self) -> None:
        packs = self.toolpacks.values()
        self.classes = ClassTable(
            [pack.environment_class for pack in packs], [kind for pack in packs for kind in pack.state_types]
        )
        author_classes = {kind for pack in packs if pack.holds_instances for kind in pack.state_types}
        self.plain = frozenset(cls for cls in self.classes.layouts if is_plain(cls, author_classes))
        self.fingerprints = {
            name: fingerprint([pack.environment_class], pack.state_types) for name, pack in self.toolpacks.items()
        }
        # The message is cached, because each new session needs it. The cache is limited, because clients choose the
        # toolpacks and their order.
        self.ambiguity = lru_cache(maxsize=MAX_CACHED_CHOICES)(
            lambda names: describe_ambiguity(self.toolpacks[name] for name in names)
        )

    def inventory(self) -> Inventory:
        """Return a summary that other processes can compare with their own."""
        entries = {
            name: Entry(self.fingerprints[name], tuple(pack.functions), pack.opt_in)
            for name, pack in self.toolpacks.items()
        }
        return Inventory(entries, self.notices)

    def versions(self, names: Iterable[str]) -> dict[str, str]:
        """Return the version of each toolpack's distribution, by toolpack. Toolpacks from folders are omitted."""
        sources = {name: self.sources.get(name) for name in names}
        return {name: source.version for name, source in sources.items() if source and source.version}

    def choose(self, names: Iterable[str] | None) -> tuple[str, ...]:
        """Return the toolpacks of a session: the toolpacks that the client named, or all that aren't `opt_in`.

        Raises:
            InvalidParamsError: A name is unknown, or two functions of the chosen toolpacks would have the same name.
        """
        if names is None:
            return tuple(name for name, pack in self.toolpacks.items() if not pack.opt_in)
        chosen = tuple(dict.fromkeys(names))
        for name in chosen:
            if name not in self.toolpacks:
                raise InvalidParamsError(
                    f"There is no toolpack {shown(name)!r}: choose from {', '.join(self.toolpacks)}."
                )
        ambiguity = self.ambiguity(chosen)
        if ambiguity:
            raise InvalidParamsError(f"These toolpacks can't be in one session: {ambiguity}. Choose fewer.")
        return chosen

    def functions(self, names: Iterable[str]) -> dict[str, PackFunction]:
        """Return the functions of a session with these toolpacks, by their names in it, in order of registration.

        A function whose name has a dot occurs twice, once for each spelling. `listed` returns each function once.
        """
        packs = [self.toolpacks[name] for name in names]
        names_in_session = session_names({pack.name: pack.functions for pack in packs})
        functions = {}
        for pack in packs:
            for registered_name, function in pack.functions.items():
                name = names_in_session[pack.name, registered_name]
                functions[name] = functions[without_dots(name)] = function.renamed(name)
        return functions

    def listed(self, names: Iterable[str]) -> list[PackFunction]:
        """Return the functions of a session with these toolpacks, each once."""
        return [function for name, function in self.functions(names).items() if name == function.name]

    def registered(self, names: Iterable[str]) -> list[PackFunction]:
        """Return the functions of these toolpacks under their registered names."""
        return [function for name in names for function in self.toolpacks[name].functions.values()]

    def spellings(self) -> frozenset[str]:
        """Return every name that a function can have in any session."""
        return frozenset(
            spelling
            for toolpack, pack in self.toolpacks.items()
            for name in pack.functions
            for spelling in (name, f"{toolpack}.{name}", without_dots(f"{toolpack}.{name}"))
        )


def is_plain(cls: type, author_classes: Container[type]) -> bool:
    """Return whether JSON shows the instances of a class as plain objects, because they are neither models nor values.

    Pydantic would show all fields of a dataclass, even private fields, and would fail if an instance refers to itself.
    So dataclasses of toolpacks that `Toolpack.from_class` created (`author_classes`) also count as plain objects.
    """
    if is_foreign(cls) or issubclass(cls, (BaseModel, *BUILTIN_BASES)):
        return False
    return cls in author_classes or not is_dataclass(cls)


def describe_ambiguity(packs: Iterable[Toolpack]) -> str:
    """Return a message about functions that would have the same name in a session, or "" if all names differ."""
    names = [*map(".".join, ambiguous_names(session_names({pack.name: pack.functions for pack in packs})))]
    return f"{' and '.join(names)} have the same name in model APIs, which write a dot as __" if names else ""
