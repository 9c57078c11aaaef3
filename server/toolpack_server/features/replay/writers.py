"""What lays out the volumes of a seeded session, such as a version of SQLite, and what follows for a replay.

A digest of a world covers the bytes of its volumes, and another version may lay out equal content in another
way. So a digest that was recorded under one version is never compared under another.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from toolpack_server.sessions.context import SessionContext
from toolpack_server.volumes.volume import is_piece, kind_of

WRITTEN_BY = "written_by"  # among the details of a session


def noted_writers(context: SessionContext) -> Mapping[str, Any]:
    """Get what is kept with a seeded session of this: by kind of volume, what lays it out here."""
    found = _writers(context)
    return {WRITTEN_BY: found} if found else {}


def other_writers(context: SessionContext, details: Mapping[str, Any]) -> set[str]:
    """Get the kinds of volumes that something else has laid out in a session with these details, a stranger's maybe."""
    noted = details.get(WRITTEN_BY)
    if not isinstance(noted, dict):
        return set()
    return {kind for kind, writer in _writers(context).items() if noted.get(kind, writer) != writer}


def has_kind(parts: Iterable[str], kinds: set[str]) -> bool:
    """Whether there is a volume of one of these kinds among the parts of a world."""
    return any(is_piece(part) and kind_of(part) in kinds for part in parts)


def _writers(context: SessionContext) -> dict[str, str]:
    volumes = context.codec.volumes
    return {} if volumes is None else {name: kind.written_by for name, kind in volumes.kinds.items() if kind.written_by}
