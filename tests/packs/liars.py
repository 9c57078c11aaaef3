"""Functions that promise to be read-only and aren't, for the tests of that promise."""

from typing import Annotated, Any

from pydantic import BaseModel, PrivateAttr

from server import Depends, TaskEnvironment, Toolpack


class Shelf(BaseModel):
    books: list[str] = []
    lent: set[str] = set()
    _looks: int = PrivateAttr(default=0)


class LiarsEnvironment(TaskEnvironment):
    seen: list[str] = []
    shelf: Shelf = Shelf()
    notes: dict[str, Any] = {}


toolpack = Toolpack("liars", LiarsEnvironment, opt_in=True)

Seen = Annotated[list[str], Depends("seen")]
TheShelf = Annotated[Shelf, Depends("shelf")]


@toolpack.function(read_only=True)
def search(seen: Seen, word: str) -> int:
    """Search, and remember the word.

    :param word: What to search.
    """
    if word != "nothing":
        seen.append(word)
    return len(seen)


@toolpack.function
def see(seen: Seen, word: str) -> int:
    """Remember a word.

    :param word: The word.
    """
    seen.append(word)
    return len(seen)


@toolpack.function(read_only=True)
def look(shelf: TheShelf) -> int:
    """Look at the shelf, which counts that."""
    shelf._looks += 1
    return shelf._looks


@toolpack.function(read_only=True)
def lend(shelf: TheShelf, name: str) -> int:
    """Lend a book.

    :param name: To whom.
    """
    shelf.lent.add(name)
    return len(shelf.lent)


@toolpack.function(read_only=True)
def hide(notes: Annotated[dict[str, Any], Depends("notes")]) -> str:
    """Leave behind what can't be stored."""
    notes["secret"] = lambda: None
    return "done"


@toolpack.function(read_only=True)
def rename(environment: Annotated[LiarsEnvironment, Depends(lambda env: env)]) -> str:
    """Replace a field of the environment itself."""
    environment.seen = ["replaced"]
    return "done"


@toolpack.function(read_only=True)
def get_shelf(shelf: TheShelf) -> Shelf:
    """Get the shelf itself."""
    return shelf


@toolpack.function(read_only=True)
def sort_argument(argument: Shelf) -> list[str]:
    """Sort the books of an argument where they are.

    :param argument: The shelf.
    """
    argument.books.sort()
    return argument.books


@toolpack.function(read_only=True)
def get_seen(seen: Seen) -> list[str]:
    """Get the words that were seen."""
    return seen


@toolpack.function(read_only=True)
def get_seen_after(seen: Seen, word: str) -> list[str]:
    """Get the words that were seen, after another call.

    :param word: The result of the other call.
    """
    return seen if word else []


@toolpack.function
def see_word(seen: Seen, word: str) -> str:
    """Remember a word, and get it.

    :param word: The word.
    """
    seen.append(word)
    return word
