"""What a process that a function forks keeps of the server: nothing by which the server could be missed.

Such a process may outlive the server. With what it inherits it would keep the port and the lock of the store, so that
no worker could be replaced and no server started again. Whoever opens what ends with this process, or runs
what must go on in this process alone, says so here. What a library forks in C without telling Python keeps all until
it starts another program, by which everything of ours is closed.
"""

import os
import random
import weakref
from collections.abc import Callable, Iterable
from typing import Any

_callbacks: list[weakref.WeakMethod[Callable[[], object]]] = []


def run_after_fork(act: Callable[[], object]) -> None:
    """Have a bound method called in each process that is forked from this one, as long as its object lives."""
    _callbacks[:] = [each for each in _callbacks if each() is not None]
    _callbacks.append(weakref.WeakMethod(act))


def detach(descriptors: Iterable[int]) -> None:
    """Close descriptors in a forked process.

    Their numbers stay in use, because objects that this process has inherited would close them once more. Behind them
    is nothing that could be locked or written: SQLite, which closes what it has inherited, must not take itself for
    the last one that uses a file, and remove the log beside it.
    """
    nothing = os.open(os.devnull, os.O_RDONLY | getattr(os, "O_PATH", 0))
    for descriptor in descriptors:
        if descriptor >= 0:
            os.dup2(nothing, descriptor, inheritable=False)
    os.close(nothing)


def _run_callbacks() -> None:
    for reference in _callbacks:
        act: Any = reference()
        if act is not None:
            act()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_run_callbacks)

id_numbers = random.Random()  # noqa: S311 - see below
"""Draws ids that nobody has to be unable to guess: to ask the system for each takes longer."""
run_after_fork(id_numbers.seed)  # or both processes would draw the same
