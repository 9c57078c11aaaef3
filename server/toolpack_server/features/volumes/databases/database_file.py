"""The file of a database while it is used, and what of it has changed.

A call works on the file in WAL mode, without checkpoints, so that SQLite's write-ahead log has every page that the call
has committed (https://www.sqlite.org/fileformat2.html#the_write_ahead_log). When the connection is closed, SQLite moves
these pages into the file.

Pages are the truth. Nothing here understands what is in them, but for the counters in the first one.
"""

import array
import contextlib
import os
import shutil
import struct
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from urllib.parse import quote

from typing_extensions import override

from toolpack_server.volumes.scratch import Scratch
from toolpack_server.volumes.volume import Body
from toolpack_server.volumes.working_copy import WorkingCopy

MAGIC = b"SQLite format 3\x00"
HEADER_BYTES = 100
MAX_PAGE_SIZE = 65536
WAL_VERSION = b"\x02\x02"
_VERSIONS = 18  # where the first page says how the file is written and read: 1 is a rollback journal, 2 a WAL
_COUNTERS = ((24, 28), (92, 100))  # of its changes, and the version of SQLite that has made the last one
_WAL_HEADER, _FRAME_HEADER = 32, 24
_NUMBERS = "I"


def page_size_of(first: bytes | memoryview) -> int:
    """Get the page size of a database from its beginning; a `ValueError` if it isn't one."""
    if len(first) < HEADER_BYTES or bytes(first[: len(MAGIC)]) != MAGIC:
        raise ValueError("it isn't a SQLite database")
    size: int = struct.unpack_from(">H", first, 16)[0]
    return MAX_PAGE_SIZE if size == 1 else size


class DatabaseFile(WorkingCopy):
    """A database as a file.

    Attributes:
        path: Where it is.
        uri: The same for SQLite.
        page_size: In bytes.
        pages: How many it has.
        scratch: Where others can be made.
        foreign_keys: They are enforced in every call.
    """

    def __init__(self, scratch: Scratch, path: Path, *, foreign_keys: bool) -> None:
        self.path = path
        self.uri = f"file:{quote(str(path))}"
        self.foreign_keys = foreign_keys
        self.scratch = scratch
        with path.open("rb") as file:
            self.page_size = page_size_of(file.read(HEADER_BYTES))
        self.pages = path.stat().st_size // self.page_size

    @classmethod
    def written(cls, scratch: Scratch, bodies: Sequence[Body]) -> "DatabaseFile":
        """Write the file that the pieces of a chain make; a `ValueError` if they make none."""
        path, first = scratch.new_path(), bodies[0]
        size = page_size_of(first.data)
        with path.open("wb") as file:
            file.write(first.data)
            for body in bodies[1:]:
                numbers, pages = _numbers(body), len(body.data) - 4 * body.head["changed"]
                if pages != size * len(numbers):
                    raise ValueError("a piece has other pages than it says")
                start = len(body.data) - pages
                for place, number in enumerate(numbers):
                    file.seek((number - 1) * size)
                    file.write(body.data[start + place * size : start + (place + 1) * size])
            file.truncate(bodies[-1].head["pages"] * size)
        return cls(scratch, path, foreign_keys=first.head["foreign_keys"])

    @property
    @override
    def size(self) -> int:
        return self.pages * self.page_size

    @override
    def clone(self) -> "DatabaseFile":
        path = self.scratch.new_path()
        try:
            copy_file(self.path, path)
        except OSError:
            path.unlink(missing_ok=True)
            raise
        return DatabaseFile(self.scratch, path, foreign_keys=self.foreign_keys)

    @override
    def discard(self) -> None:
        self.discard_path(self.path)

    @staticmethod
    def discard_path(path: Path) -> None:
        """Remove a database, with what SQLite has put beside it."""
        for beside in ("", "-wal", "-shm", "-journal"):
            with contextlib.suppress(OSError):
                os.unlink(f"{path}{beside}")  # noqa: PTH108 - no path for each

    def has_log(self) -> bool:
        """Whether there is a log, which goes when the last connection is closed: without one, the file has it all."""
        return os.access(f"{self.path}-wal", os.F_OK)

    def committed(self) -> tuple[set[int], int]:
        """Get the numbers of the pages that were committed to the log, and how many the database has; 0 if none was."""
        try:
            log = Path(f"{self.path}-wal").read_bytes()
        except FileNotFoundError:
            return set(), 0
        return committed_pages(log, self.page_size)

    def read(self, numbers: Iterable[int]) -> bytes:
        size = self.page_size
        file = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return b"".join(os.pread(file, size, (number - 1) * size) for number in numbers)
        finally:
            os.close(file)

    def take_over(self, other: "DatabaseFile", numbers: Iterable[int]) -> None:
        """Take pages over from another file, and how many it has. That itself somebody may still have open."""
        ordered = sorted(numbers)
        pages = memoryview(other.read(ordered))
        with self.path.open("r+b") as file:
            for place, number in enumerate(ordered):
                file.seek((number - 1) * self.page_size)
                file.write(pages[place * self.page_size : (place + 1) * self.page_size])
            file.truncate(other.size)
        self.pages = other.pages

    def body(self, changed: Mapping[int, int] | None) -> Body:
        """Get a piece with the pages of these numbers, as far as there are so many; None: all."""
        head = {"pages": self.pages}
        if changed is None:
            return Body({**head, "foreign_keys": self.foreign_keys}, self.path.read_bytes())
        numbers = sorted(number for number in changed if number <= self.pages)
        packed = array.array(_NUMBERS, numbers)
        if sys.byteorder == "big":
            packed.byteswap()
        return Body({**head, "changed": len(numbers)}, packed.tobytes() + self.read(numbers))

    def differing(self, other: Path) -> set[int]:
        """Get the numbers of the pages that another file has, and has otherwise."""
        found, number, at_once = set(), 0, 256
        with self.path.open("rb") as mine, other.open("rb") as theirs:
            while chunk := theirs.read(self.page_size * at_once):
                before = mine.read(len(chunk))
                if before != chunk:
                    for start in range(0, len(chunk), self.page_size):
                        end = start + self.page_size
                        if before[start:end] != chunk[start:end]:
                            found.add(number + start // self.page_size + 1)
                number += at_once
        return found


def committed_pages(log: bytes, page_size: int) -> tuple[set[int], int]:
    """Read a write-ahead log; see `DatabaseFile.committed`.

    A frame belongs to it if it has the salts of its header. What follows the last commit isn't committed.
    """
    found: set[int] = set()
    open_frames: list[int] = []
    pages = 0
    salts = log[16:24]
    for start in range(_WAL_HEADER, len(log) - _FRAME_HEADER - page_size + 1, _FRAME_HEADER + page_size):
        number, after = struct.unpack_from(">II", log, start)
        if log[start + 8 : start + 16] != salts:
            break
        open_frames.append(number)
        if after:
            found.update(open_frames)
            open_frames = []
            pages = after
    return {number for number in found if number <= pages}, pages


def sizes_of(body: Body, page_size: int = 0) -> Mapping[int, int]:
    """Get the bytes of each page that a later piece has."""
    numbers = _numbers(body)
    if numbers:
        page_size = (len(body.data) - 4 * len(numbers)) // len(numbers)
    return dict.fromkeys(numbers, page_size)


def normal_pages(body: Body) -> Sequence[bytes | memoryview]:
    """Get what a piece holds, without what depends on how often SQLite has written it, and on its version."""
    numbers = [1] if "changed" not in body.head else _numbers(body)
    if not numbers or numbers[0] != 1:
        return [body.data]
    start = 4 * body.head.get("changed", 0)
    first = bytearray(body.data[start : start + HEADER_BYTES])
    for begin, end in _COUNTERS:
        first[begin:end] = bytes(end - begin)
    return [body.data[:start], bytes(first), body.data[start + HEADER_BYTES :]]


def set_versions(path: Path, version: bytes) -> None:
    """Make a file that no connection uses one that is written with a log (two bytes of 2), or without (of 1)."""
    with path.open("r+b") as file:
        file.seek(_VERSIONS)
        if file.read(2) != version:
            file.seek(_VERSIONS)
            file.write(version)


def copy_file(source: Path, target: Path) -> None:
    """Copy a file within the kernel where that is possible; an `OSError` if there is no room."""
    with source.open("rb") as reading, target.open("xb") as writing:
        left = os.fstat(reading.fileno()).st_size
        try:
            while left > 0:
                copied = os.copy_file_range(reading.fileno(), writing.fileno(), left)
                if not copied:
                    break
                left -= copied
        except (AttributeError, OSError):  # not on this system, or not between these file systems
            reading.seek(0)
            writing.seek(0)
            shutil.copyfileobj(reading, writing, 2**20)


def _numbers(body: Body) -> Sequence[int]:
    packed = array.array(_NUMBERS)
    packed.frombytes(body.data[: 4 * body.head["changed"]])
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tolist()
