"""Recipes of sessions, which forks share with their parent, and details, which belong to one session only.

A session's initial environments are built from its recipe. Stores keep recipes and details as bytes, which only this
module interprets.

A recipe is two lines of JSON. The first line contains the toolpacks and the features' data, and every call reads it.
The second line contains the options and environments. It can be large, and is read only when the initial environments
are built again. The toolpacks' versions are stored among the features' data, because older servers ignore unknown
entries there.

Read a recipe only after the session's agent key was checked, because an attacker might have changed the recipe in the
store.
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from toolpack_server.jsonio.strict import dumps, loads
from toolpack_server.stores.base import StoredSession

FORK = "fork"  # name in the details of an imported session that began as a fork
VERSIONS = "toolpack_versions"
CACHED_LINES, CACHED_LONG_LINES = 1000, 50  # maximum number of parsed first lines in each cache
SHORT_BYTES = 4096  # a longer line counts as long


class Recipe(NamedTuple):
    """All inputs from which a session was created.

    Attributes:
        toolpacks: Names of the toolpacks.
        feature_options: Features' data, by name. Most of it consists of request parameters that the features have
            added.
        versions: Versions of the toolpacks' distributions, by toolpack.
        stored: The recipe as bytes, as the store keeps it.
    """

    toolpacks: tuple[str, ...]
    feature_options: Mapping[str, Any]
    versions: Mapping[str, str]
    stored: bytes

    @classmethod
    def new(
        cls,
        toolpacks: tuple[str, ...],
        feature_options: Mapping[str, Any],
        options: Mapping[str, Any],
        environment: Mapping[str, Any],
        versions: Mapping[str, str],
    ) -> "Recipe":
        """Create a recipe. Options and environments are JSON values by toolpack."""
        first = dumps([toolpacks, {**feature_options, VERSIONS: versions} if versions else feature_options])
        return cls(toolpacks, feature_options, versions, first + b"\n" + dumps([options, environment]))

    @classmethod
    def of(cls, session: StoredSession) -> "Recipe":
        """Return the recipe of a stored session. Only the first line is parsed."""
        stored = session.recipe
        line = stored[: stored.index(b"\n")]
        return cls(*(_first(line) if len(line) <= SHORT_BYTES else _long_first(line)), stored)

    def inputs(self) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        """Parse the second line. Return the options and the environments of the request, each by toolpack."""
        options, environment = loads(self.stored.partition(b"\n")[2])
        return options, environment


@lru_cache(CACHED_LINES)
def _first(line: bytes) -> tuple[tuple[str, ...], Mapping[str, Any], Mapping[str, str]]:
    """Parse the first line of a recipe: toolpacks, features' data, and versions."""
    toolpacks, feature_options = loads(line)
    versions = feature_options.pop(VERSIONS, {})
    return tuple(toolpacks), feature_options, versions


_long_first = lru_cache(CACHED_LONG_LINES)(_first.__wrapped__)


def stored_details(details: Mapping[str, Any]) -> bytes:
    """Return details, which are JSON values by name, in the form that stores keep."""
    return dumps(details) if details else b""


def details_of(session: StoredSession) -> Mapping[str, Any]:
    """Return the details of a stored session."""
    details: Mapping[str, Any] = loads(session.details) if session.details else {}
    return details


def began_as_fork(session: StoredSession) -> bool:
    """Return whether a session began as a fork. Its first version then can't be built from its recipe.

    An imported session might have begun as a fork, although it has no parent in this store. Its details say so.
    """
    return session.parent is not None or FORK in details_of(session)
