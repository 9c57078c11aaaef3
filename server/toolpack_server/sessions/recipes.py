"""What a session is made from: its recipe, which all its forks share, and its details, which are its own.

Stores keep both as bytes that only this module understands. A recipe is two lines of JSON: the toolpacks and what
features keep, which every call needs, and the options and environments, which may be large and are read only to begin
again. The versions of the toolpacks are written among what features keep, as servers that don't know of them ignore
what is there.

A recipe is read only after the session's agent key was checked.
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from toolpack_server.jsonio.strict import dumps, loads
from toolpack_server.stores.base import StoredSession

FORK = "fork"  # among the details of a session that was imported, and began as a fork
VERSIONS = "toolpack_versions"
REMEMBERED, LONG_REMEMBERED = 1000, 50  # first lines
SHORT_BYTES = 4096


class Recipe(NamedTuple):
    """What a session is made from.

    Attributes:
        kept: What features keep of the request for it: parameters of theirs, by name.
        versions: Those of the distributions that the toolpacks came with, by toolpack.
    """

    toolpacks: tuple[str, ...]
    kept: Mapping[str, Any]
    versions: Mapping[str, str]
    stored: bytes

    @classmethod
    def new(
        cls,
        toolpacks: tuple[str, ...],
        kept: Mapping[str, Any],
        options: Mapping[str, Any],
        environment: Mapping[str, Any],
        versions: Mapping[str, str],
    ) -> "Recipe":
        """Make a recipe; options and environments are JSON values by toolpack."""
        first = dumps([toolpacks, {**kept, VERSIONS: versions} if versions else kept])
        return cls(toolpacks, kept, versions, first + b"\n" + dumps([options, environment]))

    @classmethod
    def of(cls, session: StoredSession) -> "Recipe":
        stored = session.recipe
        line = stored[: stored.index(b"\n")]
        return cls(*(_first(line) if len(line) <= SHORT_BYTES else _long_first(line)), stored)

    def given(self) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        """Get the options and the environments that were given, by toolpack."""
        options, environment = loads(self.stored.partition(b"\n")[2])
        return options, environment


@lru_cache(REMEMBERED)
def _first(line: bytes) -> tuple[tuple[str, ...], Mapping[str, Any], Mapping[str, str]]:
    toolpacks, kept = loads(line)
    versions = kept.pop(VERSIONS, {})
    return tuple(toolpacks), kept, versions


_long_first = lru_cache(LONG_REMEMBERED)(_first.__wrapped__)


def stored_details(details: Mapping[str, Any]) -> bytes:
    """Get details, which are JSON values by name, as stores keep them."""
    return dumps(details) if details else b""


def details_of(session: StoredSession) -> Mapping[str, Any]:
    details: Mapping[str, Any] = loads(session.details) if session.details else {}
    return details


def began_as_fork(session: StoredSession) -> bool:
    """Whether only a snapshot shows how a session began; also one that was imported, and has no parent here."""
    return session.parent is not None or FORK in details_of(session)
