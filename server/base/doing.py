"""What a thread is doing, as far as whoever waits for it should know when that takes too long.

The rule: whoever runs an author's code says so with `doing`, wherever it runs; a thread on which nobody waits for
anything ignores it.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol


class Doer(Protocol):
    """Keeps what a thread is doing; read from other threads."""

    what: str


class _Present(threading.local):
    doer: Doer | None = None


_present = _Present()


def keep_in(doer: Doer) -> None:
    """Keep from now on what the present thread is doing."""
    _present.doer = doer


@contextmanager
def doing(what: str) -> Iterator[None]:
    """Note what the present thread is doing, as the beginning of a sentence: "The factory of toolpack 'bank'"."""
    doer = _present.doer
    if doer is None:
        yield
        return
    before, doer.what = doer.what, what
    try:
        yield
    finally:
        doer.what = before
