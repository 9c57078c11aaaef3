"""What a feature with a store may import besides `api`: the contract of stores, and what those that last share.

Nothing is defined here.
"""

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
from toolpack_server.base.forked import in_forked, let_go
from toolpack_server.base.store_url import SQLITE
from toolpack_server.features.stores.rows import RECIPE_CACHE_BYTES, decoder, digest, labels_match, load, undamaged
from toolpack_server.stores.base import (
    HELD_SECONDS,
    NO_HISTORY,
    Commit,
    Counted,
    ForkPoint,
    Head,
    History,
    Lease,
    Record,
    SessionQuery,
    SharedStore,
    StoredSession,
    family_of,
)
from toolpack_server.stores.history import (
    GAP_SECONDS,
    NOTE_SECONDS,
    Change,
    Tip,
    fitting,
    follows,
    parts_at,
    to_note,
    trim,
)
from toolpack_server.stores.outside import DIGITS, MARK, MAX_STUB_BYTES, name_of, size_of, stub

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
    "Counted",
    "ForkPoint",
    "Head",
    "History",
    "Lease",
    "MissingBlobError",
    "OverloadedError",
    "Record",
    "SessionNotFoundError",
    "SessionQuery",
    "SettingsError",
    "SharedStore",
    "StateDamagedError",
    "StoreInUseError",
    "StoredSession",
    "Tip",
    "VersionNotRetainedError",
    "decoder",
    "digest",
    "family_of",
    "fitting",
    "follows",
    "in_forked",
    "labels_match",
    "let_go",
    "load",
    "name_of",
    "parts_at",
    "shown",
    "size_of",
    "stub",
    "to_note",
    "trim",
    "undamaged",
]
