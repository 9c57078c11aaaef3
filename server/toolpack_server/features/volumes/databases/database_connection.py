"""The connection that a call has to its database, and what SQL can't do there.

Agents may send SQL, so the rules hold whoever wrote it. They are enforced by SQLite itself: by its authorizer, its
limits, and how the file is opened. Nothing here refers to the call or to the database's object, so that a
connection which somebody keeps keeps nothing else.
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

PATTERN_BYTES = 1000  # of LIKE and GLOB
MEMORY_BYTES = 2**28  # that SQLite may hold in a process, unless databases may be larger than a quarter of that
STEPS = 20_000  # of SQLite's virtual machine, between two looks at whether the deadline has passed: some milliseconds

_ALONE = "a session's database stands alone: ATTACH, DETACH and VACUUM INTO aren't possible"
_BOTH_WORDS = "VACUUM must be run by itself: SQL that has the word ATTACH, too, isn't allowed to"
_FUNCTIONS = {"load_extension", "fts3_tokenizer"}
_FIXED = {
    *("writable_schema", "max_page_count", "trusted_schema", "cell_size_check", "page_size", "auto_vacuum"),
    *("query_only", "temp_store_directory", "data_store_directory"),
    *("hard_heap_limit", "soft_heap_limit"),  # of the whole process
}
_DURABILITY = {
    *("journal_mode", "synchronous", "locking_mode", "wal_checkpoint", "wal_autocheckpoint", "journal_size_limit"),
    *("mmap_size", "temp_store", "busy_timeout"),
}
_VACUUM = re.compile(r"\bvacuum\b", re.IGNORECASE)
_ATTACH = re.compile(r"\battach\b", re.IGNORECASE)
# A schema may use SQLite's own functions and tables: they are safe, but for `_FUNCTIONS`, which are refused anyway.
# With this off, versions before 3.41 refuse JSON, full text and R-tree in views, triggers, CHECKs and indexes.
_MOST_BYTES = 10**9  # SQLite's own limit
_PRAGMAS = ("trusted_schema=ON", "cell_size_check=ON", "temp_store=MEMORY")

FULL = "database or disk is full"
UNKNOWN = "what was committed isn't known, as the connection could not be closed"
_NO_ROOM = (FULL, "disk I/O error", "unable to open database file", UNKNOWN)  # what SQLite makes of a full disk
CLOSED = "Cannot operate on a closed database."
INTERRUPTED = "interrupted"
READ_ONLY = "attempt to write a readonly database"
_TOO_BIG, _PATTERN_TOO_LONG = "string or blob too big", "LIKE or GLOB pattern too complex"


class _Rules:
    """What the authorizer of one connection knows.

    Attributes:
        denied: Why it has refused something; "" if it hasn't.
        script: The SQL that runs now, one statement or several; None if that isn't known.
        max_memory: A statement is interrupted while SQLite holds more bytes in the process.
        is_over_memory: A statement was interrupted for that.
        ends: When a statement is interrupted, on the monotonic clock; None: never.
    """

    __slots__ = ("denied", "ends", "is_over_memory", "max_memory", "script")

    def __init__(self) -> None:
        self.denied = ""
        self.script: str | None = None
        self.max_memory = 0
        self.is_over_memory = False
        self.ends: float | None = None

    def check_progress(self) -> bool:
        """Return whether to interrupt the statement. The interpreter raises here when a function's deadline passes."""
        self.is_over_memory = _memory_used() > self.max_memory
        return self.is_over_memory or (self.ends is not None and time.monotonic() > self.ends)

    def authorize(self, action: int, first: str | None, second: str | None, _name: object, _inner: object) -> int:
        if action == sqlite3.SQLITE_PRAGMA:
            return self._pragma((first or "").lower(), second)
        if action == sqlite3.SQLITE_FUNCTION and (second or "").lower() in _FUNCTIONS:
            self.denied = f"{second}() isn't possible in a session's database"
            return sqlite3.SQLITE_DENY
        if action == sqlite3.SQLITE_DETACH or (action == sqlite3.SQLITE_ATTACH and (first or self._attaches())):
            both = first == "" and action == sqlite3.SQLITE_ATTACH and _VACUUM.search(self.script or "")
            self.denied = _BOTH_WORDS if both else _ALONE
            return sqlite3.SQLITE_DENY
        return sqlite3.SQLITE_OK

    def _pragma(self, name: str, value: str | None) -> int:
        if name in _DURABILITY:
            return sqlite3.SQLITE_IGNORE
        if name in _FIXED and value is not None:
            self.denied = f"PRAGMA {name} is the server's to set"
            return sqlite3.SQLITE_DENY
        return sqlite3.SQLITE_OK

    def _attaches(self) -> bool:
        """Whether SQL may attach something itself; if it lacks that word, SQLite does so, for a VACUUM."""
        return self.script is None or _ATTACH.search(self.script) is not None


class SessionCursor(sqlite3.Cursor):
    """A cursor that says which SQL it runs."""

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
    """A connection of one call.

    Attributes:
        rules: What its SQL can't do.
        ended: Called before it is closed by whoever uses it.
    """

    rules: _Rules
    ended: Callable[[], None] | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._opened: weakref.WeakSet[Any] = weakref.WeakSet()
        self.rules = _Rules()

    def cursor(self, factory: Any = SessionCursor) -> Any:
        made = super().cursor(factory)
        self._opened.add(made)
        return made

    def execute(self, sql: str, parameters: Any = (), /) -> Any:
        return self.cursor().execute(sql, parameters)

    def executemany(self, sql: str, parameters: Iterable[Any], /) -> Any:
        return self.cursor().executemany(sql, parameters)

    def executescript(self, sql_script: str, /) -> Any:
        return self.cursor().executescript(sql_script)

    def blobopen(self, *args: Any, **kwargs: Any) -> Any:
        made = super().blobopen(*args, **kwargs)
        self._opened.add(made)
        return made

    def close(self) -> None:
        """Close it, and what was opened with it: SQLite keeps a file open, and locked, as long as a cursor lives."""
        if self.ended is not None:
            ended, self.ended = self.ended, None
            ended()
        for made in [*self._opened]:
            made.close()
        super().close()

    def __del__(self) -> None:
        # An author's object that works on its own is closed by nobody; from Python 3.13 on that would be a warning.
        with contextlib.suppress(sqlite3.Error):
            super().close()

    def close_cursors(self) -> None:
        for made in [*self._opened]:
            made.close()

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

    def look_until(self, ends: float | None) -> None:
        """Interrupt what runs after a time, on the monotonic clock; None: never."""
        self.rules.ends = ends

    def set_progress_handler(self, progress_handler: Callable[[], Any] | None, n: int) -> None:
        """Have a handler called, or none if `n` is below 1, without losing the look at deadline and memory."""
        check = self.rules.check_progress
        if progress_handler is None or n < 1:
            super().set_progress_handler(check, STEPS)
        else:
            super().set_progress_handler(lambda: progress_handler() or check(), min(n, STEPS))


def _memory_counter() -> Callable[[], int]:
    """Return SQLite's function that counts the bytes it holds in the process, or 0 where it can't be called."""
    try:
        counter = ctypes.CDLL(_sqlite3.__file__).sqlite3_memory_used
    except (AttributeError, OSError):  # the module is built into the interpreter, or hides the library's names
        return lambda: 0
    counter.argtypes, counter.restype = [], ctypes.c_int64
    return cast("Callable[[], int]", counter)


_memory_used = _memory_counter()


def value_bytes(max_bytes: int) -> int:
    """Get how long a value or a row may be in a database that may have so many bytes."""
    return min(max(max_bytes // 16, 2**20), _MOST_BYTES)


def memory_bytes(max_bytes: int) -> int:
    """Get how many bytes SQLite may hold in the whole process, whose databases may have so many."""
    return max(MEMORY_BYTES, 4 * max_bytes)


def open_connection(file: DatabaseFile, max_bytes: int, *, read_only: bool, pinned: bool) -> SessionConnection:
    """Open a connection to a file that nobody else uses, or that nobody changes."""
    how = "mode=ro&immutable=1" if read_only else "mode=rw"
    connection = sqlite3.connect(f"{file.uri}?{how}", uri=True, check_same_thread=False, factory=SessionConnection)
    # SQLite's limit is the whole process's, and an allocation beyond it fails for anybody, also for the store. So a
    # statement is interrupted before: others, whose statements are short, have the rest.
    connection.rules.max_memory = memory_bytes(max_bytes) // 4 * 3
    pragmas = [*_PRAGMAS, f"hard_heap_limit={memory_bytes(max_bytes)}"]
    if not read_only:
        # Alone with its file, SQLite needs no memory that it shares, and waits for nobody.
        pragmas += ["locking_mode=EXCLUSIVE", "journal_mode=WAL", "wal_autocheckpoint=0", "synchronous=OFF"]
        pragmas += [f"max_page_count={max(max_bytes // file.page_size, 1)}"]
    if file.foreign_keys:
        pragmas += ["foreign_keys=ON"]
    try:
        for pragma in pragmas:
            sqlite3.Connection.execute(connection, f"PRAGMA {pragma}").close()
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, value_bytes(max_bytes))
        connection.setlimit(sqlite3.SQLITE_LIMIT_SQL_LENGTH, min(max_bytes, _MOST_BYTES))
        connection.setlimit(sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH, PATTERN_BYTES)
        # The authorizer isn't asked about a CHECK that is in the file, and versions before 3.41 don't keep it from
        # there.
        for count in (1, 2):
            connection.create_function("fts3_tokenizer", count, _no_tokenizer)
        if pinned:
            pin_functions(connection, value_bytes(max_bytes))
        sqlite3.Connection.set_authorizer(connection, connection.rules.authorize)
        sqlite3.Connection.set_progress_handler(connection, connection.rules.check_progress, STEPS)
    except BaseException:
        connection.close()  # which would lock the file, for as long as somebody has the error
        raise
    return connection


def explained(
    error: BaseException, rules: _Rules | None, file: DatabaseFile | None, read_only: str, max_bytes: int
) -> BaseException:
    """Add to an error of SQLite's why it has happened here."""
    if isinstance(error, MemoryError) and not error.args and rules is not None:
        error.args = (_memory_text(max_bytes),)
    if not isinstance(error, sqlite3.Error) or len(error.args) != 1 or not isinstance(error.args[0], str):
        return error
    text = error.args[0].replace("authorization denied", "not authorized")  # which it says of VACUUM INTO
    if text.startswith("not authorized") and rules is not None and rules.denied:
        error.args = (f"{text}: {rules.denied}",)
    elif text.startswith("unsafe use of ") and text[14:-2] in _FUNCTIONS:  # in a view or a trigger
        error.args = (f"{text}: {text[14:]} isn't possible in a session's database",)
    elif text == READ_ONLY and read_only:
        error.args = (f"{text}: {read_only}",)
    elif text == INTERRUPTED and rules is not None and rules.is_over_memory:
        error.args = (f"{text}: {_memory_text(max_bytes)}",)
    elif text == _TOO_BIG:
        error.args = (f"{text}: a value or a row may have {value_bytes(max_bytes)} bytes",)
    elif text == _PATTERN_TOO_LONG:
        error.args = (f"{text}: it may have {PATTERN_BYTES} bytes",)
    elif text == CLOSED:
        error.args = (f"{text[:-1]}: take it as a Database, whose connect() then opens another connection",)
    elif text in _NO_ROOM and file is not None and is_full(file.path.parent):
        return OverloadedError(FULL_TEXT)
    elif text == FULL:
        error.args = (f"{text}: the database may have {max_bytes} bytes (TOOLPACK_MAX_VOLUME_BYTES)",)
    return error


def _memory_text(max_bytes: int) -> str:
    return f"SQLite may hold {memory_bytes(max_bytes)} bytes in a process: ask it for less at once"


def _refuse(what: str) -> NoReturn:
    raise sqlite3.NotSupportedError(f"{what} isn't possible in a session's database")


def _no_tokenizer(*_arguments: object) -> NoReturn:
    _refuse("fts3_tokenizer")


# Pinned time and chance


_TIMES = dict.fromkeys(("date", "time", "datetime", "julianday", "unixepoch"), (0, 1)) | {"strftime": (1, 2)}
"""The functions that take a time: which of their arguments that is, and where the modifiers begin."""
if sqlite3.sqlite_version_info >= (3, 43):
    _TIMES["timediff"] = (0, 2)

# Words for the time now, of which some versions of SQLite know only the first; the others also ask for milliseconds.
_NOW = "now"
_WITH_FRACTION = ("subsec", "subsecond") if sqlite3.sqlite_version_info >= (3, 42) else ()
_ZONES = ("localtime", "utc")  # modifiers that change nothing, as the time zone is UTC where time is pinned


def pin_functions(connection: sqlite3.Connection, max_bytes: int) -> None:
    """Have SQLite ask Python for time and chance, where they are pinned.

    What isn't the time "now" is computed by SQLite itself, on a connection of its own.

    Args:
        max_bytes: Of a value.
    """
    plain = sqlite3.connect(":memory:", check_same_thread=False)

    def original(name: str) -> Callable[..., Any]:
        first, last = _TIMES[name]

        def run(*given: Any) -> Any:
            times: list[Any] = [*given[first:last]]
            if not times and len(given) == first and last - first == 1:  # where the time is missing, it is now
                times.append(_NOW)
            modifiers = [each for each in given[last:] if _word(each) not in _ZONES]
            words = [*map(_word, times)]
            if last - first == 1 and words and words[0] in _WITH_FRACTION:
                modifiers.append(words[0])
            times = [
                _now() if word in (_NOW, *_WITH_FRACTION) else each for word, each in zip(words, times, strict=True)
            ]
            arguments = [*given[:first], *times, *modifiers]
            marks = ",".join("?" * len(arguments))
            return plain.execute(f"SELECT {name}({marks})", arguments).fetchone()[0]

        return run

    for name in _TIMES:
        count = 2 if name == "timediff" else -1
        connection.create_function(name, count, original(name), deterministic=True)
    for name, function in (("CURRENT_DATE", "date"), ("CURRENT_TIME", "time"), ("CURRENT_TIMESTAMP", "datetime")):
        connection.create_function(name, 0, original(function))
    connection.create_function("random", 0, lambda: int.from_bytes(os.urandom(8), signed=True))
    # One byte more than a value may have is one that SQLite refuses.
    connection.create_function("randomblob", 1, lambda size: os.urandom(min(max(int(size or 0), 1), max_bytes + 1)))


def _word(argument: Any) -> str:
    """Get an argument as SQLite compares it with a word; "" if it isn't a text."""
    text = argument.decode("latin-1") if isinstance(argument, bytes) else argument
    return text.partition("\0")[0].lower() if isinstance(text, str) else ""


def _now() -> str:
    seconds, rest = divmod(time.time_ns(), 10**9)
    return f"{time.strftime('%Y-%m-%d %H:%M:%S', time.gmtime(seconds))}.{rest // 10**6:03d}"
