"""Progress of a long command: a bar on a terminal, or a line every few seconds in a file or pipe.

The progress is written to standard error, so that standard output has only the command's results.
"""

import contextlib
import sys
import time
from collections.abc import Callable, Iterator

import click

from toolpack_server.base.terminal import echo

LINE_SECONDS = 10.0  # delay between two lines


@contextlib.contextmanager
def progress(title: str, length: int) -> Iterator[Callable[[int], None]]:
    """Yield a function that adds to the number of finished items and shows the progress. There are `length` items."""
    is_terminal, last_line, done = sys.stderr.isatty(), time.monotonic(), 0

    def advance(by: int) -> None:
        """Add finished items, and update the bar or print a line if one is due."""
        nonlocal last_line, done
        done += by
        bar.update(by)
        if not is_terminal and time.monotonic() - last_line > LINE_SECONDS:
            last_line = time.monotonic()
            echo(f"{title}: {done} of {length}", err=True)

    with click.progressbar(length=length, label=title, file=sys.stderr, hidden=not is_terminal) as bar:
        yield advance
