"""A board that agents write on, <img src=x onerror="window.ran=1">, for the tests of the console."""

from datetime import date
from enum import StrEnum
from typing import Annotated, Any

from pydantic import BaseModel, Field

from server import Depends, TaskEnvironment, Toolpack


class Kind(StrEnum):
    NOTE = "note"
    MARKUP = "<script>window.ran=1</script>"


class Place(BaseModel):
    street: str
    number: int


class Board(BaseModel):
    notes: dict[str, Any] = Field(default_factory=dict)


class BoardEnvironment(TaskEnvironment):
    board: Board = Field(default_factory=Board)


def open_board(*, notes: dict[str, str] | None = None) -> BoardEnvironment:
    """Build a board.

    :param notes: What is on it, <b onmouseover="window.ran=1">at the start</b>.
    """
    return BoardEnvironment(board=Board(notes=notes or {}))


toolpack = Toolpack("pages", open_board)

TheBoard = Annotated[Board, Depends("board")]


@toolpack.function
def write(board: TheBoard, name: str, content: Any) -> Any:
    """Write a note, <svg onload="window.ran=1"></svg>.

    :param name: Its name, <img src=x onerror="window.ran=1">.
    :param content: What it says.
    """
    board.notes[name] = content
    return content


@toolpack.function
def give_up(text: str) -> str:
    """Give up.

    :param text: What the error says.
    """
    raise ValueError(text)


@toolpack.function
def plan(
    board: TheBoard,
    kind: Kind,
    day: date,
    place: Place,
    size: int,
    urgent: bool = False,
    words: list[str] | None = None,
) -> dict[str, Any]:
    """Plan something: a parameter of each sort.

    :param kind: A choice.
    :param day: A day.
    :param place: Something nested.
    :param size: A number.
    :param urgent: Yes or no.
    :param words: A list.
    """
    given = {
        "kind": kind.value,
        "day": day,
        "place": place.model_dump(),
        "size": size,
        "urgent": urgent,
        "words": words,
    }
    board.notes["plan"] = given
    return given
