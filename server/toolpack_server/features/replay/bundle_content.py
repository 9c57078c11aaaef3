"""What a bundle holds, checked line by line while it is read.

Its keyed hash is right, but that only says who wrote it. Nothing that doesn't fit together is stored.
"""

from collections.abc import Callable, Mapping
from typing import Any

from toolpack_server.base.errors import ClassesChangedError, InvalidParamsError, shown
from toolpack_server.execution.operations import ExportEnvironments
from toolpack_server.execution.parts import toolpack_of
from toolpack_server.execution.snapshot import Snapshot
from toolpack_server.features.evaluation.episodes.progress import ProgressChecker
from toolpack_server.features.replay.bundle_format import BundleHead, Line, record_of
from toolpack_server.protocol.senders import AGENT, CLIENT
from toolpack_server.sessions.context import SessionContext
from toolpack_server.sessions.records import stored_call_id
from toolpack_server.stores.base import Record
from toolpack_server.volumes.volume import is_piece


class Content:
    """What an exact bundle holds, checked line by line.

    Attributes:
        changes: For each version, the blob id of each part that it changes.
        blobs: The blobs, by their new ids.
        records: The records, written for the session with the new id.

    Args:
        session_id: The new id.
        keep: Called with the bytes of each blob and record that is kept here.
    """

    def __init__(self, context: SessionContext, head: BundleHead, session_id: str, keep: Callable[[int], None]) -> None:
        self.head = head
        self.changes: dict[int, dict[str, str]] = {}
        self.blobs: dict[str, bytes] = {}
        self.records: list[Record] = []
        self._context = context
        self._session_id = session_id
        self._keep = keep
        self._ids: dict[int, tuple[str, str]] = {}
        self._call_ids: set[str] = set()
        self._recount = ProgressChecker(began_as_fork=head.fork) if head.all_kept() else None
        loaded, versions = context.catalog.fingerprints, context.catalog.versions(head.toolpacks)
        for name in head.toolpacks:
            if name not in loaded:
                raise InvalidParamsError(f"The bundle needs the toolpack {shown(name)!r}, which isn't loaded: load it.")
            if head.fingerprints.get(name) != loaded[name]:
                wrote, here = (f" ({each[name]})" if name in each else "" for each in (head.versions, versions))
                raise ClassesChangedError(
                    f"The bundle was written by other classes of the toolpack {name!r}{wrote} than those that are "
                    f"loaded{here}: load the classes that wrote it, or import it with the mode `replay`."
                )

        for hook in context.creation_hooks:
            hook.check_kept(head.kept, head.toolpacks)
        self._named = context.addresses.named.of(head.kept)
        self._names = {CLIENT, *(self._named or (AGENT,))}

    def add(self, line: Line) -> None:
        if line.blob is not None:
            self._add_blob(*line.blob)
        elif line.version is not None:
            self._add_version(*line.version)
        elif line.record is not None:
            self._add_record(*line.record)
        else:
            raise InvalidParamsError("The bundle has two heads.")

    def _add_blob(self, number: int, part: str, text: str) -> None:
        if number in self._ids or toolpack_of(part) not in self.head.toolpacks:
            raise InvalidParamsError(f"Blob {number} of the bundle is there twice, or belongs to no toolpack.")
        try:
            payload = text.encode("latin-1")
        except UnicodeEncodeError:
            raise InvalidParamsError(f"Blob {number} of the bundle isn't written as bytes.") from None
        blob_id, blob = self._context.codec.seal(part, payload)
        self._ids[number] = part, blob_id
        self.blobs[blob_id] = blob
        self._keep(len(blob))
        if is_piece(part):  # alone it can't be read
            return
        # Read once: what can't be read here is refused now, not at some call.
        self._context.runner.run(ExportEnvironments(Snapshot({part: blob_id}, {part: blob})))

    def _add_version(self, version: int, parts: Mapping[str, int]) -> None:
        newest = max(self.changes, default=None)
        follows = version == 0 if newest is None else version == newest + 1 or (newest == 0 and version > 0)
        if not follows or any(self._ids.get(number, ("",))[0] != part for part, number in parts.items()):
            raise InvalidParamsError(f"Version {version} of the bundle doesn't follow the one before, or lacks a blob.")
        self.changes[version] = {part: self._ids[number][1] for part, number in parts.items()}

    def _add_record(self, shown_line: dict[str, Any], private: dict[str, Any] | None) -> None:
        record = record_of(shown_line, self._context.record_kinds)
        before = self.records[-1].version if self.records else 0
        follows = record.index == len(self.records) and record.version in (before, before + 1)
        by = shown_line.get("by", CLIENT)
        if not (isinstance(by, str) and isinstance(shown_line.get("to"), str | None)):
            raise InvalidParamsError(f"Record {record.index} of the bundle is of nobody in its session.")
        call_id = record.call_id and stored_call_id(record.call_id, by)
        if not follows or call_id in self._call_ids:
            raise InvalidParamsError(f"Record {record.index} of the bundle doesn't follow the one before.")
        own = by == CLIENT or self._named is None or (record.call_id or "").startswith(f"{by}/")
        known = by in self._names and shown_line.get("to") in {None, *self._names} - {CLIENT}
        if not known or not (own or record.call_id is None):
            raise InvalidParamsError(f"Record {record.index} of the bundle is of nobody in its session.")
        if self._recount is not None:
            self._recount.add(self._context.record_kinds[record.kind], shown_line, private or {})
        if call_id is not None:
            self._call_ids.add(call_id)
        self.records.append(self._context.records.write(self._session_id, shown_line, private))
        self._keep(len(self.records[-1].body))

    def check(self) -> None:
        last = self.records[-1].version if self.records else 0
        if not (max(self.changes, default=-1) == last == self.head.version and len(self.records) == self.head.records):
            raise InvalidParamsError("The bundle lacks versions or records that its head names.")
        toolpacks = {toolpack_of(part) for part in self.changes[0]}
        if toolpacks != {*self.head.toolpacks}:
            raise InvalidParamsError("The bundle lacks the environment of a toolpack.")
