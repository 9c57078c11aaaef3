"""Snapshot: the environments of a session at one version, as input of calls and other operations."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Snapshot:
    """The environments of a session at one version. A call takes the live objects that it uses out of it."""

    parts: Mapping[str, str]  # the blob id of each part
    blobs: Mapping[str, bytes]  # the bytes of each part
    # By part: the live object that equals the bytes, or a reference to it in an executor.
    live: dict[str, Any] = field(default_factory=dict)


Versions = Callable[[int], Snapshot]
"""Function that returns the environments of another version. It raises `RequestError` if they don't exist."""
