"""What a thread is doing, as far as whoever waits for it should know when that takes too long.

Whoever runs an author's code says so with `labelled`, wherever it runs.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

_doing: dict[int, str] = {}  # by the numbers of threads


def label_of(thread: int) -> str:
    """Get what a thread is doing, as the beginning of a sentence; "" if nobody has said that. From any thread."""
    return _doing.get(thread, "")


@contextmanager
def labelled(what: str) -> Iterator[None]:
    """Note what the present thread is doing, as the beginning of a sentence: "The factory of toolpack 'bank'"."""
    thread = threading.get_ident()
    before = _doing.get(thread)
    _doing[thread] = what
    try:
        yield
    finally:
        if before is None:
            del _doing[thread]
        else:
            _doing[thread] = before
