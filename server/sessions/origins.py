"""Where a fork comes from: the environments with which its family began, and its ancestors' part of its path.

A fork refers to blobs that hold this, so it doesn't depend on its ancestors: they may be closed. Each fork adds a
*segment*, the compressed records of the session that was forked, to those that this session has itself; all forks of
one request share it. An answer isn't taken along, as each fork gives its own.

The rule: a segment has a keyed hash, and names the one before it and the parent that it was made for. So whoever can
write to the store can't give a fork another past.
"""

import hmac
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat

from server.errors import MissingBlobError, StateDamagedError
from server.execution.evaluation import PathRecord
from server.jsonio.strict import dumps, loads
from server.sessions.paths import Paths
from server.snapshots.seal import KeyedHash
from server.stores.base import SessionStore, StoredSession

_SEGMENT = "$path."  # no part can have this name: a toolpack's begins with a letter or a digit
_HASH_DIGITS = 64


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a session comes from.

    Attributes:
        names: The blobs by which the store knows it.
        first: The blob id of each part of the environments with which the family began.
        last: The blob id of the last segment; None in a session that is no fork, and in forks of older versions.
        calls: How many calls of agents are on the ancestors' part of the path.
        lines: The records of the ancestors on the path, in order: the session, and the JSON that clients see.
    """

    names: Mapping[str, str]
    first: Mapping[str, str]
    last: str | None = None
    calls: int = 0
    lines: Sequence[tuple[str, bytes]] = ()


class Origins:
    """Reads and writes origins, and puts whole paths together.

    Args:
        store: The store.
        paths: Finds the part of a path that is the session's own.
        key: The secret key.
    """

    def __init__(self, store: SessionStore, paths: Paths, key: bytes) -> None:
        self._store = store
        self._paths = paths
        self._keyed = KeyedHash(key, "path")

    def origin(self, session: StoredSession) -> Origin:
        """Get where a session comes from.

        Raises:
            StateDamagedError: It was damaged or forged.
        """
        names = self._store.origin(session.id)
        ids = [names.get(f"{_SEGMENT}{number}", "") for number in range(_segments(names))]
        if not ids:
            return Origin({}, self._store.parts_at(session.id, 0))
        try:
            blobs = self._store.blobs(ids)
        except MissingBlobError:
            raise StateDamagedError("A part of the session's past is missing from the store: restore it.") from None
        segments = [self._open(blob_id, blobs[blob_id]) for blob_id in ids]
        facts = [loads(segment[0]) for segment in segments]
        if [one["previous"] for one in facts] != [None, *ids[:-1]] or facts[-1]["parent"] != [*(session.parent or ())]:
            raise StateDamagedError("The stored past of the session belongs to another one.")
        lines = [
            (of, line)
            for one, segment in zip(facts, segments, strict=True)
            for of, line in zip(_owners(one["records"]), segment[1:], strict=False)
        ]
        return Origin(names, facts[-1]["first"], ids[-1], facts[-1]["calls"], lines)

    def lines(self, session: StoredSession, version: int, after: int) -> Iterator[tuple[str, bytes]]:
        """Get the whole path of a version after a place: for each record the session, and the JSON that clients see."""
        origin = self.origin(session)
        inherited = len(origin.lines)
        yield from origin.lines[after + 1 :]
        yield from self._own(origin, session, version, max(after + 1 - inherited, 0))

    def _own(self, origin: Origin, session: StoredSession, version: int, start: int = 0) -> Iterator[tuple[str, bytes]]:
        """Get the part of a path that isn't in the origin; in forks of older versions that is all that there is."""
        steps = self._paths.own(session, version) if origin.last else self._paths.steps(session, version)
        for step, line in self._paths.read(steps[start:]):
            yield step.session_id, line

    def path(self, session: StoredSession, version: int) -> tuple[Origin, list[PathRecord]]:
        """Get the path of a version for an evaluator, and where it begins."""
        origin = self.origin(session)
        lines = [*origin.lines, *self._own(origin, session, version)]
        return origin, [PathRecord(loads(line), own=of == session.id) for of, line in lines]

    def continued(
        self, session: StoredSession, version: int, blob_id: str, *, again: bool = False
    ) -> tuple[dict[str, str], dict[str, bytes]]:
        """Get the origin of a fork, and the new blob among it.

        Args:
            session: The session that is forked.
            version: The version that is forked.
            blob_id: An id for the new blob.
            again: The fork begins where the session began, so it takes none of the session's own records.
        """
        origin = self.origin(session)
        lines: list[bytes] = []
        owners: list[list[str | int]] = []
        calls = origin.calls
        for of, line in () if again else self._own(origin, session, version):
            shown = loads(line)
            if shown["kind"] == "answer":
                continue
            lines.append(line)
            calls += is_agents_call(shown)
            if not owners or owners[-1][0] != of:
                owners.append([of, 0])
            owners[-1][1] += 1  # type: ignore[operator] # the second is a number
        facts = {
            "parent": [session.id, version],
            "previous": origin.last,
            "first": {**origin.first},
            "calls": calls,
            "records": owners,
        }
        names = {**origin.first, **origin.names, f"{_SEGMENT}{_segments(origin.names)}": blob_id}
        return names, {blob_id: self._close(blob_id, [dumps(facts), *lines])}

    def _close(self, blob_id: str, lines: Sequence[bytes]) -> bytes:
        packed = zlib.compress(b"\n".join(lines), 1)
        return self._keyed.of(blob_id, packed).encode() + packed

    def _open(self, blob_id: str, blob: bytes) -> list[bytes]:
        # SQLite keeps text as text if somebody has written that instead of bytes.
        packed = blob[_HASH_DIGITS:] if isinstance(blob, bytes) else b""
        if not packed or not hmac.compare_digest(blob[:_HASH_DIGITS], self._keyed.of(blob_id, packed).encode()):
            raise StateDamagedError("The stored past of the session fails its keyed hash: it was damaged or forged.")
        return zlib.decompress(packed).split(b"\n")


def _segments(names: Mapping[str, str]) -> int:
    return sum(name.startswith(_SEGMENT) for name in names)


def _owners(records: Sequence[tuple[str, int]]) -> Iterator[str]:
    for session_id, count in records:
        yield from repeat(session_id, count)


def is_agents_call(shown: Mapping[str, object]) -> bool:
    """Whether a record is that of a call that an agent has made."""
    return shown["kind"] == "call" and shown.get("by") == "agent"
