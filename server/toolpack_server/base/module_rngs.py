"""Generators of random numbers that modules make without a seed when they are imported, such as `RNG = Random()`.

They are chance, as `random`'s own generator is: each process that is forked draws other numbers from them,
and where chance is pinned, so are they.
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
    """Those that are noted, as long as they live."""

    def __init__(self) -> None:
        self._noted: dict[str, weakref.ref[random.Random]] = {}
        run_after_fork(self.seed)

    @contextmanager
    def noting(self) -> Iterator[None]:
        """Note those that are made in a block that imports modules, unless they get a seed there after all."""
        seed = random.Random.seed
        numbers = Counter[str]()

        def noted(generator: random.Random, a: Any = None, version: int = 2) -> None:
            seed(generator, a, version)
            self._noted = {name: each for name, each in self._noted.items() if each() not in {None, generator}}
            if a is None:
                module = _caller()
                numbers[module] += 1
                self._noted[f"{module} {numbers[module]}"] = weakref.ref(generator)

        kind: Any = random.Random
        kind.seed = noted
        try:
            yield
        finally:
            kind.seed = seed

    def seed(self, seed_of: Callable[[str], int | None] = lambda _: None) -> None:
        """Seed each anew.

        Args:
            seed_of: Gets the seed by a name, which is the same wherever its module is imported; None: real chance.
        """
        for name, reference in self._noted.items():
            generator = reference()
            if generator is not None:
                random.Random.seed(generator, seed_of(name))


def _caller() -> str:
    """Get the name of the module that makes a generator."""
    frame = sys._getframe(2)  # noqa: SLF001 - what called `seed`
    while frame.f_back is not None and frame.f_globals.get("__name__") == random.__name__:
        frame = frame.f_back
    return str(frame.f_globals.get("__name__"))


module_rngs = ModuleRngs()
"""Those of this process."""
