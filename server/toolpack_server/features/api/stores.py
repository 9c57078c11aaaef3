"""Further public names for features that provide a store: the store's interface, and helpers for persistent stores.

This module only re-exports names.
"""

from toolpack_server.base.after_fork import detach, run_after_fork
from toolpack_server.base.cache import BoundedCache
from toolpack_server.base.errors import (
    MissingBlobError,
    OverloadedError,
    SessionNotFoundError,
    SettingsError,
    StateDamagedError,
    StoreInUseError,
    VersionNotRetainedError,
    shown,
)
from toolpack_server.base.store_url import SQLITE
from toolpack_server.features.stores.rows import RECIPE_CACHE_BYTES, decoder, digest, labels_match, load, undamaged
from toolpack_server.stores.base import (
    HELD_SECONDS,
    NO_HISTORY,
    Commit,
    ForkPoint,
    Head,
    History,
    Lease,
    Record,
    SessionQuery,
    SharedStore,
    StoreClock,
    StoredSession,
)
from toolpack_server.stores.blob_stubs import DIGITS, MARK, MAX_STUB_BYTES, name_of, size_of, stub
from toolpack_server.stores.history import (
    GAP_SECONDS,
    NOTE_SECONDS,
    Change,
    SessionHead,
    fitting,
    follows,
    parts_at,
    to_note,
    trim,
)

__all__ = [
    "DIGITS",
    "GAP_SECONDS",
    "HELD_SECONDS",
    "MARK",
    "MAX_STUB_BYTES",
    "NOTE_SECONDS",
    "NO_HISTORY",
    "RECIPE_CACHE_BYTES",
    "SQLITE",
    "BoundedCache",
    "Change",
    "Commit",
    "ForkPoint",
    "Head",
    "History",
    "Lease",
    "MissingBlobError",
    "OverloadedError",
    "Record",
    "SessionHead",
    "SessionNotFoundError",
    "SessionQuery",
    "SettingsError",
    "SharedStore",
    "StateDamagedError",
    "StoreClock",
    "StoreInUseError",
    "StoredSession",
    "VersionNotRetainedError",
    "decoder",
    "detach",
    "digest",
    "fitting",
    "follows",
    "labels_match",
    "load",
    "name_of",
    "parts_at",
    "run_after_fork",
    "shown",
    "size_of",
    "stub",
    "to_note",
    "trim",
    "undamaged",
]
