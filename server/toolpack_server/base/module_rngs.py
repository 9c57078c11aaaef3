"""Random generators that modules create without a seed when they are imported, such as `RNG = Random()`.

They are treated like the generator of the module `random`: each forked process seeds them anew, and they are pinned
with the other random numbers of a seeded session.
"""

import random
import sys
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from toolpack_server.base.after_fork import run_after_fork


class ModuleRngs:
    """Registry of the generators, by a name that is the same in all processes. It holds weak references."""

    def __init__(self) -> None:
        self._generators: dict[str, weakref.ref[random.Random]] = {}
        run_after_fork(self.seed)

    @contextmanager
    def register(self) -> Iterator[None]:
        """Register the generators that are created without a seed in a block that imports modules.

        A generator that gets a seed later in the block is removed.
        """
        seed = random.Random.seed
        numbers = Counter[str]()

        def seed_and_register(generator: random.Random, a: Any = None, version: int = 2) -> None:
            seed(generator, a, version)
            live = {name: each for name, each in self._generators.items() if each() not in {None, generator}}
            self._generators = live
            if a is None:
                module = _caller()
                numbers[module] += 1
                self._generators[f"{module} {numbers[module]}"] = weakref.ref(generator)

        kind: Any = random.Random
        kind.seed = seed_and_register
        try:
            yield
        finally:
            kind.seed = seed

    def seed(self, seed_of: Callable[[str], int | None] = lambda _: None) -> None:
        """Seed all registered generators.

        Args:
            seed_of: Returns the seed for a generator's name; None for a random seed.
        """
        for name, reference in self._generators.items():
            generator = reference()
            if generator is not None:
                random.Random.seed(generator, seed_of(name))


def _caller() -> str:
    """Return the name of the module that creates a generator."""
    frame = sys._getframe(2)  # noqa: SLF001 - the caller of `seed`
    while frame.f_back is not None and frame.f_globals.get("__name__") == random.__name__:
        frame = frame.f_back
    return str(frame.f_globals.get("__name__"))


module_rngs = ModuleRngs()
"""The registry of this process."""
