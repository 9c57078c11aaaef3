"""What functions are called in a session: their names, with a prefix where several toolpacks have one of that name.

A name stays as it is unless that would be ambiguous in this session. Then the functions of that name are
called `toolpack.function`, all of them, so that none is favoured for being loaded first.
"""

from collections import Counter
from collections.abc import Iterable, Mapping

RegisteredName = tuple[str, str]
"""A toolpack, and the name with which it has registered a function."""


def without_dots(name: str) -> str:
    """Get the spelling of a name for model APIs whose names allow no dot; agents may call it by this, too."""
    return name.replace(".", "__")


def called_names(toolpacks: Mapping[str, Iterable[str]]) -> dict[RegisteredName, str]:
    """Get what each function is called in a session that has these toolpacks, each with the names of its functions."""
    functions = [(toolpack, name) for toolpack, names in toolpacks.items() for name in names]
    prefixed: set[str] = set()
    while True:
        called = {each: f"{each[0]}.{each[1]}" if each[1] in prefixed else each[1] for each in functions}
        # Again, as a name with its prefix may be spelled like another one.
        more = {name for _, name in ambiguous_names(called)} - prefixed
        if not more:
            return called
        prefixed |= more


def ambiguous_names(called: Mapping[RegisteredName, str]) -> list[RegisteredName]:
    """Get the functions that can't be told apart; even prefixes don't help if toolpacks are called `a.b` and `a__b`."""
    spellings = Counter(spelling for name in called.values() for spelling in {name, without_dots(name)})
    return [each for each, name in called.items() if spellings[name] > 1 or spellings[without_dots(name)] > 1]
