"""A ledger with a database, files and notes, and functions after which something breaks, for the tests."""

import contextlib
import errno
import os
import resource
import sqlite3
import sys
import threading
from pathlib import Path
from typing import Annotated, Any

from server import Database, Depends, Files, TaskEnvironment, Toolpack

SCHEMA = """
CREATE TABLE place (id INTEGER PRIMARY KEY);
CREATE TABLE entry (number INTEGER, text TEXT, place INTEGER REFERENCES place DEFERRABLE INITIALLY DEFERRED);
INSERT INTO place VALUES (1);
"""


kept: list[Any] = []


class BreakingEnvironment(TaskEnvironment):
    db: Database = Database(SCHEMA, foreign_keys=True)
    files: Files = Files({"first": "0"})
    notes: list[int] = []


toolpack = Toolpack("breaking", BreakingEnvironment)

TheDatabase = Annotated[Database, Depends("db")]
TheFiles = Annotated[Files, Depends("files")]
Notes = Annotated[list[int], Depends("notes")]


LOCKS = type(threading.Lock()), type(threading.RLock())


class Breaker:
    """Raises an error in the step of this number of whatever ends the use of volumes: a call of a function, of C too.

    With the number 0 it only counts the steps.
    """

    counted = 0

    def __init__(self, where: str, step: int) -> None:
        self.where, self.step = where, step
        self.outermost: Any = None

    def __call__(self, frame: Any, event: str, what: Any) -> None:
        if self.outermost is None:
            if event == "call" and frame.f_code.co_qualname == f"Volumes.{self.where}":
                self.outermost = frame
                Breaker.counted = 0
        elif event in ("call", "c_call"):
            if "__del__" in (frame.f_code.co_name, frame.f_back.f_code.co_name):  # what is raised there goes nowhere
                return
            if isinstance(getattr(what, "__self__", None), LOCKS):  # which can't fail
                return
            Breaker.counted += 1
            if Breaker.counted == self.step:
                sys.setprofile(None)
                kind, *given = ERRORS[self.step % len(ERRORS)]
                raise kind(*given)
        elif event == "return" and frame is self.outermost:
            sys.setprofile(None)


ERRORS = (
    (OSError, errno.EMFILE, os.strerror(errno.EMFILE)),
    (sqlite3.OperationalError, "disk I/O error"),
    (MemoryError,),
    (KeyboardInterrupt,),
)


def write(db: Database, number: int, way: str) -> None:
    """Write an entry and commit it, and then another one that isn't committed."""
    rows = [(number, "x" * 3000), (number, "y" * 3000)]
    if way == "path":
        with db.path() as path, contextlib.closing(sqlite3.connect(path)) as connection:
            connection.executemany("INSERT INTO entry (number, text) VALUES (?, ?)", rows)
            connection.commit()
        return
    connection = db.connect()
    connection.execute("INSERT INTO entry (number, text) VALUES (?, ?)", rows[0])
    connection.commit()
    if way == "closed":
        connection.close()
        connection = db.connect()
    connection.execute("INSERT INTO entry (number, text) VALUES (?, ?)", rows[1])


@toolpack.function
def change(
    db: TheDatabase, files: TheFiles, notes: Notes, number: int, way: str, where: str = "finish", step: int = 0
) -> int:
    """Write a number everywhere, after which something breaks.

    :param number: The number.
    :param way: How the database is changed: `connect`, `closed` or `path`.
    :param where: What breaks: `finish`, or `abandon` after an error.
    :param step: Which step of it.
    """
    write(db, number, way)
    files.write_text(f"file {number % 3}", str(number))
    with files.materialize() as folder:
        (folder / "last").write_text(str(number), encoding="utf-8")
    notes.append(number)
    sys.setprofile(Breaker(where, step))
    if where == "abandon":
        raise ValueError("on purpose")
    return number


@toolpack.function
def write_nothing(db: TheDatabase, files: TheFiles, step: int) -> None:
    """Use the database and the files without changing them, and fail; then a step of what follows breaks.

    :param step: Which one.
    """
    db.connect().execute("SELECT count(*) FROM entry").fetchall()
    files.read_text("first")
    sys.setprofile(Breaker("abandon", step))
    raise ValueError("on purpose")


@toolpack.function
def counted() -> int:
    """Get how many steps the last one has had."""
    return Breaker.counted


@toolpack.function
def leave_orphan(db: TheDatabase, files: TheFiles, number: int) -> None:
    """Commit an entry, and then leave one that can't be committed.

    :param number: The number.
    """
    files.write_text("file 0", str(number))
    write(db, number, "connect")
    db.connect().commit()
    db.connect().execute("INSERT INTO entry VALUES (?, 'orphan', 2)", (number,))


@toolpack.function
def leave_open(db: TheDatabase, number: int) -> None:
    """Change an entry in its place, and leave something open that nobody closes.

    :param number: The number.
    """
    connection = db.connect()
    connection.execute("UPDATE place SET id = ?", (number,))
    cursor = sqlite3.Cursor(connection)
    cursor.execute("SELECT id FROM place UNION ALL SELECT 1")
    next(cursor)
    kept.append(cursor)


@toolpack.function
def leave_path_open(db: TheDatabase, number: int) -> None:
    """Change the database as a file, which somebody goes on to have open.

    :param number: The number.
    """
    write(db, number, "path")
    with db.path() as path:
        kept.append(path.open("r+b"))
        with contextlib.closing(sqlite3.connect(path)) as connection:
            connection.execute("UPDATE entry SET text = 'z'")
            connection.commit()


@toolpack.function
def write_there() -> str:
    """Write into what was left open."""
    file = kept.pop()
    file.write(b"no database at all")
    file.close()
    return "done"


@toolpack.function
def use_up_room(db: TheDatabase, number: int) -> None:
    """Commit an entry, and then leave one for which there is no room, until the next call of this process.

    :param number: The number.
    """
    write(db, number, "connect")
    db.connect().commit()
    log = Path(f"{db._file().path}-wal").stat().st_size
    resource.setrlimit(resource.RLIMIT_FSIZE, (log + 4096, resource.RLIM_INFINITY))
    db.connect().execute("INSERT INTO entry (number, text) VALUES (?, ?)", (number, "z" * 50_000))


@toolpack.function
def make_room() -> None:
    """Let files be of any size again."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


open_files: list[int] = []


@toolpack.function
def use_up_open_files(db: TheDatabase, number: int) -> None:
    """Commit an entry, and leave no file that could be opened, until the next call of this process.

    :param number: The number.
    """
    write(db, number, "connect")
    with contextlib.suppress(OSError):
        while True:
            open_files.append(os.open("/dev/null", os.O_RDONLY))


@toolpack.function
def close_files() -> int:
    """Close what was left open."""
    closed = len(open_files)
    while open_files:
        os.close(open_files.pop())
    return closed


@toolpack.function
def swallow(db: TheDatabase, number: int) -> str:
    """Commit an entry, close the connection where its log can't be read, and take no notice of that.

    :param number: The number.
    """
    write(db, number, "connect")
    connection = db.connect()
    connection.commit()
    file = db._file()  # what fails is what no function can reach
    file.committed = lambda: (_ for _ in ()).throw(OSError(errno.EMFILE, "no file"))
    with contextlib.suppress(OSError):
        connection.close()
    del file.committed
    return "done"


@toolpack.function(read_only=True)
def look(db: TheDatabase, files: TheFiles, notes: Notes) -> dict[str, Any]:
    """Get all that there is, and what SQLite says of the database."""
    connection = db.connect()
    return {
        "entries": [number for (number,) in connection.execute("SELECT number FROM entry ORDER BY rowid")],
        "files": {path: files.read_text(path) for path in files.glob("**/*")},
        "notes": notes,
        "check": connection.execute("PRAGMA integrity_check").fetchone()[0],
    }


@toolpack.function
def keep(db: TheDatabase, files: TheFiles) -> None:
    """Keep the files and the database in a global."""
    kept[:] = [files, db]
    files.write_text("kept", "1")


@toolpack.function
def use_kept(read: bool = False) -> list[str]:
    """Use what was kept, and get what that raises.

    :param read: Whether to read only, and then to keep it no longer.
    """
    files, db = kept
    found = []
    for use in (lambda: files.read_text("kept") if read else files.write_text("kept", "2"), db.connect):
        try:
            found.append(str(use()))
        except (OSError, ValueError, sqlite3.Error) as error:
            found.append(f"{type(error).__name__}: {error}")
    if read:
        kept.clear()
    return found
