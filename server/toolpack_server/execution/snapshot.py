"""The environments of a session at one version, as they are passed to what runs on them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Snapshot:
    """The environments of a session as passed to a call, which may take live objects out of it."""

    parts: Mapping[str, str]  # the blob id of each part
    blobs: Mapping[str, bytes]  # the bytes of each part
    # Objects that are equal to the bytes of their part, or where an executor holds them.
    live: dict[str, Any] = field(default_factory=dict)


Versions = Callable[[int], Snapshot]
"""Gets the environments of another version; a `RequestError` if there are none."""
