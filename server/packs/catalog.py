"""The toolpacks that a server has loaded, with the classes and fingerprints derived from them.

The rule: everything here is fixed before the first request, and never changes afterwards.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from pydantic import BaseModel

from server.errors import InvalidParamsError, shown
from server.packs.toolpack import PackFunction, Toolpack
from server.snapshots.classes import ClassTable, fingerprint, is_foreign
from server.snapshots.layouts import BUILTIN_BASES


@dataclass
class Catalog:
    """Toolpacks by name, in the order in which they were loaded.

    Attributes:
        toolpacks: The toolpacks.
        notices: Messages for the operator, such as what to install for an unavailable toolpack.
        classes: All classes that their environments may hold.
        plain: Those of them whose instances are plain objects, which JSON shows as their public attributes.
        fingerprints: The fingerprint of each toolpack's environment classes.
    """

    toolpacks: dict[str, Toolpack]
    notices: list[str] = field(default_factory=list)
    classes: ClassTable = field(init=False)
    plain: frozenset[type] = field(init=False)
    fingerprints: dict[str, str] = field(init=False)

    def __post_init__(self) -> None:
        packs = self.toolpacks.values()
        self.classes = ClassTable(
            [pack.environment_class for pack in packs], [kind for pack in packs for kind in pack.state_types]
        )
        self.plain = frozenset(cls for cls in self.classes.layouts if is_plain(cls))
        self.fingerprints = {
            name: fingerprint([pack.environment_class], pack.state_types) for name, pack in self.toolpacks.items()
        }

    def choose(self, names: Iterable[str] | None) -> tuple[str, ...]:
        """Get the names of the toolpacks that a session gets: those asked for, or all that are not `opt_in`.

        Raises:
            InvalidParamsError: A name is unknown, or functions of the chosen toolpacks have the same name.
        """
        if names is None:
            return tuple(name for name, pack in self.toolpacks.items() if not pack.opt_in)
        chosen = tuple(dict.fromkeys(names))
        for name in chosen:
            if name not in self.toolpacks:
                raise InvalidParamsError(
                    f"There is no toolpack {shown(name)!r}: choose from {', '.join(self.toolpacks)}."
                )
        clashes = clashing_functions([self.toolpacks[name] for name in chosen])
        if clashes:
            raise InvalidParamsError(f"These toolpacks can't be in one session: {'; '.join(clashes)}. Choose fewer.")
        return chosen

    def functions(self, names: Iterable[str]) -> dict[str, PackFunction]:
        """Get the functions of some toolpacks, by name, in registration order."""
        return {function.name: function for name in names for function in self.toolpacks[name].functions.values()}


def is_plain(cls: type) -> bool:
    """Return whether the instances of a class are neither models nor values, but plain objects with attributes."""
    return not (is_foreign(cls) or issubclass(cls, (BaseModel, *BUILTIN_BASES)))


def clashing_functions(packs: Iterable[Toolpack]) -> list[str]:
    """Describe each function name that more than one of these toolpacks has."""
    owners: dict[str, list[str]] = {}
    for pack in packs:
        for name in pack.functions:
            owners.setdefault(name, []).append(pack.name)
    return [f"function {name!r} is in {' and '.join(of)}" for name, of in owners.items() if len(of) > 1]
