"""The records of a session, and the history of one that is moved from another store.

The rule: as in `base`, a store doesn't know what they mean.
"""

import os
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

# A generator of its own, seeded by the system: to ask that for each id takes longer. Nobody has to be unable to guess
# them. Another process that begins as a copy of this one gets others.
_ids = random.Random()  # noqa: S311 - see above
os.register_at_fork(after_in_child=_ids.seed)


def new_record_id() -> str:
    """Make an id that no other record has."""
    return f"{_ids.getrandbits(64):016x}"


@dataclass(frozen=True, slots=True)
class Record:
    """One line of a session's trace."""

    index: int  # its position in the trace, from 0, without gaps
    version: int  # the session's version after it: the one before or the next
    call_id: str | None
    body: bytes  # JSON text; opaque to the store
    id: str = field(default_factory=new_record_id)  # by which the next commit names it


@dataclass(frozen=True, slots=True)
class History:
    """What a session has gone through elsewhere.

    The changes are, for each version above 0 that is kept, in order and without gaps, the blob id of each part that
    differs from the version kept before it. The last one is the current version.
    """

    changes: Mapping[int, Mapping[str, str]] = field(default_factory=dict)
    records: Sequence[Record] = ()

    @property
    def version(self) -> int:
        return max(self.changes, default=0)

    @property
    def oldest(self) -> int:
        return min(self.changes, default=1)

    def rows(self) -> list[tuple[int, str, str]]:
        """Get the changes as version, part and blob, in order."""
        return [(version, *change) for version in sorted(self.changes) for change in self.changes[version].items()]


NO_HISTORY = History()
