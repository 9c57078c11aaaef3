"""How far a long command is: a bar on a terminal, elsewhere a line now and then.

It goes to standard error, so that standard output has what the command has found and nothing else.
"""

import contextlib
import sys
import time
from collections.abc import Callable, Iterator

import click

from toolpack_server.base.terminal import echo

TELL_SECONDS = 10.0  # between lines


@contextlib.contextmanager
def progress(doing: str, length: int) -> Iterator[Callable[[int], None]]:
    """Show how far the command is; what this gives is called with how many more of `length` are done."""
    is_terminal, told, done = sys.stderr.isatty(), time.monotonic(), 0

    def go_on(by: int) -> None:
        nonlocal told, done
        done += by
        bar.update(by)
        if not is_terminal and time.monotonic() - told > TELL_SECONDS:
            told = time.monotonic()
            echo(f"{doing}: {done} of {length}", err=True)

    with click.progressbar(length=length, label=doing, file=sys.stderr, hidden=not is_terminal) as bar:
        yield go_on
