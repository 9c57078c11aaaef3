"""Snapshot: the environments of a session at one version, as the input of calls and other operations."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Snapshot:
    """The environments of a session at one version.

    A call removes the live objects that it uses from the snapshot, so that no other call uses them at the same time.
    """

    parts: Mapping[str, str]  # the blob id of each part
    blobs: Mapping[str, bytes]  # the bytes of each part
    # By part: the decoded object that equals the part's bytes, or a reference to this object in an executor.
    live: dict[str, Any] = field(default_factory=dict)


Versions = Callable[[int], Snapshot]
"""Function that returns the environments of the version with a number. It raises `RequestError` if they don't exist."""
