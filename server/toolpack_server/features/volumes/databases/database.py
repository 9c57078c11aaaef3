"""A SQLite database that is a field of an environment.

SQLite does what it always does. What differs is where its file comes from, what is kept of it when the call
ends, and what SQL can't reach; see `database_file` and `database_connection`.
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
    explained,
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
_LENT = "use path() again when its block has ended: of two at once, one would undo what the other changes"
_IN_USE = "close all that uses the file of path() before its block ends"
PAGE_SIZE = 2048  # of databases that are made here: with 4096 each version would take nearly twice as many bytes
_OWN_BYTES = 2**40  # no limit for those that have none
_DIGEST_BYTES = 16


class Database(Volume):
    """A SQLite database that each session has for its own: a field of an environment.

    Args:
        schema: SQL; or the path of a file with SQL (`.sql`), or of a database (`.db`, `.sqlite`, `.sqlite3`). Relative
            paths begin at the module that makes the object.
        fill: Called with a connection, to fill the new database.
        foreign_keys: Enforce foreign keys in every call.
    """

    kind = "database"
    alternative_types: ClassVar[Mapping[type, str]] = MappingProxyType({sqlite3.Connection: "connect"})
    written_by = f"SQLite {sqlite3.sqlite_version}"

    _schema: str | Path | None = None
    _fill: Fill | None = None
    _foreign_keys = False
    _pages: bytes | None = None  # instead of a schema
    _own: "DatabaseFile | None" = None  # of one that an author has made, once it is used
    _connection: SessionConnection | None = None
    _unread = False  # a connection could write, and what it has committed isn't known yet
    _written = False  # something was committed to the file, so a call that fails must not leave it
    _by_path = False  # the call uses a file instead of a connection
    _lent = False  # a block of `path` has the file
    _changed: "set[int] | None" = None

    def __init__(
        self, schema: str | Path | None = None, *, fill: Fill | None = None, foreign_keys: bool = False
    ) -> None:
        self._schema = _sql_or_path(schema)
        self._fill = fill
        self._foreign_keys = foreign_keys

    def connect(self) -> sqlite3.Connection:
        """Get the connection of the call; the first time, it is opened."""
        return self._connected()

    @contextlib.contextmanager
    def path(self) -> Iterator[Path]:
        """Have the database as a file of the session's own for a block; what has changed in it is kept like all else.

        Raises:
            sqlite3.OperationalError: The call has a connection, too, or another block hasn't ended.
        """
        if self.mount is None:
            self._close()
        elif self._connection is not None:
            raise sqlite3.OperationalError(_BOTH)
        if self._lent:
            raise sqlite3.OperationalError(_LENT)
        self._by_path = self.mount is not None
        path = None
        try:
            with uninterruptible:
                file = self._file()
                path = file.clone().path
                self._lent = True
                set_versions(path, b"\1\1")  # whoever opens it needs no log
            yield path
            with uninterruptible:
                self._take_over(file, path)
        finally:
            with uninterruptible:
                self._lent = False
                if path is not None:
                    DatabaseFile.discard_path(path)

    @override
    def resources(self) -> Sequence[Any]:
        return () if self._connection is None else (self._connection,)

    # As an author makes it

    @override
    def __deepcopy__(self, memo: Any) -> Self:
        made = type(self)(None, fill=self._fill, foreign_keys=self.has_foreign_keys)
        vars(made).update(_schema=self._schema, _pages=self._pages)
        if self._own is not None or self.mount is not None:
            vars(made).update(_fill=None, _pages=bytes(self.build(Limits()).data))
        return made

    @override
    def build(self, limits: Limits) -> Body:
        if self.mount is not None:
            self._close()
            return self._file().body(None)
        most = limits.max_bytes
        try:
            own = self._own
            if own is None:
                with tempfile.TemporaryDirectory(prefix="toolpack-database-") as folder:
                    return self._built(Path(folder), most).body(None)
            self._close()
            return own.body(None)
        except InvalidParamsError:
            raise
        except Exception as error:
            explained(error, self._connection.rules if self._connection else None, None, "", most)
            raise InvalidParamsError(f"The database can't be built: {type(error).__name__}: {error}") from error

    @classmethod
    @override
    def parse(cls, given: Any) -> Self:
        if not isinstance(given, str):
            raise ValueError("a database is given as SQL, which is run in a new one")  # noqa: TRY004 - for pydantic
        made = cls()
        made._schema = given  # as it is: a client's SQL is never the path of a file
        return made

    @override
    def adopt(self, default: Volume) -> None:
        if isinstance(default, Database):
            vars(self).update(_foreign_keys=default.has_foreign_keys)

    @property
    def schema(self) -> str | Path | None:
        return self._schema

    @property
    def has_foreign_keys(self) -> bool:
        return self._foreign_keys if self.mount is None else self._file().foreign_keys

    @classmethod
    @override
    def json_schema(cls, default: Volume | None) -> Mapping[str, Any]:
        if not isinstance(default, Database):
            return {}
        unfilled = cls()  # `fill` is an author's code, which isn't run to describe a toolpack
        vars(unfilled).update(_schema=default.schema)
        body = unfilled.build(Limits())
        with tempfile.TemporaryDirectory(prefix="toolpack-database-") as folder:
            path = Path(folder, "database")
            path.write_bytes(body.data)
            connection = sqlite3.connect(f"file:{path}?immutable=1", uri=True)
            try:
                found = connection.execute("SELECT name, sql FROM sqlite_schema WHERE sql IS NOT NULL ORDER BY rowid")
                return {"sql": [sql for name, sql in found if not name.startswith("sqlite_")]}
            finally:
                connection.close()

    # In a call

    @classmethod
    @override
    def load(cls, bodies: Sequence[Body], context: VolumeContext) -> DatabaseFile:
        return DatabaseFile.written(context.scratch, bodies)

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
        return self._file().body(keys)  # type: ignore[arg-type] # its keys are the numbers of pages

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
        return explained(error, rules, file, mount.read_only, mount.context.limits.max_bytes)

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
        """Have it read for a view: whoever has made its schema has decided what SQLite does meanwhile."""
        limits, name = self._limits, "" if self.mount is None else f" {self.mount.chain.name!r}"
        reading = None
        try:
            connection = self._connected()
            reading = Reading(connection, limits.max_bytes)
            connection.look_until(time.monotonic() + limits.view_seconds)
            try:
                yield reading
            finally:
                connection.look_until(None)
        except (sqlite3.Error, MemoryError, ValueError) as error:
            table = f", table {shown(reading.table)!r}" if reading is not None and reading.table else ""
            raise ResultError(f"The database{name}{table} can't be shown: {self._why(error)}.") from error

    def _why(self, error: Exception) -> str:
        limits = self._limits
        rules = self._connection.rules if self._connection else None
        if str(error) == INTERRUPTED and not (rules and rules.is_over_memory):
            return f"to read it takes more than {limits.view_seconds:g} s"
        if type(error) is ValueError:
            return str(error)
        return f"{type(error).__name__}: {explained(error, rules, None, '', limits.max_bytes)}"

    @override
    def export(self) -> bytes:
        exported = bytearray(self._file().path.read_bytes())
        exported[18:20] = b"\1\1"
        return bytes(exported)

    @classmethod
    @override
    def digest(cls, body: Body) -> str:
        hashed = hashlib.blake2b(orjson.dumps(dict(body.head)), digest_size=_DIGEST_BYTES)
        for piece in normal_pages(body):
            hashed.update(piece)
        return hashed.hexdigest()

    def _file(self) -> DatabaseFile:
        """Get the file: the call's, or an own one, which is there as long as this object."""
        if self.mount is not None:
            return self.mount.copy()  # type: ignore[return-value] # it is what `load` has made
        if self._own is None:
            folder = tempfile.mkdtemp(prefix="toolpack-database-")
            weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
            self._own = self._built(Path(folder), _OWN_BYTES)
        return self._own

    def _connected(self) -> SessionConnection:
        connection = self._connection
        if connection is None or connection.ended is None:
            if self.mount is not None and self.mount.ended:
                raise self.mount.too_late()
            if self._by_path:
                raise sqlite3.OperationalError(_BOTH)
            connection = self._connection = self._open()
        return connection

    def _open(self) -> SessionConnection:
        mount, file = self.mount, self._file()
        limit, read_only, pinned = (
            (_OWN_BYTES, False, False)
            if mount is None
            else (mount.context.limits.max_bytes, bool(mount.read_only), mount.pinned)
        )
        self._unread |= not read_only  # first: the function may be interrupted at each step
        connection = open_connection(file, limit, read_only=read_only, pinned=pinned)
        me = weakref.ref(self)  # somebody may keep the connection, which must keep nothing else

        def ended() -> None:
            database = me()
            if database is not None:
                database.note_end(connection_of())

        connection_of = weakref.ref(connection)
        connection.ended = ended
        return connection

    def note_end(self, connection: SessionConnection | None) -> None:
        """Note what a connection has changed that somebody closes: what isn't committed is lost, as always."""
        if connection is not None and (self.mount is None or not self.mount.read_only):
            self._note_commits(connection, commit=False)

    def _note_commits(self, connection: SessionConnection, *, commit: bool) -> None:
        """Note what was committed, before the connection is closed; what isn't is lost, or committed now."""
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
        """Close the connection, after noting what was committed; raise if that, or the end of its use, isn't certain.

        Args:
            commit: First commit what isn't committed.
        """
        connection, self._connection = self._connection, None
        if connection is None and not self._unread:
            return
        may_write = self.mount is None or not self.mount.read_only
        if connection is not None:
            try:
                if connection.ended is not None:
                    connection.ended = None
                    if may_write:
                        self._note_commits(connection, commit=commit)
            finally:
                connection.close()
        if self._unread:
            raise sqlite3.OperationalError(UNKNOWN)
        if may_write and self._file().has_log():
            raise sqlite3.OperationalError("the database is still in use: end its threads and close what they use")

    def _take_over(self, file: DatabaseFile, path: Path) -> None:
        """Keep what was changed in another file."""
        connection = sqlite3.connect(path, timeout=0.1)  # nobody is to use it any more
        try:
            connection.execute("PRAGMA journal_mode=DELETE")
            set_versions(path, WAL_VERSION)
            taken = DatabaseFile(file.scratch, path, foreign_keys=file.foreign_keys)
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode == sqlite3.SQLITE_BUSY:
                raise sqlite3.OperationalError(f"{error}: {_IN_USE}") from error
            raise
        except ValueError as error:
            raise sqlite3.DatabaseError("what is at path() when its block ends is no SQLite database") from error
        finally:
            connection.close()
        if taken.page_size != file.page_size:
            raise sqlite3.OperationalError(
                f"the database must keep its page size: {file.page_size} bytes, not {taken.page_size}"
            )
        differing = file.differing(path)
        if not differing and taken.pages == file.pages:
            return
        if self.mount is not None and self.mount.read_only:
            raise sqlite3.OperationalError(READ_ONLY)
        if self.mount is not None and taken.size > self.mount.context.limits.max_bytes:
            raise sqlite3.OperationalError(FULL)
        self._written = True
        file.take_over(taken, differing | {1})
        self._changed = (self._changed or set()) | differing | {1}

    # Building

    def _built(self, folder: Path, most: int) -> DatabaseFile:
        """Make a new file in a folder."""
        path, schema = folder / "database", self._schema
        if self._pages is not None:
            path.write_bytes(self._pages)
        elif isinstance(schema, Path) and schema.suffix.lower() in _DATABASE_FILES:
            _copy_database(schema, path)
        else:
            _make_empty(path)
        set_versions(path, WAL_VERSION)
        file = DatabaseFile(Scratch(folder, most, own=folder), path, foreign_keys=self._foreign_keys)
        if isinstance(schema, Path) and self._pages is None and schema.suffix.lower() in _SQL_FILES:
            schema = _read(schema)
        sql = schema if isinstance(schema, str) and self._pages is None else None
        if sql is not None or self._fill is not None:
            connection = self._connection = open_connection(file, most, read_only=False, pinned=False)
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
        if file.size > most:
            raise sqlite3.OperationalError(FULL)
        return file


def _sql_or_path(schema: str | Path | None) -> str | Path | None:
    """Get SQL as a text, and the name of a file as a path."""
    if schema is None:
        return None
    given = str(schema)
    is_path = isinstance(schema, Path) or (
        given.lower().endswith((*_SQL_FILES, *_DATABASE_FILES)) and not set(given) & {"\n", ";"}
    )
    return relative_to_caller(given) if is_path else given


def _make_empty(path: Path) -> None:
    connection = sqlite3.connect(path)
    try:
        connection.execute(f"PRAGMA page_size={PAGE_SIZE}")
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA user_version=0")  # which makes its first page
    finally:
        connection.close()


def _copy_database(source: Path, target: Path) -> None:
    """Copy a database with all its pages, whatever is still in its log."""
    if not source.is_file():
        raise InvalidParamsError(f"There is no file {str(source)!r} to make the database from: correct the path.")
    duplicate = target.with_name("source")
    try:
        reading, writing = sqlite3.connect(f"{source.as_uri()}?mode=ro", uri=True), sqlite3.connect(target)
        try:
            reading.backup(writing)
        except sqlite3.OperationalError:  # to read it SQLite has to write: a journal that was left, or its log's index
            reading.close()
            for beside in ("", "-wal", "-journal"):
                with contextlib.suppress(FileNotFoundError):
                    shutil.copyfile(f"{source}{beside}", f"{duplicate}{beside}")
            reading = sqlite3.connect(duplicate)
            reading.backup(writing)
        finally:
            reading.close()
            writing.close()
            DatabaseFile.discard_path(duplicate)
    except sqlite3.DatabaseError as error:
        raise InvalidParamsError(f"The file {str(source)!r} can't be used as a database: {error}.") from error


def _read(source: Path) -> str:
    try:
        return source.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it isn't text in UTF-8"
        raise InvalidParamsError(f"The file {str(source)!r} can't be read: {reason}: correct the path.") from error
