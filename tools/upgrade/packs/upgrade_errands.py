"""A list of notes and a task about it, for sessions that two versions of the server serve in turn."""

import asyncio
from typing import Annotated

from toolpack_server import Depends, Rollout, TaskEnvironment, Toolpack


class Errands(TaskEnvironment):
    notes: list[str] = []  # noqa: RUF012 - pydantic copies it


toolpack = Toolpack("errands", Errands)

Notes = Annotated[list[str], Depends("notes")]


@toolpack.function
def note(notes: Notes, text: str) -> int:
    """Write a note, and return the number of notes.

    :param text: The note.
    """
    notes.append(text)
    return len(notes)


@toolpack.function(read_only=True)
def read_notes(notes: Notes) -> list[str]:
    """Read all notes."""
    return notes


@toolpack.function
async def note_later(notes: Notes, text: str, seconds: float) -> int:
    """Wait, then write a note, and return the number of notes.

    :param text: The note.
    :param seconds: The time to wait.
    """
    await asyncio.sleep(seconds)
    notes.append(text)
    return len(notes)


@toolpack.task("two-notes", "Write the notes one and two, and say done.", max_calls=4)
def two_notes(rollout: Rollout[Errands]) -> bool:
    return rollout.environment.notes == ["one", "two"] and rollout.answer == "done"
