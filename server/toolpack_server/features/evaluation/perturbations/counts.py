"""What an agent has called so far on a session's path, by which rules count.

It is written with each record of a session that has rules, and is known from the last one alone. It follows
from the records of a path, so it can be counted anew for a fork that gets rules which its parent hasn't.
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

NAME = "perturbations"  # of the parameter, and among the details of a session
COUNTS = "counts"  # among the details of a fork: what had been called on its path when it began
UNKNOWN = ""  # stands for all functions that the session hasn't


class Counts(NamedTuple):
    """What an agent has called on a path."""

    calls: Mapping[str, int] = {}  # how often each function
    delay: float = 0.0  # by how many seconds rules have moved the clock on

    def __bool__(self) -> bool:
        return bool(self.calls) or self.delay > 0

    @classmethod
    def read(cls, written: Sequence[Any] | None) -> "Counts":
        return cls(*written) if written else cls()

    def written(self) -> list[Any]:
        return [self.calls, self.delay]

    def after(self, kind: RecordKind, shown: Shown, functions: Functions) -> "Counts":
        """Get it as of the next record, which doesn't go back on the path."""
        if not kind.is_call or shown.get("by") != AGENT:
            return self
        calls = dict(self.calls)
        for name in [*(each["function"] for each in shown.get("nested", ())), shown["function"]]:
            called = functions.called.get(name, UNKNOWN)
            calls[called] = calls.get(called, 0) + 1
        return self._replace(calls=calls)


def counts_at(session: StoredSession, last: int, paths: Paths) -> Counts:
    """Get what was called in a session with rules, by what is stored.

    Args:
        last: The index of the last record to take into account; -1: only what the session has inherited.
    """
    if last < 0:
        return Counts.read(details_of(session).get(COUNTS))
    return Counts.read(loads(paths.private(session.id, last))[COUNTS])


def counts_before(
    parent: StoredSession, head: Head, version: int, paths: Paths, kinds: RecordKinds, functions: Functions
) -> Counts:
    """Get what was called on the path of a version that is forked."""
    if NAME in details_of(parent):
        return counts_at(parent, paths.end(parent.id, version, head.index), paths)
    counts = Counts()
    for _, line in paths.lines(parent, version):
        shown = loads(line)
        counts = counts.after(kinds[shown["kind"]], shown, functions)
    return counts
