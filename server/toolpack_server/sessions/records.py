"""Format of the records of a session's trace. Long values are cut before a record is written.

A record has three lines:

1. The line that clients see.
2. The private line, which only the server reads, to answer a request with the same call_id. It contains a digest of the
   request, the failure of a call, and the complete answer if the first line contains only a part of it.
3. An HMAC of the other two lines and of the record's session, index, version, id and call_id.

The server refuses a record if its HMAC doesn't match.
"""

import hmac
from collections.abc import Mapping
from typing import Any

from toolpack_server.base.errors import CallIdReusedError, StateDamagedError
from toolpack_server.jsonio.strict import Fragment, cut, cut_if_longer, dumps, loads
from toolpack_server.protocol.senders import CLIENT
from toolpack_server.snapshots.seal import KeyedHash
from toolpack_server.stores.base import Record, new_record_id

# Prefixes of stored call_ids. An agent's call_id always gets a prefix. A client's call_id gets a prefix only if it
# already begins with one of these prefixes.
_ADDRESSES, _CLIENTS = "agent:", "client:"
SMALL_BYTES = 1000  # if several values are too large together, only values larger than this number of bytes are cut


def stored_call_id(call_id: str, by: str) -> str:
    """Return a call_id as the store keeps it, so that the call_ids of agents and clients are separate.

    Otherwise an agent could read the answer to a client's request, or block a client's call_id by using it first.
    """
    if by != CLIENT:
        return _ADDRESSES + call_id
    return _CLIENTS + call_id if call_id.startswith((_ADDRESSES, _CLIENTS)) else call_id


def cut_arguments(sent: bytes, kwargs: Mapping[str, Any], max_bytes: int) -> bytes:
    """Return the arguments of a call as JSON for the trace. If their total size is too large, the large values are cut.

    Args:
        sent: The arguments as JSON text.
        kwargs: The arguments.
        max_bytes: Maximum size of the result.
    """
    if len(sent) <= max_bytes:
        return sent
    texts = {name: dumps(value) for name, value in kwargs.items()}
    shortened = dumps({name: Fragment(cut_if_longer(text, SMALL_BYTES)) for name, text in texts.items()})
    return shortened if len(shortened) <= max_bytes else dumps(cut(sent))


class Records:
    """Writes and reads records with the server's secret key."""

    def __init__(self, key: bytes) -> None:
        self._keyed = KeyedHash(key, "record")

    def write(
        self,
        session_id: str,
        shown: Mapping[str, Any],
        private: Mapping[str, Any] | None,
    ) -> Record:
        """Return a record to store.

        Args:
            session_id: The session.
            shown: The fields that clients see. `index` and `version` are required, `call_id` and `by` are optional.
            private: The fields that only the server reads.
        """
        body = dumps(shown) + b"\n" + (b"null" if private is None else dumps(private))
        call_id = shown.get("call_id")
        if call_id is not None:
            call_id = stored_call_id(call_id, shown.get("by", CLIENT))
        key = shown["index"], shown["version"], call_id
        record_id = new_record_id()
        return Record(*key, body + b"\n" + self._hash(session_id, *key, record_id, body), record_id)

    def read(self, session_id: str, record: Record) -> tuple[bytes, bytes]:
        """Return the line of a record that clients see, and the private line.

        Raises:
            StateDamagedError: The record was damaged or forged.
        """
        # In a damaged SQLite file, the body can be text instead of bytes.
        lines = record.body.split(b"\n") if isinstance(record.body, bytes) else []
        if len(lines) == 3:  # noqa: PLR2004 - see the module's docstring
            key = record.index, record.version, record.call_id
            expected = self._hash(session_id, *key, record.id, b"\n".join(lines[:2]))
            if hmac.compare_digest(lines[2], expected):
                return lines[0], lines[1]
        raise StateDamagedError(
            f"Record {record.index} fails its keyed hash, because it was damaged or forged, or written with another "
            "secret key: restore a backup, or close the session."
        )

    def read_repeated(self, session_id: str, record: Record, digest: str) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the two lines of a record as JSON objects, to answer a request with the same call_id.

        Args:
            session_id: The session.
            record: The record of the first request.
            digest: The digest of the repeated request.

        Raises:
            StateDamagedError: The record was damaged or forged.
            CallIdReusedError: The record belongs to another request.
        """
        shown, private = map(loads, self.read(session_id, record))
        private = private or {}
        if private.get("digest") != digest:
            raise CallIdReusedError(shown["call_id"])
        return shown, private

    def _hash(
        self, session_id: str, index: int, version: int, call_id: str | None, record_id: str, body: bytes
    ) -> bytes:
        """Compute the third line of a record."""
        header = f"{session_id} {index} {version} {record_id} {call_id or ''}"
        return self._keyed.of(header, body).encode()
