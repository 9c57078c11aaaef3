"""The columns of a session that the stores in files and servers have in common: recipes, and JSON that may be damaged.

All forks of a session have the same recipe, so a store keeps it once, under its digest.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import orjson

from toolpack_server.base.errors import StateDamagedError

P = ParamSpec("P")
T = TypeVar("T")
R = TypeVar("R")

RECIPE_CACHE_BYTES = 8 * 2**20  # of recipes, which never change; sessions that are listed together share them

DAMAGED = "A stored session can't be read: it was damaged. Close it."


def digest(recipe: bytes) -> bytes:
    """Get what a recipe is stored under."""
    return hashlib.blake2b(recipe, digest_size=16).digest()


def decoder(decode: Callable[P, T]) -> Callable[P, T]:
    """Have a function that decodes what is stored raise `StateDamagedError` where that is damaged."""

    @wraps(decode)
    def decoded(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return decode(*args, **kwargs)
        except (ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
            raise StateDamagedError(DAMAGED) from error

    return decoded


def load(text: bytes) -> Any:
    """Read JSON from a store."""
    try:
        return orjson.loads(text)
    except ValueError as error:
        raise StateDamagedError(DAMAGED) from error


def labels_match(labels: bytes, wanted: Mapping[str, str]) -> bool:
    """Return whether a session, whose labels may be damaged, has all of these labels."""
    with suppress(StateDamagedError):
        return not wanted or _has(load(labels), wanted)
    return False


@decoder
def _has(labels: Mapping[str, str], wanted: Mapping[str, str]) -> bool:
    return wanted.items() <= labels.items()


def undamaged(decode: Callable[[R], T], rows: Iterable[R]) -> Iterator[T]:
    """Yield what was decoded from rows, without those that are damaged: a list has all others."""
    for row in rows:
        with suppress(StateDamagedError):
            yield decode(row)
