"""Random generators that modules create without a seed when they are imported, such as `RNG = Random()`.

The server treats these generators like the global generator of the module `random`. Each forked process seeds them
anew, and calls in a seeded session set their seeds.
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
    """Registry of the generators, as weak references.

    A generator's name, such as `bank.rates 2`, consists of its module and its number in the module. The name is the
    same in all processes, so that the same seed can be set in each process.
    """

    def __init__(self) -> None:
        self._generators: dict[str, weakref.ref[random.Random]] = {}
        run_after_fork(self.seed)

    @contextmanager
    def register(self) -> Iterator[None]:
        """Register the generators that are created without a seed in a block that imports modules.

        A generator that gets a seed later in the block is removed.
        """
        seed = random.Random.seed
        numbers = Counter[str]()  # number of generators, by module

        def seed_and_register(generator: random.Random, a: Any = None, version: int = 2) -> None:
            """Seed a generator, and add it to the registry unless it got a seed."""
            seed(generator, a, version)
            live = {name: each for name, each in self._generators.items() if each() not in {None, generator}}
            self._generators = live
            if a is None:
                module = _caller()
                numbers[module] += 1
                self._generators[f"{module} {numbers[module]}"] = weakref.ref(generator)

        random_class: Any = random.Random
        random_class.seed = seed_and_register  # a new generator calls it
        try:
            yield
        finally:
            random_class.seed = seed

    def seed(self, seed_of: Callable[[str], int | None] = lambda _: None) -> None:
        """Seed all registered generators.

        Args:
            seed_of: Returns the seed for a generator's name. None: use a random seed.
        """
        for name, reference in self._generators.items():
            generator = reference()
            if generator is not None:
                random.Random.seed(generator, seed_of(name))


def _caller() -> str:
    """Return the name of the module that creates a generator: the first module on the stack besides `random`."""
    frame = sys._getframe(2)  # noqa: SLF001 - the caller of `seed_and_register`
    while frame.f_back is not None and frame.f_globals.get("__name__") == random.__name__:
        frame = frame.f_back
    return str(frame.f_globals.get("__name__"))


module_rngs = ModuleRngs()
"""The registry of this process."""
