"""Labels of threads, which say what a thread runs. The error message of a missed deadline contains the label.

The server sets a label with `labelled` before it runs a toolpack's code.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

_labels: dict[int, str] = {}  # labels by `threading.get_ident()`


def label_of(thread: int) -> str:
    """Return a thread's label, or "" if the thread has no label. This can be called on any thread."""
    return _labels.get(thread, "")


@contextmanager
def labelled(label: str) -> Iterator[None]:
    """Label the current thread during a block. A nested block replaces the label until its end.

    Args:
        label: The start of a sentence, such as "The factory of toolpack 'bank'".
    """
    thread = threading.get_ident()
    before = _labels.get(thread)
    _labels[thread] = label
    try:
        yield
    finally:
        if before is None:
            del _labels[thread]
        else:
            _labels[thread] = before
