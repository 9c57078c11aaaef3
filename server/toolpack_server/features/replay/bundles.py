"""Export of a session as a bundle, and import of a bundle, on the same server or another.

A bundle doesn't contain the session's id, agent path, owner or key. An import either stores the whole session or
changes nothing. The server seals the imported data with its own key.
"""

import base64
import binascii
import hashlib
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import version as installed_version
from typing import Any, Literal, NoReturn

from pydantic import Field

from toolpack_server.base.errors import (
    ClassesChangedError,
    InvalidParamsError,
    MissingBlobError,
    OverloadedError,
    SessionNotFoundError,
    StateDamagedError,
    TooLargeError,
    VersionNotRetainedError,
    shown,
)
from toolpack_server.features.replay.bundle_content import BundleContent
from toolpack_server.features.replay.bundle_format import (
    XZ_MEMORY,
    BundleHead,
    Line,
    compressed_part,
    is_blob,
    pack,
    read_line,
    record_of,
    unpack,
)
from toolpack_server.features.replay.code import code_digests
from toolpack_server.features.replay.seed_parameters import REPLAYS
from toolpack_server.jsonio.strict import Fragment, dumps, loads
from toolpack_server.protocol.parameters import CallId, Labels, Parameters, TtlSeconds
from toolpack_server.protocol.results import Session
from toolpack_server.rpc.in_flight import Reservation
from toolpack_server.rpc.parsing import has_more_values, is_deeper, parsed_bytes
from toolpack_server.sessions.context import SessionContext
from toolpack_server.sessions.factory import SessionFactory, session_template
from toolpack_server.sessions.identity import Creation
from toolpack_server.sessions.reader import SessionReader
from toolpack_server.sessions.recipes import FORK, VERSIONS, Recipe, began_as_fork, details_of
from toolpack_server.sessions.record_kinds import RecordKinds
from toolpack_server.snapshots.seal import KeyedHash
from toolpack_server.stores.base import Head, StoredSession

UNPACKED_FACTOR = 16  # max size of an unpacked bundle, as a multiple of the max size of a request
UNPACKED_SHARE = 2  # an unpacked bundle can use half of a request's memory; the rest is for the objects made from it
ENVELOPE_BYTES = 1024  # max size of a request that contains a bundle, without the bundle
RECORDS_AT_ONCE = 64  # max records in one read from the store
EXPORT_ATTEMPTS = 5
COPIES = 2  # copies of a bundle in memory while it is read: base64 text and decoded bytes
PAGE_BYTES = 2**20  # max bytes of records that are unpacked at a time from a stranger's bundle

Read = Callable[[bytes], Any]
"""Parses the JSON text of a line."""

Records = Iterator[tuple[Mapping[str, Any], int]]
"""Records of a bundle in the form that clients see, each with an estimate of its memory in bytes."""


class ImportRequest(Parameters):
    """Parameters of `import_bundle`."""

    bundle: str = Field(description="The bundle from `export_bundle`, in base64.")
    mode: Literal["exact", "replay"] = Field(
        "exact",
        description="`exact` copies the session. `replay` is for a bundle from a stranger: it uses only the arguments "
        "and messages, runs the calls again and compares the results.",
    )
    labels: Labels | None = Field(None, description="The labels of the new session; default: the labels in the bundle.")
    ttl_seconds: TtlSeconds
    limit: int = Field(
        1000, ge=1, le=100_000, description="Maximum number of records to run again in the mode `replay`."
    )
    call_id: CallId


class Bundles:
    """Writer and reader of bundles. Its methods block, so the event loop must run them in threads.

    Args:
        key: Key of the bundles' keyed hash.
        max_memory: Maximum memory of a request in bytes.

    Attributes:
        codes: The digests of this server's code.
    """

    def __init__(self, context: SessionContext, factory: SessionFactory, key: bytes, max_memory: int) -> None:
        self.codes = code_digests(context.catalog)
        self._context = context
        self._factory = factory
        self._keyed = KeyedHash(key, "bundle")
        body = context.settings.max_body_bytes
        self._max_bytes = (body - ENVELOPE_BYTES) * 3 // 4  # base64 has 4 characters for 3 bytes
        self._max_raw_bytes = min(UNPACKED_FACTOR * body, max_memory // UNPACKED_SHARE)

    # Writing

    def export(self, reader: SessionReader, session_id: str, owner: str | None, *, ends: bool) -> bytes:
        """Return the bundle of a session.

        Args:
            ends: Include only the first and the current version, not all that are still stored.

        Raises:
            ClassesChangedError: A toolpack isn't loaded any more, or its classes have changed.
            TooLargeError: The bundle would be too large.
            OverloadedError: The session changed faster than it could be read.
        """
        missing: set[str] = set()
        for _ in range(EXPORT_ATTEMPTS):
            session, head = reader.find(session_id, owner)
            try:
                return pack(self._lines(session, head, ends=ends), self._keyed, self._max_bytes, self._max_raw_bytes)
            except VersionNotRetainedError:  # calls created newer versions meanwhile, and the store deleted this one
                continue
            except MissingBlobError as error:  # the version was deleted meanwhile, so the next attempt omits it
                if str(error) in missing:  # the blob is missing from the store, although its version is there
                    raise
                missing.add(str(error))
        raise OverloadedError("The session changes faster than it can be exported: export it after its calls.")

    def _lines(self, session: StoredSession, head: Head, *, ends: bool) -> Iterator[bytes]:
        """Yield the lines of a bundle: the head, each version after its new blobs, and the records."""
        yield dumps({"head": self._head(session, head).shown()})
        numbers: dict[tuple[str, str], int] = {}
        before: Mapping[str, str] = {}
        for version, parts in self._versions(session, head, ends=ends):
            changed = {part: blob_id for part, blob_id in parts.items() if before.get(part) != blob_id}
            before = parts
            new = [item for item in changed.items() if item not in numbers]
            for part, blob_id in new:
                numbers[part, blob_id] = len(numbers)
                yield dumps({"blob": [numbers[part, blob_id], part, self._payload(part, blob_id)]})
            yield dumps({"version": [version, {part: numbers[part, blob_id] for part, blob_id in changed.items()}]})
        after = -1
        while after < head.index:
            records = self._context.store.records(session.id, after, min(RECORDS_AT_ONCE, head.index - after))
            if not records:
                self._raise_lost(session.id, head)
            for record in records:
                yield dumps({"record": [*map(Fragment, self._context.records.read(session.id, record))]})
                after = record.index

    def _raise_lost(self, session_id: str, head: Head) -> NoReturn:
        """Raise the error for missing records: the session was closed or changed, or the store lost the records."""
        now = self._context.store.get(session_id)
        if now is None:
            raise SessionNotFoundError
        if now[1] != head:
            raise OverloadedError("The session lost records while it was exported: export it again.")
        raise StateDamagedError("Records of the session are missing from the store: restore a backup.")

    def _versions(self, session: StoredSession, head: Head, *, ends: bool) -> list[tuple[int, Mapping[str, str]]]:
        """Return the versions for a bundle, in order, each with the blob id of each part.

        The store deletes the oldest versions first, but never version 0. So versions are read from the newest to the
        oldest, until a version isn't stored any more.
        """
        read = self._context.store.parts_at
        versions = [(head.version, read(session.id, head.version))]
        for version in range(head.version - 1, 0, -1) if not ends else ():
            try:
                versions.append((version, read(session.id, version)))
            except VersionNotRetainedError:
                break
        if head.version > 0:
            versions.append((0, read(session.id, 0)))
        return versions[::-1]

    def _head(self, session: StoredSession, head: Head) -> BundleHead:
        """Return the head of a session's bundle. Raise `ClassesChangedError` if a toolpack isn't loaded any more."""
        loaded = self._context.catalog.fingerprints
        recipe = Recipe.of(session)
        options, environment = recipe.inputs()
        missing = [name for name in recipe.toolpacks if name not in loaded]
        if missing:
            raise ClassesChangedError(f"The session's toolpack {missing[0]!r} is not loaded any more: load it.")
        return BundleHead(
            server=installed_version("toolpack-server"),
            python=self.codes.of(())["python"],
            toolpacks=[*recipe.toolpacks],
            fingerprints={name: loaded[name] for name in recipe.toolpacks},
            options={**options},
            environment={**environment},
            task=recipe.feature_options.get("task"),
            feature_options={name: value for name, value in recipe.feature_options.items() if name != "task"},
            labels={**session.labels},
            ttl_seconds=float(session.ttl_seconds),
            fork=began_as_fork(session),
            version=head.version,
            records=head.index + 1,
            details={
                **{name: value for name, value in details_of(session).items() if name not in {FORK, REPLAYS}},
                **({VERSIONS: recipe.versions} if recipe.versions else {}),
            },
        )

    def _payload(self, part: str, blob_id: str) -> str:
        """Return the bytes of a blob as a string, one character per byte, without the blob's seal."""
        blob = self._context.store.blobs([blob_id])[blob_id]
        return self._context.codec.unseal(part, blob_id, blob).decode("latin-1")

    # Reading

    def creation(self, request: ImportRequest, owner: str) -> Creation | None:
        """Return the identity of a request, by which a retry finds the session. Return None without a call_id."""
        if request.call_id is None:
            return None
        bundle = hashlib.blake2b(request.bundle.encode(), digest_size=32).hexdigest()
        parameters = ["ImportBundle", request.model_dump(exclude={"call_id", "bundle"}), bundle]
        return self._context.identities.creation(owner, request.call_id, parameters)

    def restore(self, request: ImportRequest, owner: str, reservation: Reservation) -> Session:
        """Store an exact copy of a bundle's session, with a new id. A retry with the same call_id returns that copy.

        Raises:
            StateDamagedError: The bundle's hash is wrong, or a blob can't be decoded.
            InvalidParamsError: The bundle isn't valid, or a toolpack isn't loaded.
            ClassesChangedError: The bundle was written by other classes than the loaded classes.
            TooLargeError: The unpacked bundle is too large.
        """
        memory = _MemoryReservation(reservation, XZ_MEMORY + COPIES * len(request.bundle))
        lines = self._read(request.bundle, memory, self._keyed, loads)
        head = self._head_of(lines)
        creation = self.creation(request, owner)
        created = self._factory.earlier_sessions(owner, creation, 1)
        if created:
            return self._context.session_views.of(created[0], head.version, called_at=created[0].created_at)
        template = session_template(
            owner,
            Recipe.new(
                tuple(head.toolpacks), head.all_feature_options(), head.options, head.environment, head.versions
            ).stored,
            head.labels if request.labels is None else request.labels,
            head.ttl_seconds if request.ttl_seconds is None else request.ttl_seconds,
            {**head.details, **({FORK: True} if head.fork else {})},
        )
        session = self._factory.with_identity(template, creation)
        content = BundleContent(self._context, head, session.id, memory.reserve_for_request)
        for line, _ in lines:
            content.add(line)
        content.check()
        return self._factory.restore(session, content.changes, content.blobs, content.records, creation)

    def read_for_replay(self, request: ImportRequest, reservation: Reservation) -> tuple[BundleHead, Records]:
        """Return the head and the records of a bundle. Blobs and versions aren't read.

        Raises:
            InvalidParamsError: The bundle isn't valid, or its session is a fork.
            TooLargeError: The unpacked bundle is too large. The iterator of the records can also raise this error.
        """
        memory = _MemoryReservation(reservation, XZ_MEMORY + PAGE_BYTES + COPIES * len(request.bundle))
        lines = self._read(request.bundle, memory, None, self._parse_untrusted)
        head = self._head_of(lines)
        if head.fork:
            raise InvalidParamsError(
                "The bundle's session is a fork, so its first environment can't be built from options: import it with "
                "the mode `exact`, and replay that session."
            )
        return head, _shown(lines, self._context.record_kinds)

    def _read(
        self, bundle: str, memory: "_MemoryReservation", keyed: KeyedHash | None, read: Read
    ) -> Iterator[tuple[Line, int]]:
        """Yield the lines of a bundle, each with an estimate of its memory in bytes.

        Args:
            keyed: The keyed hash to check. None: don't check the hash, and omit the blobs.
            read: Parses the JSON of a line.
        """
        try:
            decoded = base64.b64decode(bundle, validate=True)
        except (binascii.Error, ValueError):
            raise InvalidParamsError("The bundle isn't valid base64.") from None
        blobs, max_line_bytes = keyed is not None, self._context.settings.max_body_bytes
        compressed = compressed_part(decoded, keyed)
        for text in unpack(compressed, self._max_raw_bytes, max_line_bytes, memory.reserve, blobs=blobs):
            if is_blob(text) and not blobs:
                continue
            size = len(text) if is_blob(text) else parsed_bytes(text)
            memory.reserve(len(text) + size)
            yield read_line(text, read), size

    def _head_of(self, lines: Iterator[tuple[Line, int]]) -> BundleHead:
        """Read the first line, and return the head in it.

        Raises:
            InvalidParamsError: The line isn't a head, or has data of a feature that this server lacks.
        """
        line, _ = next(lines, (None, 0))
        if line is None or line.head is None:
            raise InvalidParamsError("The bundle doesn't begin with its head.")
        unknown = self._context.unknown(line.head.all_feature_options(), line.head.details)
        if unknown is not None:
            made_by = f" ({shown(line.head.server)})" if line.head.server else ""
            raise InvalidParamsError(
                f"The bundle's session has data {unknown!r}, which this server doesn't know: import it on a server of "
                f"the version that made it{made_by}, or a newer one."
            )
        return line.head

    def _parse_untrusted(self, text: bytes) -> Any:
        """Parse a line of a stranger's bundle, within the limits for the JSON of a request."""
        limits = self._context.settings
        if has_more_values(text, limits.max_json_values):
            raise InvalidParamsError(f"A line of the bundle has more than {limits.max_json_values} values.")
        value = loads(text)
        if is_deeper(text, value, limits.max_json_depth):
            raise InvalidParamsError(f"A line of the bundle is nested more than {limits.max_json_depth} deep.")
        return value


class _MemoryReservation:
    """Reservation of the memory for reading one bundle.

    Args:
        needed: Bytes that are reserved from the start until the request is answered.
    """

    def __init__(self, reservation: Reservation, needed: int) -> None:
        self._reservation = reservation
        self._needed = needed
        self.reserve(0)

    def reserve_for_request(self, size: int) -> None:
        """Reserve further bytes until the request is answered."""
        self._needed += size
        self.reserve(0)

    def reserve(self, size: int) -> None:
        """Reserve bytes for one line. The reservation only grows, so it covers later lines of the same size.

        Raises:
            TooLargeError: The bundle needs more memory than a request is allowed to use.
        """
        needed, max_bytes = self._needed + size, self._reservation.in_flight.max_per_request
        if needed > max_bytes:
            raise TooLargeError(
                f"Unpacking the bundle needs more than {max_bytes} bytes of memory, the limit of a request: export it "
                "with `versions` set to `ends`."
            )
        self._reservation.grow_to(needed)


def _shown(lines: Iterator[tuple[Line, int]], kinds: RecordKinds) -> Records:
    """Yield the records in the lines of a bundle. Raise `InvalidParamsError` for a record that can't be run again."""
    index = 0
    for line, size in lines:
        if line.record is None:
            continue
        record = record_of(line.record[0], kinds)
        if record.index != index:
            raise InvalidParamsError(f"Record {record.index} of the bundle is out of order.")
        if record.kind not in kinds:
            raise InvalidParamsError(
                f"Record {index} of the bundle has the kind {shown(record.kind)!r}, which this server doesn't know: "
                "replay it on a server with the feature that records this kind."
            )
        yield line.record[0], size
        index += 1
