"""Whether a commit follows, a session's versions from its changes, which of them to keep, what fits, which time counts.

Nothing here touches a store. Each store keeps one `Change` for each part that a commit changed and calls
these functions, so that all stores agree.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from toolpack_server.stores.base import Commit

T = TypeVar("T")

GAP_SECONDS = 60.0
"""How long nobody may look for expired sessions before that time no longer counts for their TTL."""
NOTE_SECONDS = 10.0
"""How often the time of looking is noted in the store."""


@dataclass(slots=True)
class SessionHead:
    """Where a session is, as its next commit must know it."""

    epoch: int
    holder: str | None
    place: int  # the index of its last record; -1 before the first
    last: str


def follows(tip: SessionHead, commit: Commit) -> bool:
    """Whether a commit was made under the session's lease and after its last record. `script.lua` says the same."""
    return (
        commit.epoch == tip.epoch
        and (commit.holder is None or commit.holder == tip.holder)
        and commit.record.index == tip.place + 1
        and commit.after == tip.last
    )


class Change(NamedTuple):
    """At `version`, `part` got the content `blob`."""

    version: int
    part: str
    blob: str


def parts_at(changes: Iterable[Change], version: int) -> dict[str, str]:
    """Get the blob id of each part of a version from changes in version order."""
    return {change.part: change.blob for change in changes if change.version <= version}


def trim(
    changes: Sequence[Change], kept: range, sizes: Mapping[str, int], keep_versions: int, keep_bytes: int
) -> tuple[int, list[Change]]:
    """Compute what `SessionStore.trim` keeps.

    Args:
        changes: The changes that are stored now, in version order.
        kept: The versions that are stored now, except version 0; the last one is the current one.
        keep_bytes: How many bytes the blobs that only those versions need may have in all.

    Returns:
        The oldest version to keep, except version 0, and the changes that no kept version needs.
    """
    if not kept:
        return kept.start, []
    # Keeping one more version adds only the blobs that the version after it replaced.
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
    base: dict[str, Change] = {}
    unneeded = []
    for change in changes:
        version, part, _ = change
        if version > oldest:
            break
        before = base.get(part)
        if before is not None and before.version > 0:
            unneeded.append(before)
        base[part] = change
    return oldest, unneeded


def to_note(noted: float | None, uncounted: float, clock: float) -> tuple[float, float] | None:
    """Get what to note in place of when the time was counted last, and of the seconds that didn't count.

    None if nothing is to be noted yet. `script.lua` says the same.
    """
    if noted is None:
        return clock, uncounted
    if noted <= clock < noted + NOTE_SECONDS:
        return None
    gap = clock - noted
    return clock, uncounted + (gap if abs(gap) > GAP_SECONDS else 0.0)


def fitting(items: Iterable[T], size: Callable[[T], int], max_bytes: int | None) -> list[T]:
    """Get the first items that have at most `max_bytes` bytes together, but at least one if there is one."""
    found: list[T] = []
    total = 0
    for item in items:
        total += size(item)
        if found and max_bytes is not None and total > max_bytes:
            break
        found.append(item)
    return found
