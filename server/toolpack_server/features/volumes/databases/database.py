"""Database volume: a SQLite database that is a field of an environment.

SQLite behaves as usual. This package decides where the file comes from, which changes are stored after a call
(`database_file`), and which operations are forbidden in SQL (`database_connection`).
"""

import contextlib
import hashlib
import shutil
import sqlite3
import tempfile
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Self, cast

import orjson
from typing_extensions import override

from toolpack_server.base.errors import InvalidParamsError, ResultError, shown
from toolpack_server.base.uninterruptible import uninterruptible
from toolpack_server.features.volumes.caller_paths import relative_to_caller
from toolpack_server.features.volumes.databases import database_views
from toolpack_server.features.volumes.databases.database_connection import (
    FULL,
    INTERRUPTED,
    READ_ONLY,
    UNKNOWN,
    SessionConnection,
    explain,
    open_connection,
)
from toolpack_server.features.volumes.databases.database_file import (
    WAL_VERSION,
    DatabaseFile,
    normal_pages,
    set_versions,
    sizes_of,
)
from toolpack_server.features.volumes.databases.database_trees import Ranges, Roots, Tree, changed_ranges
from toolpack_server.features.volumes.databases.database_views import Reading
from toolpack_server.volumes.scratch import Scratch
from toolpack_server.volumes.volume import Body, Limits, Volume, VolumeContext
from toolpack_server.volumes.working_copy import Key

Fill = Callable[[sqlite3.Connection], Any]

_SQL_FILES, _DATABASE_FILES = (".sql",), (".db", ".sqlite", ".sqlite3")
_BOTH = "use either connect() or path() in one call, not both"
_PATH_IN_USE = "a block of path() is still open, and two would overwrite each other's changes: end it first"
_FILE_IN_USE = "close every connection to the file of path() before its block ends"
# Page size of new databases; with SQLite's default, 4096, each version would take nearly twice as many bytes.
PAGE_SIZE = 2048
_UNLIMITED_BYTES = 2**40  # limit for databases outside a session, which is practically unlimited
_DIGEST_BYTES = 16


class Database(Volume):
    """A SQLite database as a field of an environment. Each session has its own copy.

    Args:
        schema: A string of SQL, or the path of a file with SQL (`.sql`) or of a database (`.db`, `.sqlite`,
            `.sqlite3`). Relative paths start at the folder of the calling module.
        fill: A function that gets a connection and fills the new database.
        foreign_keys: Whether to enforce foreign keys in every call.
    """

    kind = "database"
    alternative_types: ClassVar[Mapping[type, str]] = MappingProxyType({sqlite3.Connection: "connect"})
    written_by = f"SQLite {sqlite3.sqlite_version}"

    _schema: str | Path | None = None
    _fill: Fill | None = None
    _foreign_keys = False
    _pages: bytes | None = None  # initial content of the file, used instead of the schema
    _own: "DatabaseFile | None" = None  # file of an author's instance, created at first use
    _connection: SessionConnection | None = None
    _unread = False  # whether a connection might have committed pages that aren't in `_changed` yet
    _written = False  # whether the file was changed, so that a failed call must discard it
    _by_path = False  # whether the call uses `path` instead of a connection
    _is_path_open = False  # whether a block of `path` hasn't ended yet
    _changed: "set[int] | None" = None

    def __init__(
        self, schema: str | Path | None = None, *, fill: Fill | None = None, foreign_keys: bool = False
    ) -> None:
        self._schema = _sql_or_path(schema)
        self._fill = fill
        self._foreign_keys = foreign_keys

    def connect(self) -> sqlite3.Connection:
        """Return the connection of the call. The first use opens the connection."""
        return self._connected()

    @contextlib.contextmanager
    def path(self) -> Iterator[Path]:
        """Yield a temporary file with the database's content. Changes to the file are stored when the block ends.

        Raises:
            sqlite3.OperationalError: The call also uses a connection, another block is open, or something still uses
                the file when the block ends.
        """
        if self.mount is None:
            self._close()
        elif self._connection is not None:
            raise sqlite3.OperationalError(_BOTH)
        if self._is_path_open:
            raise sqlite3.OperationalError(_PATH_IN_USE)
        self._by_path = self.mount is not None
        path = None
        try:
            with uninterruptible:
                file = self._file()
                path = file.clone().path
                self._is_path_open = True
                set_versions(path, b"\1\1")  # so that other programs can open the file without a log
            yield path
            with uninterruptible:
                self._take_over(file, path)
        finally:
            with uninterruptible:
                self._is_path_open = False
                if path is not None:
                    DatabaseFile.discard_path(path)

    @override
    def resources(self) -> Sequence[Any]:
        return () if self._connection is None else (self._connection,)

    # Instances that an author creates

    @override
    def __deepcopy__(self, memo: Any) -> Self:
        copy = type(self)(None, fill=self._fill, foreign_keys=self.has_foreign_keys)
        vars(copy).update(_schema=self._schema, _pages=self._pages)
        if self._own is not None or self.mount is not None:
            vars(copy).update(_fill=None, _pages=bytes(self.build(Limits()).data))
        return copy

    @override
    def build(self, limits: Limits) -> Body:
        if self.mount is not None:
            self._close()
            return self._file().body(None)
        max_bytes = limits.max_bytes
        try:
            own = self._own
            if own is None:
                with tempfile.TemporaryDirectory(prefix="toolpack-database-") as folder:
                    return self._build_file(Path(folder), max_bytes).body(None)
            self._close()
            return own.body(None)
        except InvalidParamsError:
            raise
        except Exception as error:
            explain(error, self._connection.rules if self._connection else None, None, "", max_bytes)
            raise InvalidParamsError(f"The database can't be built: {type(error).__name__}: {error}") from error

    @classmethod
    @override
    def parse(cls, value: Any) -> Self:
        if not isinstance(value, str):
            raise ValueError("a database must be a string with SQL that creates it")  # noqa: TRY004 - for pydantic
        database = cls()
        database._schema = value  # not through `_sql_or_path`, because a client must not read the server's files
        return database

    @override
    def adopt(self, default: Volume) -> None:
        if isinstance(default, Database):
            vars(self).update(_foreign_keys=default.has_foreign_keys)

    @property
    def schema(self) -> str | Path | None:
        """The SQL or the file from which the database is built."""
        return self._schema

    @property
    def has_foreign_keys(self) -> bool:
        """Whether foreign keys are enforced."""
        return self._foreign_keys if self.mount is None else self._file().foreign_keys

    @classmethod
    @override
    def json_schema(cls, default: Volume | None) -> Mapping[str, Any]:
        if not isinstance(default, Database):
            return {}
        unfilled = cls()  # without `fill`, because describing a toolpack must not run its author's code
        vars(unfilled).update(_schema=default.schema)
        body = unfilled.build(Limits())
        with tempfile.TemporaryDirectory(prefix="toolpack-database-") as folder:
            path = Path(folder, "database")
            path.write_bytes(body.data)
            connection = sqlite3.connect(f"file:{path}?immutable=1", uri=True)
            try:
                rows = connection.execute("SELECT name, sql FROM sqlite_schema WHERE sql IS NOT NULL ORDER BY rowid")
                return {"sql": [sql for name, sql in rows if not name.startswith("sqlite_")]}
            finally:
                connection.close()

    # Instances in a call

    @classmethod
    @override
    def load(cls, bodies: Sequence[Body], context: VolumeContext) -> DatabaseFile:
        return DatabaseFile.write(context.scratch, bodies)

    @classmethod
    @override
    def sizes(cls, body: Body) -> Mapping[Key, int]:
        return cast("Mapping[Key, int]", sizes_of(body))

    @override
    def finish(self) -> Mapping[Key, int]:
        self._close()
        changed = cast("list[Key]", sorted(self._changed or ()))
        return dict.fromkeys(changed, self._file().page_size)

    @override
    def body(self, keys: Mapping[Key, int] | None) -> Body:
        return self._file().body(keys)  # type: ignore[arg-type] # the keys are page numbers

    @override
    def abandon(self) -> bool:
        self._close(commit=False)
        return not self._written

    @override
    def explain(self, error: BaseException) -> BaseException:
        mount, rules = self.mount, self._connection.rules if self._connection else None
        if mount is None:
            return error
        file = mount.working_copy if isinstance(mount.working_copy, DatabaseFile) else None
        return explain(error, rules, file, mount.read_only, mount.context.limits.max_bytes)

    @override
    def view(self) -> Any:
        with self._reading() as reading:
            return database_views.view(reading, self._limits.view_rows)

    @override
    def at(self, steps: Sequence[str], after: str | None, limit: int | None) -> Any:
        with self._reading() as reading:
            return database_views.at(reading, self._limits.view_rows, steps, after, limit)

    @override
    def patch(self, after: Self, path: str, *, text_diffs: bool) -> list[dict[str, Any]]:
        one, other = self._file(), after._file()
        if one.page_size != other.page_size:
            with self._reading() as before, after._reading() as now:
                return database_views.patch(before, now, path, lambda *_: {})
        differing = one.differing(other.path)
        # Equal databases can differ in the counters of page 1.
        if one.pages == other.pages and differing <= {1}:
            first = [normal_pages(Body({}, file.read([1]))) for file in (one, other)]
            if first[0] == first[1]:
                return []

        def changed(before: Roots, after: Roots) -> Mapping[Tree, Ranges]:
            return changed_ranges((one.path, other.path), (before, after), one.page_size, differing)

        with self._reading() as before, after._reading() as now:
            return database_views.patch(before, now, path, changed)

    @property
    def _limits(self) -> Limits:
        return Limits() if self.mount is None else self.mount.context.limits

    @contextlib.contextmanager
    def _reading(self) -> Iterator[Reading]:
        """Yield a `Reading` for a view.

        Time and memory are limited, because an untrusted schema could cause long computations.
        """
        limits, name = self._limits, "" if self.mount is None else f" {self.mount.chain.name!r}"
        reading = None
        try:
            connection = self._connected()
            reading = Reading(connection, limits.max_bytes)
            connection.set_deadline(time.monotonic() + limits.view_seconds)
            try:
                yield reading
            finally:
                connection.set_deadline(None)
        except (sqlite3.Error, MemoryError, ValueError) as error:
            table = f", table {shown(reading.table)!r}" if reading is not None and reading.table else ""
            raise ResultError(f"The database{name}{table} can't be shown: {self._why(error)}.") from error

    def _why(self, error: Exception) -> str:
        """Return the reason why the database can't be shown."""
        limits = self._limits
        rules = self._connection.rules if self._connection else None
        if str(error) == INTERRUPTED and not (rules and rules.is_over_memory):
            return f"reading it takes more than {limits.view_seconds:g} s"
        if type(error) is ValueError:
            return str(error)
        return f"{type(error).__name__}: {explain(error, rules, None, '', limits.max_bytes)}"

    @override
    def export(self) -> bytes:
        exported = bytearray(self._file().path.read_bytes())
        exported[18:20] = b"\1\1"  # the write and read versions of a WAL file; see `set_versions`
        return bytes(exported)

    @classmethod
    @override
    def digest(cls, body: Body) -> str:
        hashed = hashlib.blake2b(orjson.dumps(dict(body.head)), digest_size=_DIGEST_BYTES)
        for piece in normal_pages(body):
            hashed.update(piece)
        return hashed.hexdigest()

    def _file(self) -> DatabaseFile:
        """Return the working copy of the call, or a temporary file that is removed with this object."""
        if self.mount is not None:
            return self.mount.copy()  # type: ignore[return-value] # `load` returned it
        if self._own is None:
            folder = tempfile.mkdtemp(prefix="toolpack-database-")
            weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
            self._own = self._build_file(Path(folder), _UNLIMITED_BYTES)
        return self._own

    def _connected(self) -> SessionConnection:
        """Return the open connection.

        Open a connection at first use, or if the function has closed the last connection.
        """
        connection = self._connection
        if connection is None or connection.before_close is None:
            if self.mount is not None and self.mount.ended:
                raise self.mount.too_late()
            if self._by_path:
                raise sqlite3.OperationalError(_BOTH)
            connection = self._connection = self._open()
        return connection

    def _open(self) -> SessionConnection:
        """Open a connection to the file. When the function closes the connection, its commits are recorded."""
        mount, file = self.mount, self._file()
        limit, read_only, pinned = (
            (_UNLIMITED_BYTES, False, False)
            if mount is None
            else (mount.context.limits.max_bytes, bool(mount.read_only), mount.pinned)
        )
        self._unread |= not read_only  # set before opening, because a deadline can interrupt the function at any step
        connection = open_connection(file, limit, read_only=read_only, pinned=pinned)
        # A function can keep the connection after its call. Weak references ensure that the connection keeps nothing
        # else alive.
        database_of = weakref.ref(self)

        def record_commits() -> None:
            database = database_of()
            if database is not None:
                database.record_close(connection_of())

        connection_of = weakref.ref(connection)
        connection.before_close = record_commits
        return connection

    def record_close(self, connection: SessionConnection | None) -> None:
        """Record the commits of a connection that the function closes. Roll back its open transaction."""
        if connection is not None and (self.mount is None or not self.mount.read_only):
            self._record_commits(connection, commit=False)

    def _record_commits(self, connection: SessionConnection, *, commit: bool) -> None:
        """Commit or roll back a connection's transaction, and record its committed pages before it is closed."""
        connection.close_cursors()
        if commit and connection.in_transaction:
            connection.commit()
        connection.rollback()
        file = self._file()
        numbers, pages = file.committed()
        if pages:
            self._written = True
            self._changed = (self._changed or set()) | numbers
            file.pages = pages
        self._unread = False

    def _close(self, *, commit: bool = True) -> None:
        """Close the connection, and record the pages that it has committed.

        Args:
            commit: Whether to commit an open transaction first.

        Raises:
            sqlite3.OperationalError: The committed pages are unknown, or a thread or cursor still uses the database.
        """
        connection, self._connection = self._connection, None
        if connection is None and not self._unread:
            return
        may_write = self.mount is None or not self.mount.read_only
        if connection is not None:
            try:
                if connection.before_close is not None:
                    connection.before_close = None
                    if may_write:
                        self._record_commits(connection, commit=commit)
            finally:
                connection.close()
        if self._unread:
            raise sqlite3.OperationalError(UNKNOWN)
        if may_write and self._file().has_log():
            raise sqlite3.OperationalError("the database is still in use: end its threads and close their cursors")

    def _take_over(self, file: DatabaseFile, path: Path) -> None:
        """Copy the changes in another file to the database's file."""
        # A short timeout, to fail fast if a connection still uses the file.
        connection = sqlite3.connect(path, timeout=0.1)
        try:
            connection.execute("PRAGMA journal_mode=DELETE")
            set_versions(path, WAL_VERSION)
            changed = DatabaseFile(file.scratch, path, foreign_keys=file.foreign_keys)
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode == sqlite3.SQLITE_BUSY:
                raise sqlite3.OperationalError(f"{error}: {_FILE_IN_USE}") from error
            raise
        except ValueError as error:
            raise sqlite3.DatabaseError("the file of path() isn't a SQLite database at the end of the block") from error
        finally:
            connection.close()
        if changed.page_size != file.page_size:
            raise sqlite3.OperationalError(
                f"the database must keep its page size: {file.page_size} bytes, not {changed.page_size}"
            )
        differing = file.differing(path)
        if not differing and changed.pages == file.pages:
            return
        if self.mount is not None and self.mount.read_only:
            raise sqlite3.OperationalError(READ_ONLY)
        if self.mount is not None and changed.size > self.mount.context.limits.max_bytes:
            raise sqlite3.OperationalError(FULL)
        self._written = True
        # Page 1 contains the number of pages, so copy it even if it is equal.
        file.take_over(changed, differing | {1})
        self._changed = (self._changed or set()) | differing | {1}

    # Building

    def _build_file(self, folder: Path, max_bytes: int) -> DatabaseFile:
        """Create the database's file in a folder."""
        path, schema = folder / "database", self._schema
        if self._pages is not None:
            path.write_bytes(self._pages)
        elif isinstance(schema, Path) and schema.suffix.lower() in _DATABASE_FILES:
            _copy_database(schema, path)
        else:
            _make_empty(path)
        set_versions(path, WAL_VERSION)
        file = DatabaseFile(Scratch(folder, max_bytes, own=folder), path, foreign_keys=self._foreign_keys)
        if isinstance(schema, Path) and self._pages is None and schema.suffix.lower() in _SQL_FILES:
            schema = _read(schema)
        sql = schema if isinstance(schema, str) and self._pages is None else None
        if sql is not None or self._fill is not None:
            connection = self._connection = open_connection(file, max_bytes, read_only=False, pinned=False)
            try:
                if sql is not None:
                    connection.executescript(sql)
                if self._fill is not None:
                    self._fill(connection)
                connection.close_cursors()
                if connection.in_transaction:
                    connection.commit()
            finally:
                connection.close()
            self._connection = None
        file.pages = path.stat().st_size // file.page_size
        if file.size > max_bytes:
            raise sqlite3.OperationalError(FULL)
        return file


def _sql_or_path(schema: str | Path | None) -> str | Path | None:
    """Return the schema: SQL as a `str`, or the name of a file as a `Path`.

    A string is the name of a file if it ends with a known suffix and contains no newline or semicolon.
    """
    if schema is None:
        return None
    text = str(schema)
    is_path = isinstance(schema, Path) or (
        text.lower().endswith((*_SQL_FILES, *_DATABASE_FILES)) and not set(text) & {"\n", ";"}
    )
    return relative_to_caller(text) if is_path else text


def _make_empty(path: Path) -> None:
    """Create an empty database."""
    connection = sqlite3.connect(path)
    try:
        connection.execute(f"PRAGMA page_size={PAGE_SIZE}")
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA user_version=0")  # this makes SQLite write the first page
    finally:
        connection.close()


def _copy_database(source: Path, target: Path) -> None:
    """Copy a database with all its pages, including pages that are only in its log."""
    if not source.is_file():
        raise InvalidParamsError(f"The database's file {str(source)!r} doesn't exist: correct the path.")
    duplicate = target.with_name("source")
    try:
        reading, writing = sqlite3.connect(f"{source.as_uri()}?mode=ro", uri=True), sqlite3.connect(target)
        try:
            reading.backup(writing)
        # SQLite would have to write to the folder if a journal was left behind, or if the log has no index. So read a
        # copy instead.
        except sqlite3.OperationalError:
            reading.close()
            for suffix in ("", "-wal", "-journal"):
                with contextlib.suppress(FileNotFoundError):
                    shutil.copyfile(f"{source}{suffix}", f"{duplicate}{suffix}")
            reading = sqlite3.connect(duplicate)
            reading.backup(writing)
        finally:
            reading.close()
            writing.close()
            DatabaseFile.discard_path(duplicate)
    except sqlite3.DatabaseError as error:
        raise InvalidParamsError(f"The file {str(source)!r} can't be used as a database: {error}.") from error


def _read(source: Path) -> str:
    """Return the content of a file with SQL. Raise `InvalidParamsError` if the file can't be read."""
    try:
        return source.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it isn't text in UTF-8"
        raise InvalidParamsError(f"The file {str(source)!r} can't be read ({reason}): correct the path.") from error
