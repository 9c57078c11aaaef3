"""Hooks that release the server's sockets and locks in processes that a tool function forks.

A forked process may outlive the server. If it kept the server's port and the store's lock, the server couldn't replace
a worker or start again. So a module registers a hook if it opens files or sockets, or runs work that must not continue
in a fork.

A library that forks in C bypasses Python, so the hooks don't run. The forked process then keeps the descriptors until
it executes another program.
"""

import os
import random
import weakref
from collections.abc import Callable, Iterable
from typing import Any

_callbacks: list[weakref.WeakMethod[Callable[[], object]]] = []


def run_after_fork(act: Callable[[], object]) -> None:
    """Register a bound method, which each forked process calls first, unless the method's object was freed."""
    _callbacks[:] = [each for each in _callbacks if each() is not None]
    _callbacks.append(weakref.WeakMethod(act))


def detach(descriptors: Iterable[int]) -> None:
    """Close inherited descriptors in a forked process.

    Each descriptor refers to /dev/null afterwards, because inherited objects will close the descriptor once more. If
    its number were free, a new file could have taken it by then.

    /dev/null can't be locked. So SQLite doesn't take itself for the last user of a database when it closes an inherited
    connection, and doesn't remove the database's log.
    """
    null = os.open(os.devnull, os.O_RDONLY | getattr(os, "O_PATH", 0))
    for descriptor in descriptors:
        if descriptor >= 0:
            os.dup2(null, descriptor, inheritable=False)
    os.close(null)


def _run_callbacks() -> None:
    """Call the registered methods in a forked process."""
    for reference in _callbacks:
        act: Any = reference()
        if act is not None:
            act()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_run_callbacks)

id_numbers = random.Random()  # noqa: S311 - not for secrets
"""Random numbers for ids that needn't be secret. The system's generator would take longer."""
run_after_fork(id_numbers.seed)  # otherwise the forked process would draw the same ids
