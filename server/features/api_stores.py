"""What a feature with a store may import besides `api`: the contract of stores, and what those that last share.

The rule: nothing is defined here.
"""

from server.base.cache import BoundedCache
from server.base.errors import (
    MissingBlobError,
    OverloadedError,
    SessionNotFoundError,
    SettingsError,
    StateDamagedError,
    StoreInUseError,
    VersionNotRetainedError,
    shown,
)
from server.base.forked import in_forked, let_go
from server.base.store_url import SQLITE
from server.features.store_rows import RECIPE_CACHE_BYTES, decoder, digest, labels_match, load, undamaged
from server.stores.base import (
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
from server.stores.history import GAP_SECONDS, NOTE_SECONDS, Change, Tip, fitting, follows, parts_at, to_note, trim
from server.stores.outside import DIGITS, MARK, MAX_STUB_BYTES, name_of, size_of, stub

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
