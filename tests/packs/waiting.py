"""Functions that wait in different ways, and one that leaves a process behind."""

import asyncio
import os
import time
from pathlib import Path

from server import EmptyEnv, Toolpack

toolpack = Toolpack("waiting", EmptyEnv)


@toolpack.function(read_only=True)
def answer() -> str:
    """Answer at once."""
    return "here"


@toolpack.function(timeout_seconds=3600)
def wait_in_c(started: str) -> str:
    """Wait for an hour where nothing can interrupt it.

    :param started: A file to create at the start.
    """
    Path(started).touch()
    time.sleep(3600)
    return "done"


@toolpack.function(timeout_seconds=3600)
async def wait_in_asyncio(started: str) -> str:
    """Wait for an hour in a coroutine.

    :param started: A file to create at the start.
    """
    Path(started).touch()  # noqa: ASYNC240 - it is quick
    await asyncio.sleep(3600)
    return "done"


@toolpack.function(timeout_seconds=3600)
def wait_for_file(started: str, path: str) -> str:
    """Wait until a file is there.

    :param started: A file to create at the start.
    :param path: The file.
    """
    Path(started).touch()
    while not Path(path).exists():
        time.sleep(0.01)
    return "done"


@toolpack.function(timeout_seconds=0.2)
def hang() -> None:
    """Wait, past the deadline, where nothing can interrupt it."""
    time.sleep(3600)


@toolpack.function
def fork(path: str) -> int:
    """Fork a process that lives until a file is there, and get its id.

    :param path: The file.
    """
    pid = os.fork()
    while pid == 0:
        time.sleep(0.01)
        if Path(path).exists():
            os._exit(0)
    return pid
