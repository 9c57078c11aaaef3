"""Content of a bundle that is imported as an exact copy, checked line by line while it is read.

A correct keyed hash proves who wrote the bundle, but not that its content is consistent. So its versions, blobs and
records are checked before the session is stored.
"""

from collections.abc import Callable, Mapping
from typing import Any

from toolpack_server.base.errors import ClassesChangedError, InvalidParamsError, shown
from toolpack_server.execution.operations import ExportEnvironments
from toolpack_server.execution.parts import toolpack_of
from toolpack_server.execution.snapshot import Snapshot
from toolpack_server.features.evaluation.episodes.progress import ProgressChecker
from toolpack_server.features.replay.bundle_format import BundleHead, Line, record_of
from toolpack_server.protocol.senders import AGENT, CLIENT, WORLD
from toolpack_server.sessions.context import SessionContext
from toolpack_server.sessions.records import stored_call_id
from toolpack_server.stores.base import Record
from toolpack_server.volumes.volume import is_piece


class BundleContent:
    """The content of a bundle, converted for a session with a new id.

    Attributes:
        changes: For each version, the blob id of each part that it changes.
        blobs: The blobs, by their new ids.
        records: The records, encoded for the new session.

    Args:
        session_id: The new session's id.
        reserve: Reserves memory. Called with the size in bytes of each added blob and record.

    Raises:
        InvalidParamsError: A toolpack of the bundle isn't loaded, or a feature refuses its data.
        ClassesChangedError: The bundle was written by other classes than the loaded classes.
    """

    def __init__(
        self, context: SessionContext, head: BundleHead, session_id: str, reserve: Callable[[int], None]
    ) -> None:
        self.head = head
        self.changes: dict[int, dict[str, str]] = {}
        self.blobs: dict[str, bytes] = {}
        self.records: list[Record] = []
        self._context = context
        self._session_id = session_id
        self._reserve = reserve
        self._blob_ids: dict[int, tuple[str, str]] = {}  # part and new blob id, by the blob's number in the bundle
        self._call_ids: set[str] = set()
        self._progress = ProgressChecker(began_as_fork=head.fork) if head.all_feature_options() else None
        loaded, versions = context.catalog.fingerprints, context.catalog.versions(head.toolpacks)
        for name in head.toolpacks:
            if name not in loaded:
                raise InvalidParamsError(f"The bundle needs the toolpack {shown(name)!r}, which isn't loaded: load it.")
            if head.fingerprints.get(name) != loaded[name]:
                wrote, here = (f" ({each[name]})" if name in each else "" for each in (head.versions, versions))
                raise ClassesChangedError(
                    f"The bundle was written by other classes of the toolpack {name!r}{wrote} than the loaded "
                    f"ones{here}: load those classes, or import the bundle with the mode `replay`."
                )
        for hook in context.creation_hooks:
            hook.check_feature_options(head.feature_options, head.toolpacks)
        self._participants = context.addresses.named.of(head.feature_options)
        self._names = {CLIENT, WORLD, *(self._participants or (AGENT,))}

    def add(self, line: Line) -> None:
        """Check and add a line.

        Raises:
            InvalidParamsError: The line contradicts the lines before it.
            StateDamagedError: A blob can't be decoded.
        """
        if line.blob is not None:
            self._add_blob(*line.blob)
        elif line.version is not None:
            self._add_version(*line.version)
        elif line.record is not None:
            self._add_record(*line.record)
        else:
            raise InvalidParamsError("The bundle has two heads.")

    def _add_blob(self, number: int, part: str, text: str) -> None:
        """Check a blob, and seal it with this server's key under a new id.

        Args:
            number: The blob's number in the bundle, by which versions refer to it.
            part: The part that the blob belongs to.
            text: The blob's bytes, each as one character.
        """
        if number in self._blob_ids or toolpack_of(part) not in self.head.toolpacks:
            raise InvalidParamsError(f"Blob {number} of the bundle occurs twice, or belongs to no toolpack.")
        try:
            payload = text.encode("latin-1")
        except UnicodeEncodeError:
            raise InvalidParamsError(f"Blob {number} of the bundle has characters that aren't bytes.") from None
        blob_id, blob = self._context.codec.seal(part, payload)
        self._blob_ids[number] = part, blob_id
        self.blobs[blob_id] = blob
        self._reserve(len(blob))
        if is_piece(part):  # a piece can't be decoded without the pieces before it
            return
        # Decode the blob, so that an unreadable blob is refused now and not at a later call.
        self._context.runner.run(ExportEnvironments(Snapshot({part: blob_id}, {part: blob})))

    def _add_version(self, version: int, parts: Mapping[str, int]) -> None:
        """Check a version, and add it. `parts` maps each changed part to the number of its blob."""
        newest = max(self.changes, default=None)
        # Versions can be missing only after version 0, because a store deletes old versions but keeps version 0.
        follows = version == 0 if newest is None else version == newest + 1 or (newest == 0 and version > 0)
        if not follows or any(self._blob_ids.get(number, ("",))[0] != part for part, number in parts.items()):
            raise InvalidParamsError(f"Version {version} of the bundle is out of order or lacks a blob.")
        self.changes[version] = {part: self._blob_ids[number][1] for part, number in parts.items()}

    def _add_record(self, shown_line: dict[str, Any], private: dict[str, Any] | None) -> None:
        """Check a record, and add it.

        Args:
            shown_line: The record as clients see it.
            private: The fields that clients don't see.
        """
        record = record_of(shown_line, self._context.record_kinds)
        before = self.records[-1].version if self.records else 0
        follows = record.index == len(self.records) and record.version in (before, before + 1)
        by = shown_line.get("by", CLIENT)
        if not (isinstance(by, str) and isinstance(shown_line.get("to"), str | None)):
            raise InvalidParamsError(
                f"Record {record.index} of the bundle has a sender, recipient or call_id that isn't the session's."
            )
        call_id = record.call_id and stored_call_id(record.call_id, by)
        if not follows or call_id in self._call_ids:
            raise InvalidParamsError(
                f"Record {record.index} of the bundle is out of order, or its call_id is used twice."
            )
        # The call_id of a named participant begins with its name, so that no participant can use another one's call_id.
        is_own_call_id = by == CLIENT or self._participants is None or (record.call_id or "").startswith(f"{by}/")
        has_valid_names = by in self._names and shown_line.get("to") in {None, *self._names} - {CLIENT, WORLD}
        if not has_valid_names or not (is_own_call_id or record.call_id is None):
            raise InvalidParamsError(
                f"Record {record.index} of the bundle has a sender, recipient or call_id that isn't the session's."
            )
        if self._progress is not None:
            self._progress.add(self._context.record_kinds[record.kind], shown_line, private or {})
        if call_id is not None:
            self._call_ids.add(call_id)
        self.records.append(self._context.records.write(self._session_id, shown_line, private))
        self._reserve(len(self.records[-1].body))

    def check(self) -> None:
        """Check that the bundle is complete, after its last line.

        Raises:
            InvalidParamsError: Versions, records or environments are missing.
        """
        last = self.records[-1].version if self.records else 0
        if not (max(self.changes, default=-1) == last == self.head.version and len(self.records) == self.head.records):
            raise InvalidParamsError("The bundle has other versions or records than its head says.")
        toolpacks = {toolpack_of(part) for part in self.changes[0]}
        if toolpacks != {*self.head.toolpacks}:
            raise InvalidParamsError("The bundle lacks the environment of a toolpack.")
