"""What a receipt has of a session, taken from the session's bundle; and the bundle that an entry stands for.

A receipt is verified by making it again, with this very code, from sessions that were run again. So whatever
an entry has is compared, to the last byte, and what can't be the same again isn't in it: times, `call_id`s, ids,
snapshots, and which server and Python have written the bundle, which the receipt says once for all.
"""

import base64
from collections.abc import Iterator, Mapping
from typing import Any

import click

from toolpack_server.base.settings import Settings
from toolpack_server.cli.requests import Send
from toolpack_server.features.evaluation.episodes.rights import PARTICIPANTS
from toolpack_server.features.replay.bundle_format import BundleHead, Line, is_blob, pack, read_line, sealed, unpack
from toolpack_server.features.replay.receipts.receipt import ReceiptEntry, ReceiptPart, Times
from toolpack_server.features.replay.results import Code
from toolpack_server.features.replay.writers import WRITTEN_BY
from toolpack_server.jsonio.strict import dumps
from toolpack_server.snapshots.seal import KeyedHash

UNPACKED_BYTES = 2**30  # of a bundle that the server has made, which was asked for
PAGE = 1000  # records of a path that are read at a time
_Record = dict[str, Any]

_TIMES = {"started_at", "duration_ms"}
_NOT_REPEATED = ("deadline", "crashed")
"""Calls that failed so aren't run again: what exactly they say is the machine's, also where a verdict quotes it."""
_ANY_KEY = KeyedHash(b"of nobody, as whoever runs records again needs none", "bundle")


async def entry_of(send: Send, summary: Mapping[str, Any]) -> tuple[ReceiptEntry, list[Times], Code]:
    """Get what a receipt has of a session that was evaluated, the times of its records, and the code that runs there.

    Raises:
        ClickException: It can't be in a receipt.
    """
    session_id, verdict = summary["session_id"], summary["verdict"]
    head, records, code = await _exported(send, session_id)
    if head.version != verdict["version"] or head.task is None:
        raise click.ClickException(f"Session {session_id} went on while it was evaluated: evaluate it again.")
    before = await _forked_from(send, session_id) if head.fork else []
    alone = PARTICIPANTS not in head.kept
    entry = ReceiptEntry(
        toolpacks=head.toolpacks,
        options=head.options,
        environment=head.environment,
        task=head.task,
        kept=head.kept,
        details=head.details,
        labels=head.labels,
        version=head.version,
        records=_without_ids(records, alone=alone),
        verdict=dict(verdict),
        forked_from=[
            ReceiptPart(details=each.details, records=_without_ids(each.records, alone=alone), version=each.version)
            for each in before
        ],
    )
    every = [record for each in [*(part.records for part in before), records] for record in each]
    return entry, [(each["started_at"], each["duration_ms"]) for each in every], code


async def _exported(send: Send, session_id: str) -> tuple[BundleHead, list[_Record], Code]:
    exported = await send("export_bundle", {"session_id": session_id, "versions": "ends"})
    lines = _lines(base64.b64decode(exported["bundle"]))
    head = next(lines).head
    if head is None:
        raise click.ClickException(f"Session {session_id} has no head in its bundle: it can't be in a receipt.")
    return head, [line.record[0] for line in lines if line.record is not None], exported["code"]


async def _forked_from(send: Send, session_id: str) -> list[ReceiptPart]:
    """Get the sessions that led to a fork, from the first one on, as far as they had come.

    Of each, these are the records up to the last one that counts for the fork: what it did later is no part of it.
    """
    last = dict[str, int]()
    place = -1
    while page := await send("get_trace", {"session_id": session_id, "path": True, "after": place, "limit": PAGE}):
        last |= {record["session_id"]: record["index"] for record in page}
        place = page[-1]["place"]
    found: list[ReceiptPart] = []
    at, is_fork = session_id, True
    while is_fork:
        parent = (await send("get_session", {"session_id": at})).get("parent")
        if parent is None:
            raise click.ClickException(
                f"Session {session_id} can't be in a receipt: {at} came in a bundle, and had begun as a fork."
            )
        at, version = parent["session_id"], parent["version"]
        try:
            head, records, _ = await _exported(send, at)
        except click.ClickException as error:
            raise click.ClickException(
                f"Session {session_id} can't be in a receipt, as {at}, from which it was forked, can't be read "
                f"({error.format_message()}): evaluate forks while that is open."
            ) from None
        made = next((place for place, record in enumerate(records) if record["version"] >= version > 0), -1)
        counted = records[: max(made, last.get(at, -1)) + 1]
        found.insert(0, ReceiptPart(details=head.details, records=counted, version=version))
        is_fork = head.fork
    return found


def _without_ids(records: list[_Record], *, alone: bool) -> list[_Record]:
    def is_kept(name: str, record: _Record) -> bool:
        # Alone, an answer says by whom it is only where that tells whose the id is.
        return name not in _TIMES | {"call_id"} and not (name == "by" and alone and "function" not in record)

    return [{name: value for name, value in record.items() if is_kept(name, record)} for record in records]


def _lines(bundle: bytes) -> Iterator[Line]:
    for line in unpack(sealed(bundle, None), UNPACKED_BYTES, UNPACKED_BYTES, lambda _: None, blobs=False):
        if not is_blob(line):
            yield read_line(line)


def bundle_of(entry: ReceiptEntry, part: ReceiptPart, times: list[Times], settings: Settings) -> str:
    """Get a bundle, in base64, by which the records of a part can be run again; it has no snapshots."""
    head = BundleHead(
        server="",
        python="",
        toolpacks=entry.toolpacks,
        fingerprints={},
        options=entry.options,
        environment=entry.environment,
        task=entry.task,
        kept=entry.kept,
        labels=entry.labels,
        ttl_seconds=settings.ttl_seconds,
        fork=False,
        version=part.version,
        records=len(part.records),
        details={**part.details},
    )
    lines = [dumps({"head": head.shown()})]
    for record, time in zip(part.records, times, strict=True):
        lines.append(dumps({"record": [{**record, **dict(zip(sorted(_TIMES), reversed(time), strict=True))}, None]}))
    most = settings.max_body_bytes
    return base64.b64encode(pack(lines, _ANY_KEY, most * 2 // 3, most * 16)).decode()


def difference(recorded: ReceiptEntry, replayed: ReceiptEntry) -> dict[str, Any] | None:
    """Get the first difference to the entry of the session that was run again: of which record, if of one, and what.

    None says that they are equal to the last byte.
    """
    other_writers = recorded.details.get(WRITTEN_BY) != replayed.details.get(WRITTEN_BY)
    for index, records in enumerate(zip(recorded.all_records, replayed.all_records, strict=False)):
        if (found := _first(*(_compared(each, other_writers=other_writers) for each in records))) is not None:
            return {"place": index, **found}
    return _first(*map(_but_records, (recorded, replayed)))


def _compared(record: Mapping[str, Any], *, other_writers: bool) -> dict[str, Any]:
    left_out = {"error"} if record.get("failure") in _NOT_REPEATED else set()
    # Another version of what lays out databases lays them out in another way: see replay's `writers`.
    left_out |= {"state"} if other_writers else set()
    return {name: value for name, value in record.items() if name not in left_out}


def _but_records(entry: ReceiptEntry) -> dict[str, Any]:
    rest = entry.model_dump(exclude={"records", "forked_from"})
    failure = entry.verdict.get("failure")
    if isinstance(failure, dict) and failure.get("kind") == "infrastructure":
        rest["verdict"] = {**entry.verdict, "failure": failure.get("type")}
    parts = [(each.version, len(each.records)) for each in entry.parts]
    details = [{name: value for name, value in each.details.items() if name != WRITTEN_BY} for each in entry.parts]
    return {**rest, "details": details, "records": parts}


def _first(recorded: Mapping[str, Any], replayed: Mapping[str, Any]) -> dict[str, Any] | None:
    for name in sorted(recorded.keys() | replayed.keys()):
        texts = [dumps(each[name], sort_keys=True).decode() if name in each else None for each in (recorded, replayed)]
        if texts[0] != texts[1]:
            return {"what": name, "recorded": texts[0], "replayed": texts[1]}
    return None
