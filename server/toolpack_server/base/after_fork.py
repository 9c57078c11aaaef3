"""Hooks that release the server's sockets and locks in processes forked by a tool function.

A forked process can outlive the server. If it kept the server's port and the store's lock, the server couldn't replace
a worker or start again. So a module registers a hook if it opens files or sockets, or if it runs work that must not
continue in a fork.

If a library forks in C, it bypasses Python, so the hooks don't run. The forked process then keeps the descriptors until
it executes another program.
"""

import os
import random
import weakref
from collections.abc import Callable, Iterable
from typing import Any

_callbacks: list[weakref.WeakMethod[Callable[[], object]]] = []


def run_after_fork(act: Callable[[], object]) -> None:
    """Register a bound method, which each forked process calls at its start, unless the method's object was freed."""
    _callbacks[:] = [each for each in _callbacks if each() is not None]
    _callbacks.append(weakref.WeakMethod(act))


def detach(descriptors: Iterable[int]) -> None:
    """Close inherited descriptors in a forked process.

    Afterwards, each descriptor refers to /dev/null, because inherited objects will close it once more. If its number
    were free, a new file could have taken it by then.

    Because /dev/null can't be locked, SQLite doesn't assume that it is a database's last user when it closes an
    inherited connection. So it doesn't remove the database's log.
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
