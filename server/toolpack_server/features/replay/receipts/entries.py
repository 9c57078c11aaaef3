"""Entries of a receipt: all data to run a session again, and the expected results.

An entry is created from a session's bundle. `verify` converts the entry back to a bundle, runs the session again,
creates a new entry from the new session, and compares the two entries. So an entry omits the values that a replay can't
reproduce: times, `call_id`s, ids and snapshots. The receipt contains the versions of the server and of Python once, not
in each entry.
"""

import base64
from collections.abc import Iterator, Mapping
from typing import Any

import click

from toolpack_server.base.settings import Settings
from toolpack_server.cli.requests import Send
from toolpack_server.features.evaluation.episodes.rights import PARTICIPANTS
from toolpack_server.features.replay.bundle_format import (
    BundleHead,
    Line,
    compressed_part,
    is_blob,
    pack,
    read_line,
    unpack,
)
from toolpack_server.features.replay.receipts.receipt import ReceiptEntry, ReceiptPart, Times
from toolpack_server.features.replay.results import Code
from toolpack_server.features.replay.writers import WRITTEN_BY
from toolpack_server.jsonio.strict import dumps
from toolpack_server.snapshots.seal import KeyedHash

UNPACKED_BYTES = 2**30  # max size of an unpacked bundle, which comes from the user's own server
PAGE = 1000  # max records in one page of a trace
_Record = dict[str, Any]

_TIMES = {"started_at", "duration_ms"}
_NOT_REPEATED = ("deadline", "crashed")
"""Failures after which a call isn't run again. Their error messages depend on the machine, so they can differ."""
_ANY_KEY = KeyedHash(b"any key, because a replay doesn't check the hash", "bundle")


async def create_entry(send: Send, summary: Mapping[str, Any]) -> tuple[ReceiptEntry, list[Times], Code]:
    """Return the receipt's entry for an evaluated session, the times of its records, and the code of its server.

    Args:
        summary: The session's summary, with the verdict.

    Raises:
        ClickException: The session can't be in a receipt.
    """
    session_id, verdict = summary["session_id"], summary["verdict"]
    head, records, code = await _exported(send, session_id)
    if head.version != verdict["version"] or head.task is None:
        raise click.ClickException(f"Session {session_id} changed while it was evaluated: evaluate it again.")
    ancestors = await _ancestors(send, session_id) if head.fork else []
    alone = PARTICIPANTS not in head.feature_options
    entry = ReceiptEntry(
        toolpacks=head.toolpacks,
        options=head.options,
        environment=head.environment,
        task=head.task,
        feature_options=head.feature_options,
        details=head.details,
        labels=head.labels,
        version=head.version,
        records=_without_ids(records, alone=alone),
        verdict=dict(verdict),
        forked_from=[
            ReceiptPart(details=each.details, records=_without_ids(each.records, alone=alone), version=each.version)
            for each in ancestors
        ],
    )
    all_records = [record for each in [*(part.records for part in ancestors), records] for record in each]
    return entry, [(each["started_at"], each["duration_ms"]) for each in all_records], code


async def _exported(send: Send, session_id: str) -> tuple[BundleHead, list[_Record], Code]:
    """Export a session. Return the head and the records of its bundle, and the code of its server."""
    exported = await send("export_bundle", {"session_id": session_id, "versions": "ends"})
    lines = _lines(base64.b64decode(exported["bundle"]))
    head = next(lines).head
    if head is None:
        raise click.ClickException(f"Session {session_id} can't be in a receipt: its bundle has no head.")
    return head, [line.record[0] for line in lines if line.record is not None], exported["code"]


async def _ancestors(send: Send, session_id: str) -> list[ReceiptPart]:
    """Return the histories of a fork's ancestors, the oldest first.

    A history contains the records up to the last record that the fork inherited. Later records aren't part of the fork.

    Raises:
        ClickException: An ancestor is unknown or can't be read.
    """
    last_indexes = dict[str, int]()  # number of the inherited records, by session
    after = -1
    while page := await send("get_trace", {"session_id": session_id, "path": True, "after": after, "limit": PAGE}):
        last_indexes |= {record["session_id"]: record["index"] for record in page}
        after = page[-1]["path_index"]
    ancestors: list[ReceiptPart] = []
    fork_id, is_fork = session_id, True
    while is_fork:
        parent = (await send("get_session", {"session_id": fork_id})).get("parent")
        if parent is None:
            raise click.ClickException(
                f"Session {session_id} can't be in a receipt: {fork_id} is a fork that was imported in a bundle."
            )
        parent_id, version = parent["session_id"], parent["version"]
        try:
            head, records, _ = await _exported(send, parent_id)
        except click.ClickException as error:
            raise click.ClickException(
                f"Session {session_id} can't be in a receipt: its parent {parent_id} can't be read "
                f"({error.format_message()}). Evaluate forks while their parents are open."
            ) from None
        # The history includes the record that created the version, even if the fork's path ends before that record.
        created_by = next((index for index, record in enumerate(records) if record["version"] >= version > 0), -1)
        inherited = records[: max(created_by, last_indexes.get(parent_id, -1)) + 1]
        ancestors.insert(0, ReceiptPart(details=head.details, records=inherited, version=version))
        fork_id, is_fork = parent_id, head.fork
    return ancestors


def _without_ids(records: list[_Record], *, alone: bool) -> list[_Record]:
    """Return records without their times and call_ids.

    Args:
        alone: The session has a single agent, not named participants.
    """

    def is_kept(name: str, record: _Record) -> bool:
        # A single agent's answer has `by` only if it had a call_id, so `by` is dropped with the call_id.
        return name not in _TIMES | {"call_id"} and not (name == "by" and alone and "function" not in record)

    return [{name: value for name, value in record.items() if is_kept(name, record)} for record in records]


def _lines(bundle: bytes) -> Iterator[Line]:
    """Yield the lines of a bundle without its blobs."""
    for line in unpack(compressed_part(bundle, None), UNPACKED_BYTES, UNPACKED_BYTES, lambda _: None, blobs=False):
        if not is_blob(line):
            yield read_line(line)


def create_bundle(entry: ReceiptEntry, part: ReceiptPart, times: list[Times], settings: Settings) -> str:
    """Return a bundle in base64 that replays the records of a part. It has no snapshots."""
    head = BundleHead(
        server="",
        python="",
        toolpacks=entry.toolpacks,
        fingerprints={},
        options=entry.options,
        environment=entry.environment,
        task=entry.task,
        feature_options=entry.feature_options,
        labels=entry.labels,
        ttl_seconds=settings.ttl_seconds,
        fork=False,
        version=part.version,
        records=len(part.records),
        details={**part.details},
    )
    lines = [dumps({"head": head.shown()})]
    for record, (started_at, duration_ms) in zip(part.records, times, strict=True):
        with_times = {**record, "duration_ms": duration_ms, "started_at": started_at}
        lines.append(dumps({"record": [with_times, None]}))
    # In base64 the bundle is a third larger, so it fits into a request. The second limit is that of `Bundles`.
    max_bytes = settings.max_body_bytes
    return base64.b64encode(pack(lines, _ANY_KEY, max_bytes * 2 // 3, max_bytes * 16)).decode()


def find_difference(recorded: ReceiptEntry, replayed: ReceiptEntry) -> dict[str, Any] | None:
    """Return the first difference between an entry and the entry of its replay, or None if the two are equal.

    `what` is the name of the field that differs. If the field is in a record, `position` is that record's number.
    """
    other_writers = recorded.details.get(WRITTEN_BY) != replayed.details.get(WRITTEN_BY)
    for position, pair in enumerate(zip(recorded.all_records, replayed.all_records, strict=False)):
        difference = _first_difference(*(_comparable(each, other_writers=other_writers) for each in pair))
        if difference is not None:
            return {"position": position, **difference}
    return _first_difference(*map(_without_records, (recorded, replayed)))


def _comparable(record: Mapping[str, Any], *, other_writers: bool) -> dict[str, Any]:
    """Return the fields of a record that a replay must reproduce."""
    omitted = {"error"} if record.get("failure") in _NOT_REPEATED else set()
    # Another version of SQLite might store a database in other bytes, so the digest would differ: see `replay.writers`.
    omitted |= {"state"} if other_writers else set()
    return {name: value for name, value in record.items() if name not in omitted}


def _without_records(entry: ReceiptEntry) -> dict[str, Any]:
    """Return an entry with the number of records in each part instead of the records, which are compared first."""
    rest = entry.model_dump(exclude={"records", "forked_from"})
    failure = entry.verdict.get("failure")
    if isinstance(failure, dict) and failure.get("kind") == "infrastructure":  # the message depends on the machine
        rest["verdict"] = {**entry.verdict, "failure": failure.get("type")}
    parts = [(each.version, len(each.records)) for each in entry.parts]
    details = [{name: value for name, value in each.details.items() if name != WRITTEN_BY} for each in entry.parts]
    return {**rest, "details": details, "records": parts}


def _first_difference(recorded: Mapping[str, Any], replayed: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the name of the first field that differs, with both values as JSON, or None if all fields are equal."""
    for name in sorted(recorded.keys() | replayed.keys()):
        texts = [dumps(each[name], sort_keys=True).decode() if name in each else None for each in (recorded, replayed)]
        if texts[0] != texts[1]:
            return {"what": name, "recorded": texts[0], "replayed": texts[1]}
    return None
