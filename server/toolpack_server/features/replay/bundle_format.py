"""Format of a bundle: a session as one file, which can be moved to another server.

The first line is the format's name. The second line is the keyed hash (HMAC) of the rest, which proves that a server
with the same key wrote it. The rest is JSON lines, compressed by xz:

    {"head": {…}}                     description of the session; the first line
    {"blob": [number, part, text]}    serialized part of an environment; each byte is one character (Latin-1), because
                                      that compresses far better than base64
    {"version": [number, {part: …}]}  for each kept version, the blob numbers of the parts that it changed
    {"record": [{…}, {…}]}            a record as clients see it, and data that only a retry with its call_id needs

A reader with the key checks the hash before it unpacks anything. A reader without the key can't check who wrote the
bundle, so it ignores the blobs. In both cases the size of each line and of all lines is limited, and memory is reserved
before a line is unpacked.
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

MAX_VERSION = 128  # max characters of a distribution's version

_START = FORMAT.encode() + b"\n"
_ANY_START = re.compile(rb"(toolpack-bundle-\d+)\n")
_HASH_DIGITS = 64
_PRESET = 3  # preset of xz, whose dictionary of 4 MiB covers dozens of versions of a large environment
XZ_MEMORY = 10 * 2**20  # max memory of the decompressor in bytes: enough for a dictionary of 8 MiB
_CHUNK = 2**16  # max bytes that are unpacked at a time
_BLOB = b'{"blob":'

Count = Annotated[int, Field(ge=0, le=2**53 - 1)]
_JsonObject = dict[str, Any]
_LIST = Strict(False)  # accept a list where a tuple is declared, because JSON has no tuples


class BundleHead(BaseModel):
    """The head of a bundle, which describes the session."""

    model_config = ConfigDict(strict=True, extra="forbid")

    server: str
    python: str  # Python's major and minor version
    toolpacks: list[str]
    fingerprints: dict[str, str]
    options: dict[str, _JsonObject]
    environment: _JsonObject
    task: str | None
    feature_options: _JsonObject = Field(default_factory=dict)  # the features' data in the recipe, without the task
    labels: dict[str, str]
    ttl_seconds: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    fork: bool  # whether the session was created as a fork
    version: Count
    records: Count  # number of records
    details: _JsonObject  # as in `StoredSession`, but without the versions, which `model_post_init` moves out of them
    _versions: dict[str, str] = PrivateAttr(default_factory=dict)

    def model_post_init(self, _context: Any) -> None:
        """Move the versions out of the details. Drop invalid versions, because the bundle might be a stranger's."""
        value = self.details.pop(VERSIONS, None)
        versions = {name: value.get(name) for name in self.toolpacks} if isinstance(value, dict) else {}
        self._versions = {
            name: each for name, each in versions.items() if isinstance(each, str) and len(each) <= MAX_VERSION
        }

    @property
    def versions(self) -> dict[str, str]:
        """The version of each toolpack's distribution, by toolpack."""
        return self._versions

    def shown(self) -> _JsonObject:
        """Return the head as JSON. Empty `feature_options` are omitted, because older servers refuse unknown fields."""
        head = self.model_dump(exclude=None if self.feature_options else {"feature_options"})
        if self.versions:
            head["details"][VERSIONS] = self.versions
        return head

    def all_feature_options(self) -> _JsonObject:
        """Return the features' data in the session's recipe, including the task."""
        return {**({"task": self.task} if self.task else {}), **self.feature_options}


class Line(BaseModel):
    """A line of a bundle. Exactly one field is set."""

    model_config = ConfigDict(strict=True, extra="forbid")

    head: BundleHead | None = None
    blob: Annotated[tuple[Count, str, str], _LIST] | None = None
    version: Annotated[tuple[Count, dict[str, Count]], _LIST] | None = None
    record: Annotated[tuple[_JsonObject, _JsonObject | None], _LIST] | None = None


def pack(lines: Iterable[bytes], keyed: KeyedHash, max_bytes: int, max_raw_bytes: int) -> bytes:
    """Return a bundle of these lines.

    Raises:
        TooLargeError: The bundle would exceed `max_bytes`, or `max_raw_bytes` before compression.
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
            f"The bundle would have more than {max_bytes} bytes, or more than {max_raw_bytes} unpacked, and a server "
            "with these limits can't import it: export it with `versions` set to `ends`, or raise "
            "TOOLPACK_MAX_BODY_BYTES on both servers."
        )
    compressed = b"".join(packed)
    return _START + keyed.of(compressed).encode() + b"\n" + compressed


def compressed_part(bundle: bytes, keyed: KeyedHash | None) -> memoryview:
    """Return the compressed part of a bundle, without a copy.

    Args:
        keyed: Computes hashes with this server's key. None: don't check the hash.

    Raises:
        InvalidParamsError: The bytes aren't a bundle, or have another format.
        StateDamagedError: The hash is wrong.
    """
    other = _ANY_START.match(bundle)
    if other and other[1] != FORMAT.encode():
        raise InvalidParamsError(
            f"The bundle has the format {other[1].decode()[:40]}, but this server reads {FORMAT}: import it on a "
            "server of the version that made it, or a newer one."
        )
    start = len(_START) + _HASH_DIGITS + 1
    if not bundle.startswith(_START) or bundle[start - 1 : start] != b"\n":
        raise InvalidParamsError(f"This isn't a bundle: line 1 isn't {FORMAT!r}, or line 2 isn't a hash.")
    compressed = memoryview(bundle)[start:]
    if keyed and not hmac.compare_digest(bundle[len(_START) : start - 1], keyed.of(compressed).encode()):
        raise StateDamagedError(
            "The bundle fails its keyed hash: it was damaged or forged, or a server with another key made it. Give "
            "both servers the same TOOLPACK_REPLAY_BUNDLE_KEY, or import the bundle with the mode `replay`."
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
    """Unpack a bundle in small chunks, and yield its lines.

    Args:
        max_bytes: Maximum number of bytes of all lines.
        max_line_bytes: Maximum number of bytes of a line, except a blob's.
        reserve: Called with the bytes of memory that a line needs while it is assembled. If it raises, unpacking stops.
        blobs: Yield whole lines of blobs. If False, only the start of a blob's line is yielded.

    Raises:
        InvalidParamsError: The bundle can't be unpacked.
        TooLargeError: The lines exceed a limit.
    """
    decompressor = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=XZ_MEMORY)
    size = 0
    line = bytearray()
    chunk: bytes | memoryview = compressed
    while not decompressor.eof:
        try:
            unpacked = decompressor.decompress(chunk, _CHUNK)
        except lzma.LZMAError as error:
            raise InvalidParamsError(f"The bundle is damaged and can't be unpacked: {error}.") from None
        if not unpacked and decompressor.needs_input and not decompressor.eof:
            raise InvalidParamsError("The bundle can't be unpacked: its end is missing.")
        chunk = b""  # the decompressor still holds the input that it hasn't used
        size += len(unpacked)
        if size > max_bytes:
            raise TooLargeError(f"The bundle has more than {max_bytes} bytes when unpacked, the limit here.")
        first, *rest = unpacked.split(b"\n")
        line += first
        for text in rest:
            _check_length(line, max_line_bytes)
            yield bytes(line)
            line[:] = text
        _check_length(line, max_line_bytes)
        if is_blob(line) and not blobs:
            del line[len(_BLOB) :]
        reserve(2 * len(line))  # twice, because the line is copied when it is yielded
    if decompressor.unused_data or line:
        raise InvalidParamsError("The bundle can't be unpacked: there is data after its end.")


def _check_length(line: bytearray, max_bytes: int) -> None:
    """Raise `TooLargeError` if a line that isn't a blob's is too long."""
    if len(line) > max_bytes and not is_blob(line):
        raise TooLargeError(
            f"A line of the bundle has more than {max_bytes} bytes, the limit of a request: raise "
            "TOOLPACK_MAX_BODY_BYTES to import the bundle on this server."
        )


def is_blob(line: bytes | bytearray) -> bool:
    """Return whether a line, or the start of a line, is that of a blob."""
    return line.startswith(_BLOB)


def read_line(line: bytes, read: Callable[[bytes], Any] = loads) -> Line:
    """Parse a line.

    Args:
        read: Function that parses the JSON.

    Raises:
        InvalidParamsError: The text isn't a valid line of a bundle.
    """
    try:
        parsed = Line.model_validate(read(line))
    except ValidationError as error:
        raise InvalidParamsError(f"A line of the bundle is invalid, at {_location(error)}.") from None
    except ValueError:
        raise InvalidParamsError("A line of the bundle isn't JSON.") from None
    if len(parsed.model_fields_set) != 1:
        raise InvalidParamsError("A line of the bundle must be exactly one of head, blob, version and record.")
    return parsed


class RecordLine(BaseModel):
    """The fields that a record of any kind must have in a bundle."""

    model_config = ConfigDict(strict=True, extra="ignore")

    index: Annotated[int, Field(ge=0)]
    kind: str
    version: Annotated[int, Field(ge=0)]
    # The call_id of a participant has the prefix `<name>/`.
    call_id: Annotated[str, Field(min_length=1, max_length=MAX_CALL_ID + 65)] | None = None
    duration_ms: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0
    state: str | None = None  # digest of the world, in a seeded session


def record_of(shown: dict[str, Any], kinds: RecordKinds) -> RecordLine:
    """Check a record in the form that clients see, and return its common fields. The record isn't changed.

    If the kind is unknown, only the common fields are checked.

    Raises:
        InvalidParamsError: The record lacks a field that is needed to show or to repeat the record.
    """
    try:
        line = RecordLine.model_validate(shown)
        kinds[line.kind].check(shown)
    except ValueError as error:
        kind = str(shown.get("kind"))[:40]
        where = f", at {_location(error)}" if isinstance(error, ValidationError) else ""
        raise InvalidParamsError(
            f"A record of the bundle, of kind {kind!r}, lacks what is needed to show it or to repeat it{where}."
        ) from None
    return line


def _location(error: ValidationError) -> str:
    """Return the path of the first invalid field, for a message."""
    loc = error.errors(include_url=False, include_input=False)[0]["loc"]
    return ".".join(str(part)[:40] for part in loc[:4]) or "its start"
