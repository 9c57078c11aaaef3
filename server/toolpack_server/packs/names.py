"""Names of functions in a session, with a prefix if several of its toolpacks use the same name.

A function keeps its registered name unless that name is ambiguous in the session. Then all functions with that name
are called `toolpack.function`. The toolpack that was loaded first has no precedence.
"""

from collections import Counter
from collections.abc import Iterable, Mapping

RegisteredName = tuple[str, str]
"""The name of a toolpack, and the registered name of a function."""


def without_dots(name: str) -> str:
    """Return the spelling of a name for model APIs that forbid dots in names. Agents can call either spelling."""
    return name.replace(".", "__")


def session_names(toolpacks: Mapping[str, Iterable[str]]) -> dict[RegisteredName, str]:
    """Return the name of each function in a session.

    Args:
        toolpacks: The session's toolpacks, each with the registered names of its functions.
    """
    functions = [(toolpack, name) for toolpack, registered in toolpacks.items() for name in registered]
    prefixed: set[str] = set()
    while True:
        names = {each: f"{each[0]}.{each[1]}" if each[1] in prefixed else each[1] for each in functions}
        # Repeat, because a name with a prefix can equal another name.
        ambiguous = {name for _, name in ambiguous_names(names)} - prefixed
        if not ambiguous:
            return names
        prefixed |= ambiguous


def ambiguous_names(names: Mapping[RegisteredName, str]) -> list[RegisteredName]:
    """Return the functions that share a name or a spelling with another function.

    Prefixes don't help if two toolpacks are called `a.b` and `a__b`, because model APIs write a dot as `__`.
    """
    spellings = Counter(spelling for name in names.values() for spelling in {name, without_dots(name)})
    return [each for each, name in names.items() if spellings[name] > 1 or spellings[without_dots(name)] > 1]
