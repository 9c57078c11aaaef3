"""Working copy of a database: its file, and the numbers of the pages that a call has changed.

A call uses the file in WAL mode without checkpoints, so SQLite's write-ahead log contains every page that the call has
committed (https://www.sqlite.org/fileformat2.html#the_write_ahead_log). When the connection is closed, SQLite moves
these pages into the file.

This module copies whole pages. It interprets only the header in the first page.
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
_VERSIONS = 18  # offset of the write and read versions, which are 1 for a rollback journal and 2 for a write-ahead log
_COUNTERS = ((24, 28), (92, 100))  # offsets of the change counters, and of the SQLite version of the last change
_WAL_HEADER, _FRAME_HEADER = 32, 24
_NUMBERS = "I"  # type code of an array of page numbers with 4 bytes each


def page_size_of(first: bytes | memoryview) -> int:
    """Return the page size of a database from the beginning of its file.

    Raises:
        ValueError: The file isn't a SQLite database.
    """
    if len(first) < HEADER_BYTES or bytes(first[: len(MAGIC)]) != MAGIC:
        raise ValueError("it isn't a SQLite database")
    size: int = struct.unpack_from(">H", first, 16)[0]
    return MAX_PAGE_SIZE if size == 1 else size


class DatabaseFile(WorkingCopy):
    """Working copy of a database, as a file.

    Attributes:
        path: The file.
        uri: The path as SQLite's URI, without parameters.
        page_size: Size of a page in bytes.
        pages: Number of pages.
        scratch: Scratch folder for copies of the file.
        foreign_keys: Whether foreign keys are enforced in every call.
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
    def write(cls, scratch: Scratch, bodies: Sequence[Body]) -> "DatabaseFile":
        """Write the file from the pieces of a chain, and return its working copy.

        Raises:
            ValueError: The pieces don't form a database.
        """
        path, first = scratch.new_path(), bodies[0]
        size = page_size_of(first.data)
        with path.open("wb") as file:
            file.write(first.data)
            for body in bodies[1:]:
                numbers, pages = _numbers(body), len(body.data) - 4 * body.head["changed"]
                if pages != size * len(numbers):
                    raise ValueError("a piece doesn't have as many pages as its header says")
                start = len(body.data) - pages
                for index, number in enumerate(numbers):
                    file.seek((number - 1) * size)
                    file.write(body.data[start + index * size : start + (index + 1) * size])
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
        """Remove a database file, its log and its journal."""
        for suffix in ("", "-wal", "-shm", "-journal"):
            with contextlib.suppress(OSError):
                os.unlink(f"{path}{suffix}")  # noqa: PTH108 - faster, because it creates no Path objects

    def has_log(self) -> bool:
        """Return whether the file has a log. SQLite removes the log when the last connection is closed."""
        return os.access(f"{self.path}-wal", os.F_OK)

    def committed(self) -> tuple[set[int], int]:
        """Return the numbers of the pages committed to the log, and the database's total number of pages.

        The total is 0 if the log contains no commit. Pages beyond the database's end are omitted.
        """
        try:
            log = Path(f"{self.path}-wal").read_bytes()
        except FileNotFoundError:
            return set(), 0
        return committed_pages(log, self.page_size)

    def read(self, numbers: Iterable[int]) -> bytes:
        """Return the content of the pages with these numbers, in this order."""
        size = self.page_size
        file = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return b"".join(os.pread(file, size, (number - 1) * size) for number in numbers)
        finally:
            os.close(file)

    def take_over(self, other: "DatabaseFile", numbers: Iterable[int]) -> None:
        """Copy pages of another file into this file, and give it the same number of pages.

        The file is changed in place, because connections to it can be open.
        """
        ordered = sorted(numbers)
        pages = memoryview(other.read(ordered))
        with self.path.open("r+b") as file:
            for index, number in enumerate(ordered):
                file.seek((number - 1) * self.page_size)
                file.write(pages[index * self.page_size : (index + 1) * self.page_size])
            file.truncate(other.size)
        self.pages = other.pages

    def body(self, changed: Mapping[int, int] | None) -> Body:
        """Return a piece with the changed pages. Pages that the database no longer contains are omitted.

        Args:
            changed: The numbers of the pages, with the size of each. None means all pages.
        """
        head = {"pages": self.pages}
        if changed is None:
            return Body({**head, "foreign_keys": self.foreign_keys}, self.path.read_bytes())
        numbers = sorted(number for number in changed if number <= self.pages)
        packed = array.array(_NUMBERS, numbers)
        if sys.byteorder == "big":
            packed.byteswap()
        return Body({**head, "changed": len(numbers)}, packed.tobytes() + self.read(numbers))

    def differing(self, other: Path) -> set[int]:
        """Return the numbers of the other file's pages that this file lacks, or that differ in the two files."""
        differing, number, at_once = set(), 0, 256
        with self.path.open("rb") as mine, other.open("rb") as theirs:
            while chunk := theirs.read(self.page_size * at_once):
                before = mine.read(len(chunk))
                if before != chunk:
                    for start in range(0, len(chunk), self.page_size):
                        end = start + self.page_size
                        if before[start:end] != chunk[start:end]:
                            differing.add(number + start // self.page_size + 1)
                number += at_once
        return differing


def committed_pages(log: bytes, page_size: int) -> tuple[set[int], int]:
    """Return the committed pages of a write-ahead log; see `DatabaseFile.committed`.

    A frame belongs to the log if its salts equal those of the log's header. Frames after the last commit aren't
    committed.
    """
    committed: set[int] = set()
    open_frames: list[int] = []
    pages = 0
    salts = log[16:24]
    for start in range(_WAL_HEADER, len(log) - _FRAME_HEADER - page_size + 1, _FRAME_HEADER + page_size):
        number, after = struct.unpack_from(">II", log, start)
        if log[start + 8 : start + 16] != salts:
            break
        open_frames.append(number)
        if after:
            committed.update(open_frames)
            open_frames = []
            pages = after
    return {number for number in committed if number <= pages}, pages


def sizes_of(body: Body, page_size: int = 0) -> Mapping[int, int]:
    """Return the size in bytes of each page in a piece after the first."""
    numbers = _numbers(body)
    if numbers:
        page_size = (len(body.data) - 4 * len(numbers)) // len(numbers)
    return dict.fromkeys(numbers, page_size)


def normal_pages(body: Body) -> Sequence[bytes | memoryview]:
    """Return the content of a piece in several parts, without the counters of changes and SQLite's version.

    Databases with equal content can differ in these values, so the values are set to zero.
    """
    numbers = [1] if "changed" not in body.head else _numbers(body)
    if not numbers or numbers[0] != 1:
        return [body.data]
    start = 4 * body.head.get("changed", 0)
    first = bytearray(body.data[start : start + HEADER_BYTES])
    for begin, end in _COUNTERS:
        first[begin:end] = bytes(end - begin)
    return [body.data[:start], bytes(first), body.data[start + HEADER_BYTES :]]


def set_versions(path: Path, version: bytes) -> None:
    """Set the write and read versions in a file that has no open connections.

    Args:
        version: Two bytes, which are 2 and 2 for a write-ahead log, or 1 and 1 for a rollback journal.
    """
    with path.open("r+b") as file:
        file.seek(_VERSIONS)
        if file.read(2) != version:
            file.seek(_VERSIONS)
            file.write(version)


def copy_file(source: Path, target: Path) -> None:
    """Copy a file. The kernel copies it if the file system supports that.

    Raises:
        OSError: The disk is full.
    """
    with source.open("rb") as reading, target.open("xb") as writing:
        remaining = os.fstat(reading.fileno()).st_size
        try:
            while remaining > 0:
                copied = os.copy_file_range(reading.fileno(), writing.fileno(), remaining)
                if not copied:
                    break
                remaining -= copied
        except (AttributeError, OSError):  # the copy isn't supported by this system, or between these file systems
            reading.seek(0)
            writing.seek(0)
            shutil.copyfileobj(reading, writing, 2**20)


def _numbers(body: Body) -> Sequence[int]:
    """Return the numbers of the pages in a piece after the first."""
    packed = array.array(_NUMBERS)
    packed.frombytes(body.data[: 4 * body.head["changed"]])
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tolist()
