"""The path of a session: the records that led to its present version, its ancestors' among them.

A reset goes back on the path: what came after the version that it names is no longer on it. A fork's path begins with
its parent's, up to the version that was forked. Calls that change nothing belong to the version that they read.

The rule: what is here follows from the records alone. Forks also have what `origins` keeps for them of their ancestors,
which may be closed; those that were made before there were origins begin with the oldest ancestor that still exists.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

from server.jsonio.strict import loads
from server.sessions.identity import Identities
from server.sessions.records import Records
from server.stores.base import Record, SessionStore, StoredSession

READ_AT_ONCE = 64
REMEMBERED = 64  # sessions of which a server knows how their records follow each other

_RESET = b'"kind":"reset"'
_START = 64  # bytes of a record in which its kind stands


class Step(NamedTuple):
    """A record of a path, by its session and its index there."""

    session_id: str
    record: int


@dataclass(slots=True)
class _History:
    """How the records of one session follow each other.

    Attributes:
        before: For each record, the one before it on its path; -1 before the first.
        last: For each version, the last record of its path; -1 if there is none.
        last_id: The id of the last record that was read.
    """

    before: list[int] = field(default_factory=list)
    last: dict[int, int] = field(default_factory=lambda: {0: -1})
    tip: int = -1
    last_id: str = ""

    def add(self, record: Record, text: bytes) -> None:
        self.before.append(self.tip)
        if _RESET in text[:_START]:
            self.tip = self.last.get(loads(text)["to_version"], -1)
        else:
            self.tip = record.index
        self.last[record.version] = self.tip
        self.last_id = record.id

    def path(self, version: int) -> list[int]:
        indices = []
        index = self.last.get(version, -1)
        while index >= 0:
            indices.append(index)
            index = self.before[index]
        return indices[::-1]


class Paths:
    """Finds the paths of sessions.

    Args:
        store: The store.
        records: Reads records.
        identities: Says whether a stored session is as it was created.
    """

    def __init__(self, store: SessionStore, records: Records, identities: Identities) -> None:
        self._store = store
        self._records = records
        self._identities = identities
        self._known = lru_cache(maxsize=REMEMBERED)(lambda _session_id: [_History()])

    def steps(self, session: StoredSession, version: int) -> list[Step]:
        """Get the path of a version of a session.

        Raises:
            StateDamagedError: A record was damaged or forged.
        """
        parts: list[list[Step]] = []
        while True:
            indices = self._history(session.id).path(version)
            parts.append([Step(session.id, index) for index in indices])
            parent, version = session.parent or ("", 0)
            found = self._store.get(parent) if parent else None
            if found is None or not self._identities.fits(found[0]):
                return [step for part in reversed(parts) for step in part]
            session = found[0]

    def own(self, session: StoredSession, version: int) -> list[Step]:
        """Get that part of the path of a version that is the session's own; raises as `steps`."""
        return [Step(session.id, index) for index in self._history(session.id).path(version)]

    def read(self, steps: Sequence[Step]) -> Iterator[tuple[Step, bytes]]:
        """Read the records of some steps, as clients see them; it ends at one that was deleted meanwhile."""
        start = 0
        while start < len(steps):
            session_id, first = steps[start]
            count = 1
            while steps[start + count : start + count + 1] == [(session_id, first + count)] and count < READ_AT_ONCE:
                count += 1
            found = self._store.records(session_id, first - 1, count)
            for step, record in zip(steps[start : start + count], found, strict=False):
                yield step, self._records.read(session_id, record)[0]
            if len(found) < count:
                return
            start += count

    def _history(self, session_id: str) -> _History:
        """Read the records that came since the last time; another thread may do the same."""
        holder = self._known(session_id)
        known = holder[0]
        count = len(known.before)
        found = self._store.records(session_id, count - 2, READ_AT_ONCE)
        if count and not (found and found[0].id == known.last_id):
            known, count = _History(), 0  # a store has lost its newest records, and got others
            found = self._store.records(session_id, -1, READ_AT_ONCE)
        history = _History(known.before.copy(), known.last.copy(), known.tip, known.last_id)
        found = found[1:] if count else found
        more = len(found) >= READ_AT_ONCE - 1
        while found:
            for record in found:
                history.add(record, self._records.read(session_id, record)[0])
            found = self._store.records(session_id, len(history.before) - 1, READ_AT_ONCE) if more else []
        holder[0] = history
        return history
