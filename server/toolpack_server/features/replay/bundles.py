"""Bundles: a session leaves the server as one file, and comes back exactly, here or elsewhere.

A bundle holds what the session is, and nothing by which it is found: no id, agent path, owner or key. What is
imported is stored as a whole or not at all, sealed anew with this server's key.
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
from toolpack_server.features.replay.bundle_content import Content
from toolpack_server.features.replay.bundle_format import (
    XZ_MEMORY,
    BundleHead,
    Line,
    is_blob,
    pack,
    read_line,
    record_of,
    sealed,
    unpack,
)
from toolpack_server.features.replay.code import codes_of
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

UNPACKED_FACTOR = 16
UNPACKED_SHARE = 2  # one part of so many of the memory that requests may take; the rest is for what is made of it
ENVELOPE_BYTES = 1024  # of the request that carries a bundle
RECORDS_AT_ONCE = 64
EXPORT_ATTEMPTS = 5
COPIES = 2  # of a bundle while it is read: the request's text, and the bytes that it stands for
PAGE_BYTES = 2**20  # of records of a stranger that are read before they are run

Read = Callable[[bytes], Any]
"""Reads the JSON text of a line."""

Records = Iterator[tuple[Mapping[str, Any], int]]
"""What clients see of the records of a stranger, and about the memory that each takes."""


class ImportRequest(Parameters):
    """What a client asks for with a bundle."""

    bundle: str = Field(description="What `export_bundle` gave, in base64.")
    mode: Literal["exact", "replay"] = Field(
        "exact", description="`replay` takes bundles of strangers: nothing but arguments is used, and then compared."
    )
    labels: Labels | None = Field(None, description="The labels of the session; default: those in the bundle.")
    ttl_seconds: TtlSeconds
    limit: int = Field(1000, ge=1, le=100_000, description="How many records to run again, at most, with `replay`.")
    call_id: CallId


class Bundles:
    """Writes and reads bundles. Its methods block, so they are called in threads only.

    Args:
        most: How many bytes of memory a request may take.

    Attributes:
        codes: The code that runs here.
    """

    def __init__(self, context: SessionContext, factory: SessionFactory, key: bytes, most: int) -> None:
        self.codes = codes_of(context.catalog)
        self._context = context
        self._factory = factory
        self._keyed = KeyedHash(key, "bundle")
        body = context.settings.max_body_bytes
        self._max_bytes = (body - ENVELOPE_BYTES) * 3 // 4  # it travels in base64
        self._max_raw_bytes = min(UNPACKED_FACTOR * body, most // UNPACKED_SHARE)

    # Writing

    def export(self, reader: SessionReader, session_id: str, owner: str | None, *, ends: bool) -> bytes:
        """Write a session: all versions that are kept, or only the first and the current one.

        Raises:
            ClassesChangedError: Other classes wrote it than those that are loaded.
            TooLargeError: The bundle would be too large.
            OverloadedError: It lost versions as fast as they were read.
        """
        gone: set[str] = set()
        for _ in range(EXPORT_ATTEMPTS):
            session, head = reader.find(session_id, owner)
            try:
                return pack(self._lines(session, head, ends=ends), self._keyed, self._max_bytes, self._max_raw_bytes)
            except VersionNotRetainedError:  # the current one: calls have gone on, and nothing but that is kept
                continue
            except MissingBlobError as error:  # of a version that was trimmed: the next attempt has it no more
                if str(error) in gone:
                    raise
                gone.add(str(error))
        raise OverloadedError("The session changes faster than it can be exported: export it when its calls are done.")

    def _lines(self, session: StoredSession, head: Head, *, ends: bool) -> Iterator[bytes]:
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
            found = self._context.store.records(session.id, after, min(RECORDS_AT_ONCE, head.index - after))
            if not found:
                self._raise_lost(session.id, head)
            for record in found:
                yield dumps({"record": [*map(Fragment, self._context.records.read(session.id, record))]})
                after = record.index

    def _raise_lost(self, session_id: str, head: Head) -> NoReturn:
        """Say why records are missing that a head has named."""
        now = self._context.store.get(session_id)
        if now is None:
            raise SessionNotFoundError
        if now[1] != head:
            raise OverloadedError("The session lost records while it was exported: export it again.")
        raise StateDamagedError("Records of the session are missing from the store: restore a backup.")

    def _versions(self, session: StoredSession, head: Head, *, ends: bool) -> list[tuple[int, Mapping[str, str]]]:
        """Get the versions that go into a bundle, in order, and the blob id of each of their parts.

        They are read from the newest to the oldest: one that isn't kept any more ends the list, as versions are deleted
        in their order.
        """
        read = self._context.store.parts_at
        found = [(head.version, read(session.id, head.version))]
        for version in range(head.version - 1, 0, -1) if not ends else ():
            try:
                found.append((version, read(session.id, version)))
            except VersionNotRetainedError:
                break
        if head.version > 0:
            found.append((0, read(session.id, 0)))
        return found[::-1]

    def _head(self, session: StoredSession, head: Head) -> BundleHead:
        loaded = self._context.catalog.fingerprints
        recipe = Recipe.of(session)
        options, environment = recipe.given()
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
            task=recipe.kept.get("task"),
            kept={name: value for name, value in recipe.kept.items() if name != "task"},
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
        blob = self._context.store.blobs([blob_id])[blob_id]
        return self._context.codec.unseal(part, blob_id, blob).decode("latin-1")

    # Reading

    def creation(self, request: ImportRequest, owner: str) -> Creation | None:
        """Get what makes a request to import repeatable; None if it has no call_id."""
        if request.call_id is None:
            return None
        bundle = hashlib.blake2b(request.bundle.encode(), digest_size=32).hexdigest()
        asked = ["ImportBundle", request.model_dump(exclude={"call_id", "bundle"}), bundle]
        return self._context.identities.creation(owner, request.call_id, asked)

    def restore(self, request: ImportRequest, owner: str, reservation: Reservation) -> Session:
        """Store the session of a bundle, exactly as it was, but with another id; a repeated request stores no other.

        Raises:
            StateDamagedError: The bundle's hash is wrong, or what it holds can't be read.
            InvalidParamsError: It isn't a bundle, or a toolpack isn't loaded.
            ClassesChangedError: Other classes wrote it than those that are loaded.
            TooLargeError: It is too large, unpacked.
        """
        memory = _Memory(reservation, XZ_MEMORY + COPIES * len(request.bundle))
        lines = self._read(request.bundle, memory, self._keyed, loads)
        head = self._head_of(lines)
        creation = self.creation(request, owner)
        created = self._factory.created(owner, creation, 1)
        if created:
            return self._context.session_views.of(created[0], head.version, called_at=created[0].created_at)
        template = session_template(
            owner,
            Recipe.new(tuple(head.toolpacks), head.all_kept(), head.options, head.environment, head.versions).stored,
            head.labels if request.labels is None else request.labels,
            head.ttl_seconds if request.ttl_seconds is None else request.ttl_seconds,
            {**head.details, **({FORK: True} if head.fork else {})},
        )
        session = self._factory.identified(template, creation)
        content = Content(self._context, head, session.id, memory.keep)
        for line, _ in lines:
            content.add(line)
        content.check()
        return self._factory.restore(session, content.changes, content.blobs, content.records, creation)

    def to_repeat(self, request: ImportRequest, reservation: Reservation) -> tuple[BundleHead, Records]:
        """Get what a session began with, and what its records show; nothing else is used.

        Raises:
            InvalidParamsError: It isn't a bundle, or it is one of a fork.
            TooLargeError: It is too large, unpacked; also while the records are read.
        """
        memory = _Memory(reservation, XZ_MEMORY + PAGE_BYTES + COPIES * len(request.bundle))
        lines = self._read(request.bundle, memory, None, self._read_strangers)
        head = self._head_of(lines)
        if head.fork:
            raise InvalidParamsError(
                "The bundle is one of a fork, so only its snapshots show how it began: import it with the mode "
                "`exact`, and replay that session."
            )
        return head, _shown(lines, self._context.record_kinds)

    def _read(self, bundle: str, memory: "_Memory", keyed: KeyedHash | None, read: Read) -> Iterator[tuple[Line, int]]:
        """Read the lines of a bundle, and get about the memory that each takes; without a key all but the blobs."""
        try:
            decoded = base64.b64decode(bundle, validate=True)
        except (binascii.Error, ValueError):
            raise InvalidParamsError("The bundle isn't written in base64.") from None
        blobs, max_line_bytes = keyed is not None, self._context.settings.max_body_bytes
        for text in unpack(sealed(decoded, keyed), self._max_raw_bytes, max_line_bytes, memory.reserve, blobs=blobs):
            if is_blob(text) and not blobs:
                continue
            size = len(text) if is_blob(text) else parsed_bytes(text)
            memory.reserve(len(text) + size)
            yield read_line(text, read), size

    def _head_of(self, lines: Iterator[tuple[Line, int]]) -> BundleHead:
        line, _ = next(lines, (None, 0))
        if line is None or line.head is None:
            raise InvalidParamsError("The bundle doesn't begin with its head.")
        unknown = self._context.unknown(line.head.all_kept(), line.head.details)
        if unknown is not None:
            made_by = f" ({shown(line.head.server)})" if line.head.server else ""
            raise InvalidParamsError(
                f"The bundle's session has {unknown!r}, which this server doesn't know: import it on a server of the "
                f"version that made it{made_by}, or a newer one."
            )
        return line.head

    def _read_strangers(self, text: bytes) -> Any:
        """Read JSON, within the limits of a request."""
        limits = self._context.settings
        if has_more_values(text, limits.max_json_values):
            raise InvalidParamsError(f"A line of the bundle has more than {limits.max_json_values} values.")
        value = loads(text)
        if is_deeper(text, value, limits.max_json_depth):
            raise InvalidParamsError(f"A line of the bundle is nested more than {limits.max_json_depth} deep.")
        return value


class _Memory:
    """The memory that reading one bundle takes, reserved before it is taken.

    Args:
        kept: What it takes from the beginning to the end.
    """

    def __init__(self, reservation: Reservation, kept: int) -> None:
        self._reservation = reservation
        self._kept = kept
        self.reserve(0)

    def keep(self, size: int) -> None:
        """Reserve more bytes that are kept to the end."""
        self._kept += size
        self.reserve(0)

    def reserve(self, size: int) -> None:
        """Reserve bytes that a line takes for a moment; those of the largest line stay reserved."""
        needed, most = self._kept + size, self._reservation.in_flight.max_per_request
        if needed > most:
            raise TooLargeError(
                f"To unpack the bundle takes more than {most} bytes of memory, which no request may take: export the "
                "versions `ends` only."
            )
        self._reservation.grow_to(needed)


def _shown(lines: Iterator[tuple[Line, int]], kinds: RecordKinds) -> Records:
    index = 0
    for line, size in lines:
        if line.record is None:
            continue
        record = record_of(line.record[0], kinds)
        if record.index != index:
            raise InvalidParamsError(f"Record {record.index} of the bundle doesn't follow the one before.")
        if record.kind not in kinds:
            raise InvalidParamsError(
                f"Record {index} of the bundle is of the kind {shown(record.kind)!r}, which no method of this server "
                "makes, so it can't be replayed."
            )
        yield line.record[0], size
        index += 1
