"""Helpers of all durable stores for columns of sessions: digests of recipes, and JSON that might be damaged.

A session and all its forks have the same recipe, so a store stores this recipe only once, under its digest.
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

RECIPE_CACHE_BYTES = 8 * 2**20  # size of a store's recipe cache; recipes never change, and sessions often share one

DAMAGED = "A stored session can't be read: it was damaged. Close it."


def digest(recipe: bytes) -> bytes:
    """Return the digest of a recipe, which is its key in a store."""
    return hashlib.blake2b(recipe, digest_size=16).digest()


def decoder(decode: Callable[P, T]) -> Callable[P, T]:
    """Decorate a function that decodes stored data, so that it raises `StateDamagedError` if the data is damaged."""

    @wraps(decode)
    def decoded(*args: P.args, **kwargs: P.kwargs) -> T:
        """Call the function, and translate its errors."""
        try:
            return decode(*args, **kwargs)
        except (ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
            raise StateDamagedError(DAMAGED) from error

    return decoded


def load(text: bytes) -> Any:
    """Parse stored JSON, or raise `StateDamagedError`."""
    try:
        return orjson.loads(text)
    except ValueError as error:
        raise StateDamagedError(DAMAGED) from error


def labels_match(labels: bytes, wanted: Mapping[str, str]) -> bool:
    """Return whether a session has all wanted labels.

    A session with damaged labels counts as a session without labels.
    """
    with suppress(StateDamagedError):
        return not wanted or _has(load(labels), wanted)
    return False


@decoder
def _has(labels: Mapping[str, str], wanted: Mapping[str, str]) -> bool:
    return wanted.items() <= labels.items()


def undamaged(decode: Callable[[R], T], rows: Iterable[R]) -> Iterator[T]:
    """Decode rows, and skip damaged rows, so that a list still contains all other sessions."""
    for row in rows:
        with suppress(StateDamagedError):
            yield decode(row)
