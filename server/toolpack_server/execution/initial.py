"""The environments that sessions start with: built by their toolpacks once for each set of options, then shared.

An initial environment that can't be restored exactly is refused. They are cached in memory only, so a restart
builds them again and an edited toolpack never starts from old data.
"""

import hashlib
from collections.abc import Callable, Mapping
from typing import Any

from toolpack_server.base.cache import BoundedCache
from toolpack_server.base.errors import SnapshotError
from toolpack_server.execution.conditions import ExecutionPolicy, held
from toolpack_server.execution.parts import environments
from toolpack_server.execution.world import ExecutionContext
from toolpack_server.jsonio.strict import dumps
from toolpack_server.snapshots.comparison import difference
from toolpack_server.volumes.volume import is_piece

Built = dict[str, tuple[str, bytes]]
"""The blob id and the bytes of each part of an environment."""

ENTRY_BYTES = 1024  # what a part takes in the cache besides its bytes


def build(
    context: ExecutionContext, toolpack: str, options: Mapping[str, Any], conditions: ExecutionPolicy | None = None
) -> Built:
    """Build a toolpack's initial environment, under conditions; raises as `Toolpack.build` and `encode`.

    A passed deadline interrupts the author's code, and the SQL of a database.
    """
    codec = context.codec
    with held(conditions), context.interruptible:
        environment = codec.catalog.toolpacks[toolpack].build(options)
    payloads = codec.freeze_parts(toolpack, environment, context.interruptible)
    # Seeded sessions, whose environments are built anew for each of them, mostly start from the same bytes.
    frozen = {part: payload for part, payload in payloads.items() if not is_piece(part)}
    digests = tuple((part, hashlib.blake2b(payload).digest()) for part, payload in frozen.items())
    if not codec.exact.get(digests):
        restored = environments({part: codec.thawed(payload) for part, payload in frozen.items()})
        changed = difference(environment, restored[toolpack])
        if changed:
            raise SnapshotError(f"the initial environment of {toolpack!r} can't be stored exactly: {changed}")
        codec.exact.put(digests, value=True)
    return codec.seal_all(payloads)


def parse(
    context: ExecutionContext, toolpack: str, environment: Any, conditions: ExecutionPolicy | None = None
) -> Built:
    """Build a toolpack's environment from JSON; interrupted, and raises, as `build`."""
    codec = context.codec
    with held(conditions), context.interruptible:
        parsed = codec.catalog.toolpacks[toolpack].parse(environment)
    return codec.seal_all(codec.freeze_parts(toolpack, parsed, context.interruptible))


class InitialEnvironments:
    """The parts of initial environments, built once for each set of options and shared between sessions."""

    def __init__(self, build: Callable[[str, Mapping[str, Any]], Built], max_bytes: int) -> None:
        self._build = build
        self._built = BoundedCache[tuple[str, bytes], Built](max_bytes, _size)

    def has(self, toolpack: str) -> bool:
        """Whether a toolpack's environment without options is built."""
        return self._built.get((toolpack, b"")) is not None

    def get(self, toolpack: str, options: Mapping[str, Any]) -> Built:
        """Get the id and the bytes of each part of a toolpack's initial environment; raises as `build`."""
        # A digest, because options can be as large as a request.
        key = toolpack, hashlib.blake2b(dumps(options, sort_keys=True)).digest() if options else b""
        # Built without a lock: it may take long, and building it twice is harmless.
        return self._built.get(key) or self._built.setdefault(key, self._build(toolpack, options))


def _size(built: Built) -> int:
    return sum(ENTRY_BYTES + len(blob) for _, blob in built.values())
