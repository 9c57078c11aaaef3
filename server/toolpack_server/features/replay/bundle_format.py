"""The format of a bundle: a session as one file, which can be moved to another server.

A line with the format's name, a line with a keyed hash of all that follows, then JSON lines, compressed by xz:

    {"head": {…}}                     what the session is; the first line
    {"blob": [number, part, text]}    a frozen part of an environment; each byte is a character (Latin-1), because that
                                      compresses far better than base64
    {"version": [number, {part: …}]}  for each kept version, the blobs of the parts that differ from the one before
    {"record": [{…}, {…}]}            what clients see of a record, and what only the repeat of its call_id needs

The hash is checked before anything is unpacked, or nothing but JSON is taken from the lines. Either way a
line has a limit, all lines together have one, and what they take is reserved before they are there.
"""

import hmac
import lzma
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, Strict, ValidationError

from toolpack_server.base.errors import InvalidParamsError, StateDamagedError, TooLargeError
from toolpack_server.jsonio.strict import loads
from toolpack_server.protocol.parameters import MAX_CALL_ID
from toolpack_server.sessions.recipes import VERSIONS
from toolpack_server.sessions.record_kinds import RecordKinds
from toolpack_server.snapshots.seal import KeyedHash

FORMAT = "toolpack-bundle-1"

MAX_VERSION = 128  # characters of a distribution's version

_START = FORMAT.encode() + b"\n"
_ANY_START = re.compile(rb"(toolpack-bundle-\d+)\n")
_HASH_DIGITS = 64
_PRESET = 3  # its dictionary, 4 MiB, holds some dozens of versions of a large environment
XZ_MEMORY = 10 * 2**20  # enough for a dictionary of 8 MiB
_PIECE = 2**16
_BLOB = b'{"blob":'

Count = Annotated[int, Field(ge=0, le=2**53 - 1)]
_JsonObject = dict[str, Any]
_LIST = Strict(False)  # JSON has no tuples


class BundleHead(BaseModel):
    """What the session is."""

    model_config = ConfigDict(strict=True, extra="forbid")

    server: str
    python: str  # without the last number of its version
    toolpacks: list[str]
    fingerprints: dict[str, str]
    options: dict[str, _JsonObject]
    environment: _JsonObject
    task: str | None
    kept: _JsonObject = Field(default_factory=dict)  # with the recipe, besides the task
    labels: dict[str, str]
    ttl_seconds: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    fork: bool  # it began as one
    version: Count
    records: Count
    details: _JsonObject  # as in `StoredSession`; with the versions when it is made and when it is written
    _versions: dict[str, str] = PrivateAttr(default_factory=dict)

    def model_post_init(self, _context: Any) -> None:
        """Take the versions out of the details; what isn't one, a stranger has written."""
        found = self.details.pop(VERSIONS, None)
        said = {name: found.get(name) for name in self.toolpacks} if isinstance(found, dict) else {}
        self._versions = {
            name: each for name, each in said.items() if isinstance(each, str) and len(each) <= MAX_VERSION
        }

    @property
    def versions(self) -> dict[str, str]:
        """The versions of the distributions that the toolpacks came with, by toolpack."""
        return self._versions

    def shown(self) -> _JsonObject:
        """Get it as JSON; what isn't kept isn't there, for servers that don't know of it."""
        found = self.model_dump(exclude=None if self.kept else {"kept"})
        if self.versions:
            found["details"][VERSIONS] = self.versions
        return found

    def all_kept(self) -> _JsonObject:
        """Get what features keep with the recipe."""
        return {**({"task": self.task} if self.task else {}), **self.kept}


class Line(BaseModel):
    """One line; exactly one of its fields is there."""

    model_config = ConfigDict(strict=True, extra="forbid")

    head: BundleHead | None = None
    blob: Annotated[tuple[Count, str, str], _LIST] | None = None
    version: Annotated[tuple[Count, dict[str, Count]], _LIST] | None = None
    record: Annotated[tuple[_JsonObject, _JsonObject | None], _LIST] | None = None


def pack(lines: Iterable[bytes], keyed: KeyedHash, max_bytes: int, max_raw_bytes: int) -> bytes:
    """Make a bundle of lines.

    Raises:
        TooLargeError: It would be larger than it may be, packed or not.
    """
    compressor = lzma.LZMACompressor(preset=_PRESET)
    packed: list[bytes] = []
    raw = size = 0
    for line in lines:
        raw += len(line) + 1
        packed.append(compressor.compress(line + b"\n"))
        size += len(packed[-1])
        if raw > max_raw_bytes or size > max_bytes:
            break
    packed.append(compressor.flush())
    size += len(packed[-1])
    if raw > max_raw_bytes or size > max_bytes:
        raise TooLargeError(
            f"The bundle would be larger than {max_bytes} bytes, or unpacked than {max_raw_bytes}, which is more than "
            "a server takes: export the versions `ends` only, or raise TOOLPACK_MAX_BODY_BYTES "
            "there and here."
        )
    compressed = b"".join(packed)
    return _START + keyed.of(compressed).encode() + b"\n" + compressed


def sealed(bundle: bytes, keyed: KeyedHash | None) -> memoryview:
    """Get the compressed part of a bundle, which isn't copied.

    Args:
        keyed: Makes the hash that it must have; None if any will do.

    Raises:
        InvalidParamsError: It isn't a bundle, or has another format.
        StateDamagedError: Its hash is wrong.
    """
    other = _ANY_START.match(bundle)
    if other and other[1] != FORMAT.encode():
        raise InvalidParamsError(
            f"The bundle has the format {other[1].decode()[:40]}, this server reads {FORMAT}: import it on a server of "
            "the version that made it, or a newer one."
        )
    start = len(_START) + _HASH_DIGITS + 1
    if not bundle.startswith(_START) or bundle[start - 1 : start] != b"\n":
        raise InvalidParamsError(f"This is no bundle: its first line isn't {FORMAT!r}, or its second one isn't a hash.")
    compressed = memoryview(bundle)[start:]
    if keyed and not hmac.compare_digest(bundle[len(_START) : start - 1], keyed.of(compressed).encode()):
        raise StateDamagedError(
            "The bundle fails its keyed hash: it was damaged or forged, or another server made it. Servers that have "
            "the same TOOLPACK_REPLAY_BUNDLE_KEY take each other's bundles; the mode `replay` takes any."
        )
    return compressed


def unpack(
    compressed: bytes | memoryview,
    max_bytes: int,
    max_line_bytes: int,
    reserve: Callable[[int], None],
    *,
    blobs: bool,
) -> Iterator[bytes]:
    """Get the lines of a bundle, unpacked piece by piece.

    Args:
        max_bytes: How many bytes all lines may have.
        max_line_bytes: How many bytes a line may have that isn't a blob's.
        reserve: Called with the memory that a line takes while it is put together; what it raises ends all.
        blobs: Whether blobs are wanted; if not, only the beginnings of their lines are kept.

    Raises:
        InvalidParamsError: They can't be unpacked.
        TooLargeError: They are larger than they may be.
    """
    decompressor = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=XZ_MEMORY)
    size = 0
    line = bytearray()
    piece: bytes | memoryview = compressed
    while not decompressor.eof:
        try:
            found = decompressor.decompress(piece, _PIECE)
        except lzma.LZMAError as error:
            raise InvalidParamsError(f"The bundle can't be unpacked: {error}. It is damaged.") from None
        if not found and decompressor.needs_input and not decompressor.eof:
            raise InvalidParamsError("The bundle can't be unpacked: its end is missing.")
        piece = b""
        size += len(found)
        if size > max_bytes:
            raise TooLargeError(f"Unpacked, the bundle has more than {max_bytes} bytes, which is more than is taken.")
        first, *rest = found.split(b"\n")
        line += first
        for text in rest:
            _check_length(line, max_line_bytes)
            yield bytes(line)
            line[:] = text
        _check_length(line, max_line_bytes)
        if is_blob(line) and not blobs:
            del line[len(_BLOB) :]
        reserve(2 * len(line))  # once more as it is handed out
    if decompressor.unused_data or line:
        raise InvalidParamsError("The bundle can't be unpacked: there is something behind its end.")


def _check_length(line: bytearray, max_bytes: int) -> None:
    if len(line) > max_bytes and not is_blob(line):
        raise TooLargeError(
            f"A line of the bundle has more than {max_bytes} bytes, which no request may have: raise "
            "TOOLPACK_MAX_BODY_BYTES to import it here."
        )


def is_blob(line: bytes | bytearray) -> bool:
    return line.startswith(_BLOB)


def read_line(line: bytes, read: Callable[[bytes], Any] = loads) -> Line:
    """Read a line.

    Raises:
        InvalidParamsError: It hasn't the form of one.
    """
    try:
        parsed = Line.model_validate(read(line))
    except ValidationError as error:
        raise InvalidParamsError(f"A line of the bundle hasn't its form, at {_place(error)}.") from None
    except ValueError:
        raise InvalidParamsError("A line of the bundle isn't JSON.") from None
    if len(parsed.model_fields_set) != 1:
        raise InvalidParamsError("A line of the bundle is not one of head, blob, version or record.")
    return parsed


class RecordLine(BaseModel):
    """What must be there of any record that came in a bundle."""

    model_config = ConfigDict(strict=True, extra="ignore")

    index: Annotated[int, Field(ge=0)]
    kind: str
    version: Annotated[int, Field(ge=0)]
    # A participant's has its name before it.
    call_id: Annotated[str, Field(min_length=1, max_length=MAX_CALL_ID + 65)] | None = None
    duration_ms: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0
    state: str | None = None  # a digest, in a seeded session


def record_of(shown: dict[str, Any], kinds: RecordKinds) -> RecordLine:
    """Check what clients see of a record; nothing of it is changed, nor the order of its members.

    A kind that nobody knows has the members of any record.

    Raises:
        InvalidParamsError: Something is missing that is needed to show it, or to repeat it.
    """
    try:
        line = RecordLine.model_validate(shown)
        kinds[line.kind].check(shown)
    except ValueError as error:
        kind = str(shown.get("kind"))[:40]
        where = f", at {_place(error)}" if isinstance(error, ValidationError) else ""
        raise InvalidParamsError(
            f"A record of the bundle, of kind {kind!r}, lacks what is needed to show it or to repeat it{where}."
        ) from None
    return line


def _place(error: ValidationError) -> str:
    loc = error.errors(include_url=False, include_input=False)[0]["loc"]
    return ".".join(str(part)[:40] for part in loc[:4]) or "its start"
