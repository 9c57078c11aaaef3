"""Writers of volumes: the libraries, such as SQLite, that decide the bytes of a seeded session's volumes.

The digest of a world covers the bytes of its volumes, and another version of SQLite might store equal content in other
bytes. So a seeded session stores the versions of its writers, and a replay with other versions doesn't compare digests.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from toolpack_server.sessions.context import SessionContext
from toolpack_server.volumes.volume import is_piece, kind_of

WRITTEN_BY = "written_by"  # key of the versions in the details of a session


def current_writers(context: SessionContext) -> Mapping[str, Any]:
    """Return the details to store in a seeded session: the version of this server's writer of each kind of volume."""
    writers = _writers(context)
    return {WRITTEN_BY: writers} if writers else {}


def other_writers(context: SessionContext, details: Mapping[str, Any]) -> set[str]:
    """Return the kinds of volumes whose writer in a session with these details differs from this server's writer.

    The details might come from an untrusted bundle, so invalid details are ignored.
    """
    recorded = details.get(WRITTEN_BY)
    if not isinstance(recorded, dict):
        return set()
    return {kind for kind, writer in _writers(context).items() if recorded.get(kind, writer) != writer}


def has_kind(parts: Iterable[str], kinds: set[str]) -> bool:
    """Return whether a world has a volume of one of these kinds."""
    return any(is_piece(part) and kind_of(part) in kinds for part in parts)


def _writers(context: SessionContext) -> dict[str, str]:
    """Return the writer of each kind of volume that has one, such as "SQLite 3.45.1"."""
    volumes = context.codec.volumes
    return {} if volumes is None else {name: kind.written_by for name, kind in volumes.kinds.items() if kind.written_by}
