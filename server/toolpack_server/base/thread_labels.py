"""Labels of what a thread runs, for the message of a missed deadline.

Code that runs an author's code sets a label with `labelled`.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

_labels: dict[int, str] = {}  # by thread ident


def label_of(thread: int) -> str:
    """Return a thread's label; "" if it has none. Any thread may call this."""
    return _labels.get(thread, "")


@contextmanager
def labelled(label: str) -> Iterator[None]:
    """Label the current thread for a block.

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
