"""Rules that all stores share, about valid commits, versions, trimming, size limits and store time.

These functions don't access a store. A store keeps a `Change` for each part that a commit changed, and calls these
functions with its own data. So all stores behave the same.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from toolpack_server.stores.base import Commit

T = TypeVar("T")

GAP_SECONDS = 60.0
"""Maximum seconds between two readings of the clock that count as elapsed for sessions' TTLs."""
NOTE_SECONDS = 10.0
"""Interval, in seconds, at which a store saves its last reading of the clock."""


@dataclass(slots=True)
class SessionHead:
    """Lease and last record of a session, which its next commit must match."""

    epoch: int
    holder: str | None
    last_index: int  # index of the last record; -1 if there are no records
    last: str  # id of the last record; "" if there are no records


def follows(head: SessionHead, commit: Commit) -> bool:
    """Return whether a commit has the session's lease and follows its last record.

    The Redis store repeats this rule in `script.lua`.
    """
    return (
        commit.epoch == head.epoch
        and (commit.holder is None or commit.holder == head.holder)
        and commit.record.index == head.last_index + 1
        and commit.after == head.last
    )


class Change(NamedTuple):
    """A change to a part. From `version` on, the part's content is `blob`."""

    version: int
    part: str
    blob: str


def parts_at(changes: Iterable[Change], version: int) -> dict[str, str]:
    """Return the blob id of each part of a version. `changes` must be in version order."""
    return {change.part: change.blob for change in changes if change.version <= version}


def trim(
    changes: Sequence[Change], kept: range, sizes: Mapping[str, int], keep_versions: int, keep_bytes: int
) -> tuple[int, list[Change]]:
    """Compute the versions that `SessionStore.trim` keeps.

    Args:
        changes: The stored changes, in version order.
        kept: The stored versions, except version 0. The last of them is the current version.
        sizes: Sizes of the blobs in bytes, by blob id.
        keep_versions: Maximum number of versions to keep, besides version 0 and the current version.
        keep_bytes: Maximum total size of the blobs that only these old versions need.

    Returns:
        The oldest version to keep, except version 0, and the changes that no kept version needs.
    """
    if not kept:
        return kept.start, []
    # To keep one more old version, keep the blobs that the next version has replaced.
    replaced: dict[int, list[str]] = defaultdict(list)
    newest: dict[str, str] = {}
    for version, part, blob in changes:
        if part in newest:
            replaced[version].append(newest[part])
        newest[part] = blob
    needed = {blob for version, _, blob in changes if version == 0}.union(newest.values())
    oldest = kept[-1]
    for version in range(oldest - 1, max(kept.start, oldest - keep_versions) - 1, -1):
        for blob in replaced[version + 1]:
            if blob not in needed:
                needed.add(blob)
                keep_bytes -= sizes[blob]
        if keep_bytes < 0:
            break
        oldest = version
    # In the oldest kept version, a part's content comes from its last change up to that version. Earlier changes aren't
    # needed.
    last: dict[str, Change] = {}
    unneeded = []
    for change in changes:
        version, part, _ = change
        if version > oldest:
            break
        before = last.get(part)
        if before is not None and before.version > 0:
            unneeded.append(before)
        last[part] = change
    return oldest, unneeded


def to_note(last_reading: float | None, uncounted: float, clock: float) -> tuple[float, float] | None:
    """Return the reading of the clock to save, and the new total of uncounted seconds; see `count_time`.

    Return None if nothing needs to be saved yet. The Redis store repeats this rule in `script.lua`.
    """
    if last_reading is None:
        return clock, uncounted
    if last_reading <= clock < last_reading + NOTE_SECONDS:
        return None
    gap = clock - last_reading
    return clock, uncounted + (gap if abs(gap) > GAP_SECONDS else 0.0)


def fitting(items: Iterable[T], size: Callable[[T], int], max_bytes: int | None) -> list[T]:
    """Return the first items whose total size is at most `max_bytes` bytes, but at least the first item."""
    selected: list[T] = []
    total = 0
    for item in items:
        total += size(item)
        if selected and max_bytes is not None and total > max_bytes:
            break
        selected.append(item)
    return selected
