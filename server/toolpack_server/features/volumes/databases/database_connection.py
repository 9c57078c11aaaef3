"""Connection of a call to its database, and the restrictions on its SQL.

Agents might send SQL, so the restrictions apply to all SQL. SQLite enforces the restrictions through its authorizer,
its limits, and the way the file is opened. Nothing in this module refers to the call or the `Database`, so a function
that keeps a connection keeps nothing else alive.
"""

import _sqlite3
import contextlib
import ctypes
import os
import re
import sqlite3
import time
import weakref
from collections.abc import Callable, Iterable
from typing import Any, NoReturn, cast

from toolpack_server.base.errors import OverloadedError
from toolpack_server.features.volumes.databases.database_file import DatabaseFile
from toolpack_server.volumes.scratch import FULL_TEXT, is_full

PATTERN_BYTES = 1000  # maximum size of a LIKE or GLOB pattern
MEMORY_BYTES = 2**28  # smallest value of SQLite's memory limit in a process; see `memory_bytes`
# Instructions of SQLite's virtual machine between two checks of the deadline, which take some milliseconds.
STEPS = 20_000

_NO_ATTACH = "ATTACH, DETACH and VACUUM INTO aren't allowed in a session's database"
_VACUUM_ALONE = "SQL with the word ATTACH can't run VACUUM: run VACUUM by itself"
_FUNCTIONS = {"load_extension", "fts3_tokenizer"}
# Settings that SQL can read but not set.
_FIXED = {
    *("writable_schema", "max_page_count", "trusted_schema", "cell_size_check", "page_size", "auto_vacuum"),
    *("query_only", "temp_store_directory", "data_store_directory"),
    *("hard_heap_limit", "soft_heap_limit"),  # these settings limit the whole process
}
# Settings that SQL can neither read nor set. SQLite ignores a PRAGMA for them.
_DURABILITY = {
    *("journal_mode", "synchronous", "locking_mode", "wal_checkpoint", "wal_autocheckpoint", "journal_size_limit"),
    *("mmap_size", "temp_store", "busy_timeout"),
}
_VACUUM = re.compile(r"\bvacuum\b", re.IGNORECASE)
_ATTACH = re.compile(r"\battach\b", re.IGNORECASE)
_MAX_BYTES = 10**9  # SQLite's own limit
# With trusted_schema=ON, a schema can use SQLite's own functions and tables. They are safe except for `_FUNCTIONS`,
# which the authorizer refuses. With OFF, SQLite before 3.41 refuses JSON, full text and R-tree in views, triggers,
# CHECKs and indexes.
_PRAGMAS = ("trusted_schema=ON", "cell_size_check=ON", "temp_store=MEMORY")

FULL = "database or disk is full"
UNKNOWN = "the committed changes aren't known, because the connection could not be closed"
_NO_ROOM = (FULL, "disk I/O error", "unable to open database file", UNKNOWN)  # SQLite's messages for a full disk
CLOSED = "Cannot operate on a closed database."
INTERRUPTED = "interrupted"
READ_ONLY = "attempt to write a readonly database"
_TOO_BIG, _PATTERN_TOO_LONG = "string or blob too big", "LIKE or GLOB pattern too complex"


class _Rules:
    """State of one connection's authorizer.

    Attributes:
        denied: Reason for the last refusal, or "".
        script: The SQL that is running, which consists of one or several statements. None if the SQL isn't known.
        max_memory: If SQLite holds more bytes than this in the process, the statement is interrupted.
        is_over_memory: Whether the last check found more bytes than `max_memory`.
        ends: Deadline of the statement on the monotonic clock. None means no deadline.
    """

    __slots__ = ("denied", "ends", "is_over_memory", "max_memory", "script")

    def __init__(self) -> None:
        self.denied = ""
        self.script: str | None = None
        self.max_memory = 0
        self.is_over_memory = False
        self.ends: float | None = None

    def check_progress(self) -> bool:
        """Return whether to interrupt the statement.

        SQLite calls this method during long statements. If the function's deadline passes then, the interpreter can
        raise the deadline exception here.
        """
        self.is_over_memory = _memory_used() > self.max_memory
        return self.is_over_memory or (self.ends is not None and time.monotonic() > self.ends)

    def authorize(self, action: int, first: str | None, second: str | None, _name: object, _inner: object) -> int:
        """Return whether SQLite allows, ignores or refuses an action. SQLite calls this when it prepares a statement.

        `first` and `second` depend on the action, for example the name and the value of a PRAGMA. See
        https://www.sqlite.org/c3ref/set_authorizer.html.
        """
        if action == sqlite3.SQLITE_PRAGMA:
            return self._pragma((first or "").lower(), second)
        if action == sqlite3.SQLITE_FUNCTION and (second or "").lower() in _FUNCTIONS:
            self.denied = f"{second}() isn't allowed in a session's database"
            return sqlite3.SQLITE_DENY
        if action == sqlite3.SQLITE_DETACH or (action == sqlite3.SQLITE_ATTACH and (first or self._attaches())):
            # SQLite runs a VACUUM by attaching a file with an empty name. If the SQL also contains the word ATTACH, an
            # ATTACH by the author could look the same, so both are refused. Only the error message differs.
            is_vacuum = first == "" and action == sqlite3.SQLITE_ATTACH and _VACUUM.search(self.script or "")
            self.denied = _VACUUM_ALONE if is_vacuum else _NO_ATTACH
            return sqlite3.SQLITE_DENY
        return sqlite3.SQLITE_OK

    def _pragma(self, name: str, value: str | None) -> int:
        """Return whether SQLite allows, ignores or refuses a PRAGMA.

        `value` is None if the PRAGMA only reads the setting.
        """
        if name in _DURABILITY:
            return sqlite3.SQLITE_IGNORE
        if name in _FIXED and value is not None:
            self.denied = f"PRAGMA {name} can't be set: the server sets it"
            return sqlite3.SQLITE_DENY
        return sqlite3.SQLITE_OK

    def _attaches(self) -> bool:
        """Return whether the SQL might contain an ATTACH.

        If it doesn't, SQLite itself attaches a file to run a VACUUM.
        """
        return self.script is None or _ATTACH.search(self.script) is not None


class SessionCursor(sqlite3.Cursor):
    """Cursor that passes its SQL to the authorizer, because SQLite passes only single actions."""

    def execute(self, sql: str, parameters: Any = (), /) -> "SessionCursor":
        rules: _Rules = self.connection.rules  # type: ignore[attr-defined]
        rules.script = sql
        try:
            super().execute(sql, parameters)
        finally:
            rules.script = None
        return self

    def executescript(self, sql_script: str, /) -> "SessionCursor":
        rules: _Rules = self.connection.rules  # type: ignore[attr-defined]
        rules.script = sql_script
        try:
            super().executescript(sql_script)
        finally:
            rules.script = None
        return self


class SessionConnection(sqlite3.Connection):
    """Connection of one call to its database. It refuses methods that could bypass the restrictions.

    Attributes:
        rules: State of the authorizer.
        before_close: Hook that runs before the function closes the connection. It is None afterwards.
    """

    rules: _Rules
    before_close: Callable[[], None] | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._opened: weakref.WeakSet[Any] = weakref.WeakSet()
        self.rules = _Rules()

    def cursor(self, factory: Any = SessionCursor) -> Any:
        cursor = super().cursor(factory)
        self._opened.add(cursor)
        return cursor

    def execute(self, sql: str, parameters: Any = (), /) -> Any:
        return self.cursor().execute(sql, parameters)

    def executemany(self, sql: str, parameters: Iterable[Any], /) -> Any:
        return self.cursor().executemany(sql, parameters)

    def executescript(self, sql_script: str, /) -> Any:
        return self.cursor().executescript(sql_script)

    def blobopen(self, *args: Any, **kwargs: Any) -> Any:
        blob = super().blobopen(*args, **kwargs)
        self._opened.add(blob)
        return blob

    def close(self) -> None:
        """Close the connection, its cursors and its blobs. A live cursor would keep the file open and locked."""
        if self.before_close is not None:
            hook, self.before_close = self.before_close, None
            hook()
        for opened in [*self._opened]:
            opened.close()
        super().close()

    def __del__(self) -> None:
        # Close the connection of an author's own instance, which no other code closes. Otherwise Python 3.13 and later
        # would warn.
        with contextlib.suppress(sqlite3.Error):
            super().close()

    def close_cursors(self) -> None:
        """Close all cursors and blobs of the connection."""
        for opened in [*self._opened]:
            opened.close()

    def backup(self, *_args: Any, **_kwargs: Any) -> NoReturn:
        _refuse("backup")

    def serialize(self, *_args: Any, **_kwargs: Any) -> NoReturn:
        _refuse("serialize")

    def deserialize(self, *_args: Any, **_kwargs: Any) -> NoReturn:
        _refuse("deserialize")

    def set_authorizer(self, *_args: Any, **_kwargs: Any) -> NoReturn:
        _refuse("set_authorizer")

    def enable_load_extension(self, *_args: Any, **_kwargs: Any) -> NoReturn:
        _refuse("enable_load_extension")

    def load_extension(self, *_args: Any, **_kwargs: Any) -> NoReturn:
        _refuse("load_extension")

    def setconfig(self, *_args: Any, **_kwargs: Any) -> NoReturn:
        _refuse("setconfig")

    def set_deadline(self, ends: float | None) -> None:
        """Set the deadline of statements, on the monotonic clock. None means no deadline."""
        self.rules.ends = ends

    def set_progress_handler(self, progress_handler: Callable[[], Any] | None, n: int) -> None:
        """Set a progress handler.

        The checks of the deadline and the memory still run. An `n` below 1 removes the handler.
        """
        check = self.rules.check_progress
        if progress_handler is None or n < 1:
            super().set_progress_handler(check, STEPS)
        else:
            super().set_progress_handler(lambda: progress_handler() or check(), min(n, STEPS))


def _memory_counter() -> Callable[[], int]:
    """Return SQLite's function that counts its bytes in the process.

    If that function isn't accessible, return a function that returns 0.
    """
    try:
        counter = ctypes.CDLL(_sqlite3.__file__).sqlite3_memory_used
    except (AttributeError, OSError):  # the sqlite3 module is built in, or hides the library's symbols
        return lambda: 0
    counter.argtypes, counter.restype = [], ctypes.c_int64
    return cast("Callable[[], int]", counter)


_memory_used = _memory_counter()


def value_bytes(max_bytes: int) -> int:
    """Return the maximum size of a value or a row in a database of at most `max_bytes`."""
    return min(max(max_bytes // 16, 2**20), _MAX_BYTES)


def memory_bytes(max_bytes: int) -> int:
    """Return SQLite's memory limit in the whole process, for databases of at most `max_bytes`."""
    return max(MEMORY_BYTES, 4 * max_bytes)


def open_connection(file: DatabaseFile, max_bytes: int, *, read_only: bool, pinned: bool) -> SessionConnection:
    """Open a connection to a file. A connection that can write must be the only connection to its file.

    Args:
        max_bytes: The maximum size of the database, from which the memory limits follow.
        pinned: Whether SQL's time and random functions use Python's clock and random numbers, which the session has
            fixed.
    """
    mode = "mode=ro&immutable=1" if read_only else "mode=rw"
    connection = sqlite3.connect(f"{file.uri}?{mode}", uri=True, check_same_thread=False, factory=SessionConnection)
    # SQLite's limit applies to the whole process. When it is reached, every allocation fails, even in the store. So a
    # statement is interrupted at three quarters of the limit, and the rest is reserved for short statements of other
    # connections.
    connection.rules.max_memory = memory_bytes(max_bytes) // 4 * 3
    pragmas = [*_PRAGMAS, f"hard_heap_limit={memory_bytes(max_bytes)}"]
    if not read_only:
        # The connection is the only user of the file, so SQLite needs no shared memory and never waits for a lock.
        pragmas += ["locking_mode=EXCLUSIVE", "journal_mode=WAL", "wal_autocheckpoint=0", "synchronous=OFF"]
        pragmas += [f"max_page_count={max(max_bytes // file.page_size, 1)}"]
    if file.foreign_keys:
        pragmas += ["foreign_keys=ON"]
    try:
        for pragma in pragmas:
            sqlite3.Connection.execute(connection, f"PRAGMA {pragma}").close()
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, value_bytes(max_bytes))
        connection.setlimit(sqlite3.SQLITE_LIMIT_SQL_LENGTH, min(max_bytes, _MAX_BYTES))
        connection.setlimit(sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH, PATTERN_BYTES)
        # SQLite doesn't call the authorizer for a CHECK in the file's schema, and versions before 3.41 allow
        # fts3_tokenizer there.
        for count in (1, 2):
            connection.create_function("fts3_tokenizer", count, _no_tokenizer)
        if pinned:
            pin_functions(connection, value_bytes(max_bytes))
        sqlite3.Connection.set_authorizer(connection, connection.rules.authorize)
        sqlite3.Connection.set_progress_handler(connection, connection.rules.check_progress, STEPS)
    except BaseException:
        # Close it now, because the error's traceback would otherwise keep the connection open and the file locked.
        connection.close()
        raise
    return connection


def explain(
    error: BaseException, rules: _Rules | None, file: DatabaseFile | None, read_only: str, max_bytes: int
) -> BaseException:
    """Add the reason to the message of an error from SQLite.

    Args:
        rules: State of the connection's authorizer. None if there is no connection.
        file: The database's file, whose free space is checked. None skips this check.
        read_only: Reason why the database must not be changed, or "".
        max_bytes: Maximum size of the database.

    Returns:
        The error, or an `OverloadedError` if the disk is full.
    """
    if isinstance(error, MemoryError) and not error.args and rules is not None:
        error.args = (_memory_text(max_bytes),)
    if not isinstance(error, sqlite3.Error) or len(error.args) != 1 or not isinstance(error.args[0], str):
        return error
    text = error.args[0].replace("authorization denied", "not authorized")  # SQLite's message for VACUUM INTO
    if text.startswith("not authorized") and rules is not None and rules.denied:
        error.args = (f"{text}: {rules.denied}",)
    elif text.startswith("unsafe use of ") and text[14:-2] in _FUNCTIONS:  # the function is used in a view or a trigger
        error.args = (f"{text}: {text[14:]} isn't allowed in a session's database",)
    elif text == READ_ONLY and read_only:
        error.args = (f"{text}: {read_only}",)
    elif text == INTERRUPTED and rules is not None and rules.is_over_memory:
        error.args = (f"{text}: {_memory_text(max_bytes)}",)
    elif text == _TOO_BIG:
        error.args = (f"{text}: a value or a row may have at most {value_bytes(max_bytes)} bytes",)
    elif text == _PATTERN_TOO_LONG:
        error.args = (f"{text}: a pattern may have at most {PATTERN_BYTES} bytes",)
    elif text == CLOSED:
        error.args = (f"{text[:-1]}: declare the parameter as a Database, whose connect() opens a new connection",)
    elif text in _NO_ROOM and file is not None and is_full(file.path.parent):
        return OverloadedError(FULL_TEXT)
    elif text == FULL:
        error.args = (f"{text}: the database may have at most {max_bytes} bytes (TOOLPACK_MAX_VOLUME_BYTES)",)
    return error


def _memory_text(max_bytes: int) -> str:
    return f"SQLite may hold at most {memory_bytes(max_bytes)} bytes in a process: use smaller statements"


def _refuse(method: str) -> NoReturn:
    """Raise the error for a method or function that a session's database doesn't allow."""
    raise sqlite3.NotSupportedError(f"{method} isn't allowed in a session's database")


def _no_tokenizer(*_arguments: object) -> NoReturn:
    _refuse("fts3_tokenizer")


# Pinned clock and random functions


_TIMES = dict.fromkeys(("date", "time", "datetime", "julianday", "unixepoch"), (0, 1)) | {"strftime": (1, 2)}
"""SQL functions for times, each with the index of the first time argument and the index of the first modifier."""
if sqlite3.sqlite_version_info >= (3, 43):
    _TIMES["timediff"] = (0, 2)

# Words for the current time. SQLite before 3.42 knows only `now`. The other words also request milliseconds.
_NOW = "now"
_WITH_FRACTION = ("subsec", "subsecond") if sqlite3.sqlite_version_info >= (3, 42) else ()
_ZONES = ("localtime", "utc")  # modifiers that have no effect, because the time zone is UTC while the clock is pinned


def pin_functions(connection: sqlite3.Connection, max_bytes: int) -> None:
    """Replace SQLite's time and random functions by functions that use Python's clock and random numbers.

    Each time function replaces words such as `now` by the pinned time. Then a second connection, which still has
    SQLite's own functions, computes the result.

    Args:
        connection: The connection whose functions are replaced.
        max_bytes: Maximum size of a value.
    """
    plain = sqlite3.connect(":memory:", check_same_thread=False)

    def replacement(name: str) -> Callable[..., Any]:
        """Return the function that replaces SQLite's time function with this name."""
        first, last = _TIMES[name]

        def run(*arguments: Any) -> Any:
            times: list[Any] = [*arguments[first:last]]
            # Without a time argument, SQLite uses the current time.
            if not times and len(arguments) == first and last - first == 1:
                times.append(_NOW)
            modifiers = [each for each in arguments[last:] if _word(each) not in _ZONES]
            words = [*map(_word, times)]
            # `subsec` in place of the time means the current time with the modifier `subsec`.
            if last - first == 1 and words and words[0] in _WITH_FRACTION:
                modifiers.append(words[0])
            times = [
                _now() if word in (_NOW, *_WITH_FRACTION) else each for word, each in zip(words, times, strict=True)
            ]
            resolved = [*arguments[:first], *times, *modifiers]
            marks = ",".join("?" * len(resolved))
            return plain.execute(f"SELECT {name}({marks})", resolved).fetchone()[0]

        return run

    for name in _TIMES:
        count = 2 if name == "timediff" else -1
        connection.create_function(name, count, replacement(name), deterministic=True)
    for name, function in (("CURRENT_DATE", "date"), ("CURRENT_TIME", "time"), ("CURRENT_TIMESTAMP", "datetime")):
        connection.create_function(name, 0, replacement(function))
    connection.create_function("random", 0, lambda: int.from_bytes(os.urandom(8), signed=True))
    # SQLite refuses a value that is one byte too long, so no longer value must be created.
    connection.create_function("randomblob", 1, lambda size: os.urandom(min(max(int(size or 0), 1), max_bytes + 1)))


def _word(argument: Any) -> str:
    """Return an argument in the form in which SQLite compares it with a word, or "" if it isn't text."""
    text = argument.decode("latin-1") if isinstance(argument, bytes) else argument
    return text.partition("\0")[0].lower() if isinstance(text, str) else ""


def _now() -> str:
    """Return the current time in SQLite's format, from Python's clock."""
    seconds, rest = divmod(time.time_ns(), 10**9)
    return f"{time.strftime('%Y-%m-%d %H:%M:%S', time.gmtime(seconds))}.{rest // 10**6:03d}"
