"""SQLite's errors as those of a store.

The rule: what passes by itself or by an operator's hand is an `OverloadedError`; a file that can't be read any more is
damaged; what only a bug of ours can cause stays what it is.
"""

import sqlite3

from server.base.errors import OverloadedError, StateDamagedError


def is_busy(error: sqlite3.OperationalError) -> bool:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY


def translate(error: BaseException) -> None:
    """Raise an error of SQLite as one of a store; do nothing about others."""
    # Locked by another process, disk full, file not writable; or SQLite may hold no more memory in this process.
    if isinstance(error, sqlite3.OperationalError | MemoryError):
        why = str(error) or "no memory"
        raise OverloadedError(f"The store can't be used now ({why}); nothing was changed.") from error
    if type(error) is sqlite3.DatabaseError:  # its other subclasses are bugs of ours
        raise StateDamagedError(f"The store's file is damaged ({error}): restore a backup of it.") from error


class _TranslatedErrors:
    """A context manager. Not a generator: to enter one takes five times as long, and every call does."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if error is not None:
            translate(error)


translated_errors = _TranslatedErrors()
