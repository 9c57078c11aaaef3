"""How the versions of a session are made of changes, and which of them are kept.

The rule: nothing here touches a store. A store keeps one `Change` for each part that a commit changed and asks here
what they come to, so that all stores agree about it.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple


class Change(NamedTuple):
    """A part got a blob with a version."""

    version: int
    part: str
    blob: str


def parts_at(changes: Iterable[Change], version: int) -> dict[str, str]:
    """Get the blob id of each part of a version from the changes, which come in the order of their versions."""
    return {change.part: change.blob for change in changes if change.version <= version}


def trim(
    changes: Sequence[Change],
    kept: range,
    sizes: Mapping[str, int],
    keep_versions: int,
    keep_bytes: int,
) -> tuple[int, list[Change]]:
    """Find what `SessionStore.trim` keeps.

    Args:
        changes: The changes that are kept now, in the order of their versions.
        kept: The versions that are kept now, version 0 aside; the last one is the current one.
        sizes: The size of each blob.
        keep_versions: How many versions to keep besides the first and the current one.
        keep_bytes: How many bytes of blobs that only those versions need.

    Returns:
        The oldest version to keep, version 0 aside, and the changes that no kept version needs.
    """
    if not kept:
        return kept.start, []
    # From one version down to the one before it only those blobs are needed in addition that the later one replaced.
    replaced: dict[int, list[str]] = defaultdict(list)
    newest: dict[str, str] = {}
    for change in changes:
        if change.part in newest:
            replaced[change.version].append(newest[change.part])
        newest[change.part] = change.blob
    needed = {change.blob for change in changes if change.version == 0} | set(newest.values())
    oldest = kept[-1]
    for version in range(oldest - 1, max(kept.start, oldest - keep_versions) - 1, -1):
        more = set(replaced[version + 1]) - needed
        keep_bytes -= sum(sizes[blob] for blob in more)
        if keep_bytes < 0:
            break
        needed |= more
        oldest = version
    base: dict[str, Change] = {}
    unneeded = []
    for change in changes:
        if change.version > oldest:
            break
        before = base.get(change.part)
        if before is not None and before.version > 0:
            unneeded.append(before)
        base[change.part] = change
    return oldest, unneeded
