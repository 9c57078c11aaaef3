"""Counts of the agent's calls on a session's path, for the conditions `calls` and `after` of rules.

Each record of a session with rules stores the counts up to that record, so a worker needs only the last record to
continue. If only a fork has rules, but not its parent, the counts are computed from the records of the path.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from toolpack_server.features.evaluation.perturbations.session_rules import Functions
from toolpack_server.jsonio.strict import loads
from toolpack_server.protocol.senders import AGENT
from toolpack_server.sessions.paths import Paths
from toolpack_server.sessions.recipes import details_of
from toolpack_server.sessions.record_kinds import RecordKind, RecordKinds, Shown
from toolpack_server.stores.base import Head, StoredSession

NAME = "perturbations"  # name of the request's parameter, and key of the rules in a session's details
COUNTS = "counts"  # key of the initial counts in a fork's details, and of the counts in a record's private data
UNKNOWN = ""  # name that counts calls to unknown functions


class Counts(NamedTuple):
    """Counts of the agent's calls on a path. In a boolean context, counts are false if nothing was counted."""

    calls: Mapping[str, int] = {}  # number of calls, by function
    delay: float = 0.0  # seconds that rules have added to the session's clock

    def __bool__(self) -> bool:
        return bool(self.calls) or self.delay > 0

    @classmethod
    def read(cls, value: Sequence[Any] | None) -> "Counts":
        return cls(*value) if value else cls()

    def to_json(self) -> list[Any]:
        return [self.calls, self.delay]

    def after(self, kind: RecordKind, shown: Shown, functions: Functions) -> "Counts":
        """Return the counts after the next record. The record must not be a reset."""
        if not kind.is_call or shown.get("by") != AGENT:
            return self
        calls = dict(self.calls)
        for name in [*(nested["function"] for nested in shown.get("nested", ())), shown["function"]]:
            function = functions.names.get(name, UNKNOWN)
            calls[function] = calls.get(function, 0) + 1
        return self._replace(calls=calls)


def counts_at(session: StoredSession, last: int, paths: Paths) -> Counts:
    """Return the stored counts of a session with rules.

    Args:
        last: The index of the last record to count. -1: return the counts when the session began, which are 0 unless
            the session is a fork.
    """
    if last < 0:
        return Counts.read(details_of(session).get(COUNTS))
    return Counts.read(loads(paths.private(session.id, last))[COUNTS])


def counts_at_fork(
    parent: StoredSession, head: Head, version: int, paths: Paths, kinds: RecordKinds, functions: Functions
) -> Counts:
    """Return a fork's initial counts: the calls on the path up to the forked version of the parent."""
    if NAME in details_of(parent):
        return counts_at(parent, paths.end(parent.id, version, head.index), paths)
    counts = Counts()
    for session_id, line in paths.lines(parent, version):
        shown = loads(line)
        if session_id == parent.id and shown["index"] > head.index:  # added after `head` was read
            break
        counts = counts.after(kinds[shown["kind"]], shown, functions)
    return counts
