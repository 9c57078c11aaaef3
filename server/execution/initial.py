"""The environments that sessions start with: built by their toolpacks once for each set of options, then shared.

The rule: an initial environment that can't be restored exactly is refused. They are cached in memory only, so a restart
builds them again and an edited toolpack never starts from old data.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Mapping
from threading import Lock
from typing import Any

from server.errors import SnapshotError
from server.execution.codec import Codec
from server.execution.parts import environments
from server.jsonio.strict import dumps
from server.snapshots.graph import difference

ENTRY_BYTES = 1024  # what a part takes in the cache besides its bytes


class InitialEnvironments:
    """The parts of initial environments, built once for each set of options and shared between sessions.

    Args:
        codec: Encodes them.
        max_bytes: How many bytes of them are cached.
    """

    def __init__(self, codec: Codec, max_bytes: int) -> None:
        self._codec = codec
        self._max_bytes = max_bytes
        self._size = 0
        self._built: OrderedDict[tuple[str, bytes], dict[str, tuple[str, bytes]]] = OrderedDict()
        self._lock = Lock()

    def get(self, toolpack: str, options: Mapping[str, Any]) -> dict[str, tuple[str, bytes]]:
        """Get the id and the bytes of each part of a toolpack's initial environment.

        Raises:
            InvalidParamsError: The options are invalid.
            SnapshotError: The environment holds something that can't be stored exactly.
        """
        # A digest, because options can be as large as a request.
        key = toolpack, hashlib.blake2b(dumps(options, sort_keys=True)).digest()
        with self._lock:
            if key in self._built:
                self._built.move_to_end(key)
                return self._built[key]
        # Built outside the lock: it may take long, and building it twice is harmless.
        environment = self._codec.catalog.toolpacks[toolpack].build(options)
        built = self._codec.write(toolpack, environment)
        restored = environments({part: self._codec.decode(part, *blob) for part, blob in built.items()})
        changed = difference(environment, restored[toolpack])
        if changed:
            raise SnapshotError(f"the initial environment of {toolpack!r} can't be stored exactly: {changed}")
        with self._lock:
            if key in self._built:
                return self._built[key]
            self._built[key] = built
            self._size += _size(built)
            while self._size > self._max_bytes:
                self._size -= _size(self._built.popitem(last=False)[1])
        return built


def _size(built: Mapping[str, tuple[str, bytes]]) -> int:
    return sum(ENTRY_BYTES + len(blob) for _, blob in built.values())
