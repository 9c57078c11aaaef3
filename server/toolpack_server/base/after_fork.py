"""Hooks that release the server's sockets and locks in processes that a tool function forks.

Such a process may outlive the server. If it kept the inherited port and the store's lock, no worker could be replaced,
and no server could start again. So each module registers a hook if it opens files or sockets that must close with this
process, or runs work that must not continue in a fork.

A library that forks in C without Python's knowledge runs no hooks. Such a process keeps the descriptors until it starts
another program, which closes them.
"""

import os
import random
import weakref
from collections.abc import Callable, Iterable
from typing import Any

_callbacks: list[weakref.WeakMethod[Callable[[], object]]] = []


def run_after_fork(act: Callable[[], object]) -> None:
    """Register a bound method that each forked process calls first, as long as the method's object lives."""
    _callbacks[:] = [each for each in _callbacks if each() is not None]
    _callbacks.append(weakref.WeakMethod(act))


def detach(descriptors: Iterable[int]) -> None:
    """Close inherited descriptors in a forked process.

    Their numbers stay in use, for /dev/null, because inherited objects will close the numbers once more. /dev/null
    can't be locked. So SQLite, when it closes an inherited connection, doesn't consider itself the last user of a file,
    and doesn't remove the file's log.
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
"""Random numbers for ids that may be guessable. The system's generator would take longer."""
run_after_fork(id_numbers.seed)  # otherwise both processes would draw the same ids
