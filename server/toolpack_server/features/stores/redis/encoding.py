"""Encoding of the arguments and results of the Redis store's script.

The functions here do no I/O. `script.lua` documents the formats.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import orjson

from toolpack_server.features.stores.rows import decoder, labels_match, load
from toolpack_server.stores.base import Commit, Head, History, Lease, Record, StoredSession


def encode_history(history: History) -> Iterator[str | bytes | float]:
    """Yield a history as arguments of the script: changes, records, and fields of the head."""
    rows = history.rows()
    yield len(rows)
    for row in rows:
        yield from row
    yield len(history.records)
    for record in history.records:
        yield from (orjson.dumps(record.call_id), encode_record(record))
    last = history.records[-1].id if history.records else ""
    yield from (history.version, history.oldest, last)


def encode_facts(session: StoredSession, recipe: str) -> bytes:
    """Encode a session's data that never changes, in three lines. The script reads only the first line."""
    parent = session.parent.session_id if session.parent else ""
    first = orjson.dumps([session.agent_key, session.owner, recipe, parent])
    second = orjson.dumps(
        [session.labels, session.ttl_seconds, session.created_at, session.parent and [*session.parent]]
    )
    return b"\n".join((first, second, session.details))


def split_facts(facts: bytes) -> tuple[bytes, bytes, bytes]:
    """Split the facts of a session into the line for the script, the line with the other columns, and the details."""
    first, _, rest = facts.partition(b"\n")
    second, _, details = rest.partition(b"\n")
    return first, second, details


def has_labels(facts: bytes, labels: Mapping[str, str]) -> bool:
    """Return whether the session with these facts has all of the labels."""
    return not labels or labels_match(_labels(facts), labels)


def _labels(facts: bytes) -> bytes:
    """Return the labels in a session's facts as JSON, or "" if the facts are damaged."""
    try:
        return orjson.dumps(orjson.loads(split_facts(facts)[1])[0])
    except (ValueError, LookupError, TypeError):
        return b""


@decoder
def decode_head(length: int, words: Sequence[bytes]) -> Head:
    """Decode the head of a session.

    Args:
        length: The number of the session's records.
        words: The fields and values of the hash `head:<session>`, alternating.
    """
    fields = dict(zip(words[::2], words[1::2], strict=True))
    parts = {name[1:].decode(): blob.decode() for name, blob in fields.items() if name.startswith(b"/")}
    size = int(fields.get(b"recorded", 0)) + int(fields.get(b"added", 0))
    last = fields.get(b"last", b"").decode()
    return Head(length - 1, int(fields.get(b"version", 0)), parts, int(fields.get(b"epoch", 0)), last, size)


@decoder
def decode_claim(answer: Sequence[Any]) -> Head | Lease | None:
    """Decode the script's result for one session of a `claim`."""
    if not answer:
        return None
    granted, *rest = answer
    return decode_head(*rest) if granted else Lease(rest[0].decode(), int(rest[1]))


def encode_commit(commit: Commit) -> list[str | bytes | float]:
    """Encode a commit as arguments of the script."""
    record = commit.record
    call_id = b"null" if record.call_id is None else orjson.dumps(record.call_id)
    words: list[str | bytes | float] = [commit.session_id, commit.epoch, record.index, record.version, call_id]
    words += (encode_record(record), record.id, commit.after, commit.holder or "")
    words += ("" if commit.expires_at is None else commit.expires_at, "release" if commit.release else "")
    words += pairs(commit.parts)
    words += pairs(commit.blobs)
    return words


def encode_record(record: Record) -> bytes:
    """Encode a record as an item of the session's list: a line with the version and the ids, then the body."""
    return orjson.dumps([record.version, record.call_id, record.id]) + b"\n" + record.body


@decoder
def decode_record(index: int, text: bytes) -> Record:
    """Decode an item of a session's list of records."""
    first, _, body = text.partition(b"\n")
    version, call_id, record_id = load(first)
    return Record(index, version, call_id, body, record_id)


def pairs(mapping: Mapping[str, str] | Mapping[str, bytes] | Mapping[bytes, str]) -> list[str | bytes | float]:
    """Encode a mapping as arguments of the script: the number of pairs, then the pairs."""
    words: list[str | bytes | float] = [len(mapping)]
    for pair in mapping.items():
        words += pair
    return words
