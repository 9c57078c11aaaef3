"""Functions that leave work behind, in every way, for tests of what a later call sees of it."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any

from pydantic import BaseModel, Field

from server import Depends, TaskEnvironment, Toolpack

gates: dict[str, threading.Event] = {}
written: list[str] = []
executor = ThreadPoolExecutor(1)


class Notes(BaseModel):
    lines: list[str] = Field(default_factory=list)


class StragglersEnvironment(TaskEnvironment):
    notes: Notes = Field(default_factory=Notes)


toolpack = Toolpack("stragglers", StragglersEnvironment)

TheNotes = Annotated[Notes, Depends("notes")]


def write_late(notes: Notes, gate: str) -> None:
    gates[gate].wait()
    notes.lines.append("late")
    written.append(gate)


@toolpack.function
def write(notes: TheNotes, line: str) -> list[str]:
    """Write a line and get all.

    :param line: The line.
    """
    notes.lines.append(line)
    return notes.lines


@toolpack.function
def leave_thread(notes: TheNotes, gate: str) -> None:
    """Leave a thread behind that writes later.

    :param gate: When it writes.
    """
    threading.Thread(target=write_late, args=(notes, gate), daemon=True).start()


@toolpack.function
def leave_in_executor(notes: TheNotes, gate: str) -> None:
    """Leave work behind in an executor of the toolpack's.

    :param gate: When it writes.
    """
    executor.submit(write_late, notes, gate)


@toolpack.function
async def leave_to_thread(notes: TheNotes, gate: str) -> None:
    """Leave work behind in the event loop's executor, in a task that is cancelled.

    :param gate: When it writes.
    """
    task = asyncio.ensure_future(asyncio.to_thread(write_late, notes, gate))
    await asyncio.sleep(0)
    del task


@toolpack.function
async def leave_run_in_executor(notes: TheNotes, gate: str) -> None:
    """Leave work behind in the event loop's executor, without a task.

    :param gate: When it writes.
    """
    asyncio.get_running_loop().run_in_executor(None, write_late, notes, gate)


@toolpack.function
async def write_in_thread(notes: TheNotes, line: str) -> Any:
    """Write a line in another thread, and wait for it.

    :param line: The line.
    """
    return await asyncio.to_thread(write, notes, line)
