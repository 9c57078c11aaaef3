"""Initial environments of sessions, built once for each toolpack and set of options, and shared by sessions.

An initial environment is refused if storing and restoring would change it. The cache is in memory only. So after a
restart, the environments are built again, and the sessions of an edited toolpack never start from old data.
"""

import hashlib
from collections.abc import Callable, Mapping
from typing import Any

from toolpack_server.base.cache import BoundedCache
from toolpack_server.base.errors import SnapshotError
from toolpack_server.execution.parts import environments
from toolpack_server.execution.policy import ExecutionPolicy, enforce
from toolpack_server.execution.world import ExecutionContext
from toolpack_server.jsonio.strict import dumps
from toolpack_server.snapshots.comparison import difference
from toolpack_server.volumes.volume import is_piece

Built = dict[str, tuple[str, bytes]]
"""The blob id and the bytes of each part of an environment."""

ENTRY_BYTES = 1024  # estimated overhead of a part in the cache


def build(
    context: ExecutionContext, toolpack: str, options: Mapping[str, Any], policy: ExecutionPolicy | None = None
) -> Built:
    """Build a toolpack's initial environment, and encode it.

    A missed deadline interrupts the author's code and a database's SQL. Raise the same errors as `Toolpack.build` and
    `PlainCodec.encode`.
    """
    codec = context.codec
    with enforce(policy), context.interruptible:
        environment = codec.catalog.toolpacks[toolpack].build(options)
    payloads = codec.freeze_parts(toolpack, environment, context.interruptible)
    # Check below that the stored parts restore the environment exactly. Each seeded session builds its own
    # environments, usually to the same bytes, so cache the result of the check.
    frozen = {part: payload for part, payload in payloads.items() if not is_piece(part)}
    digests = tuple((part, hashlib.blake2b(payload).digest()) for part, payload in frozen.items())
    # If the environment is one chain, `frozen` is empty, and `LazyEnvironment.first_part` has made this check.
    if frozen and not codec.exact.get(digests):
        restored = environments({part: codec.thaw(payload) for part, payload in frozen.items()})
        changed = difference(environment, restored[toolpack])
        if changed:
            raise SnapshotError(f"the initial environment of {toolpack!r} can't be stored exactly: {changed}")
        codec.exact.put(digests, value=True)
    return codec.seal_all(payloads)


def parse(context: ExecutionContext, toolpack: str, environment: Any, policy: ExecutionPolicy | None = None) -> Built:
    """Build a toolpack's environment from JSON, and encode it.

    A missed deadline interrupts the author's code. Raise the same errors as `Toolpack.parse` and `PlainCodec.encode`.
    """
    codec = context.codec
    with enforce(policy), context.interruptible:
        parsed = codec.catalog.toolpacks[toolpack].parse(environment)
    return codec.seal_all(codec.freeze_parts(toolpack, parsed, context.interruptible))


class InitialEnvironments:
    """Cache of initial environments, shared between sessions: one entry for each toolpack and set of options."""

    def __init__(self, build: Callable[[str, Mapping[str, Any]], Built], max_bytes: int) -> None:
        self._build = build
        self._built = BoundedCache[tuple[str, bytes], Built](max_bytes, _size)

    def has(self, toolpack: str) -> bool:
        """Return whether a toolpack's environment without options is in the cache."""
        return self._built.get((toolpack, b"")) is not None

    def get(self, toolpack: str, options: Mapping[str, Any]) -> Built:
        """Return the id and the bytes of each part of a toolpack's initial environment. Build it if it isn't cached.

        Raise the same errors as `build`.
        """
        # A digest keeps the key small: options can be as large as a request.
        key = toolpack, hashlib.blake2b(dumps(options, sort_keys=True)).digest() if options else b""
        # No lock, because building can take long. If two threads build the same environment, both use the first result.
        return self._built.get(key) or self._built.setdefault(key, self._build(toolpack, options))


def _size(built: Built) -> int:
    return sum(ENTRY_BYTES + len(blob) for _, blob in built.values())
