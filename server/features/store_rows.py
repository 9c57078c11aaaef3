"""The columns of a session that the stores in files and servers have in common: recipes, and JSON that may be damaged.

The rule: all forks of a session have the same recipe, so a store keeps it once, under its digest.
"""

import hashlib
from typing import Any

import orjson

from server.base.errors import StateDamagedError

RECIPE_CACHE_BYTES = 8 * 2**20  # of recipes, which never change; sessions that are listed together share them


def digest(recipe: bytes) -> bytes:
    """Get what a recipe is stored under."""
    return hashlib.blake2b(recipe, digest_size=16).digest()


def load(text: bytes) -> Any:
    """Read JSON from a store."""
    try:
        return orjson.loads(text)
    except ValueError as error:
        raise StateDamagedError("A stored session can't be read: it was damaged. Close it.") from error
