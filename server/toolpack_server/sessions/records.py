"""The records of a session's trace: written, cut to their limit, and checked when they are read.

A record has three lines. The first is what clients see. The second is what only the repeat of its call_id needs: a
digest of the request, why a call failed, and the whole answer if the first line has only a part of it. The third is a
keyed hash of the other two and of the record's session, index, version, id and call_id, which also says whose it is.

A record that fails its hash isn't used.
"""

import hashlib
import hmac
from collections.abc import Mapping
from typing import Any

from toolpack_server.base.errors import CallIdReusedError, StateDamagedError
from toolpack_server.jsonio.strict import Fragment, cut, cut_if_longer, dumps, loads
from toolpack_server.protocol.senders import CLIENT
from toolpack_server.snapshots.seal import KeyedHash
from toolpack_server.stores.base import Record, new_record_id

# With which stored call_ids begin: one that came to an address, and a client's if it must.
_ADDRESSES, _CLIENTS = "agent:", "client:"
SMALL_BYTES = 1000  # of a value that is kept whole where several together must be cut


def request_digest(method: str, *parameters: Any) -> str:
    """Get a digest by which a repeated request is known; the order of an object's members makes no difference."""
    return hashlib.blake2b(dumps([method, *parameters], sort_keys=True), digest_size=16).hexdigest()


def stored_call_id(call_id: str, by: str) -> str:
    """Get what a store knows a call_id by: an agent must neither read nor block what a client has done with one."""
    if by != CLIENT:
        return _ADDRESSES + call_id
    return _CLIENTS + call_id if call_id.startswith((_ADDRESSES, _CLIENTS)) else call_id


def cut_arguments(sent: bytes, kwargs: Mapping[str, Any], max_bytes: int) -> bytes:
    """Get the arguments of a call for the trace: the large ones are cut if all together are too long."""
    if len(sent) <= max_bytes:
        return sent
    texts = {name: dumps(value) for name, value in kwargs.items()}
    shortened = dumps({name: Fragment(cut_if_longer(text, SMALL_BYTES)) for name, text in texts.items()})
    return shortened if len(shortened) <= max_bytes else dumps(cut(sent))


class Records:
    def __init__(self, key: bytes) -> None:
        self._keyed = KeyedHash(key, "record")

    def write(
        self,
        session_id: str,
        shown: Mapping[str, Any],
        private: Mapping[str, Any] | None,
    ) -> Record:
        """Write a record; `shown` has its `index`, `version` and, if there is one, `call_id`."""
        body = dumps(shown) + b"\n" + (b"null" if private is None else dumps(private))
        call_id = shown.get("call_id")
        if call_id is not None:
            call_id = stored_call_id(call_id, shown.get("by", CLIENT))
        place = shown["index"], shown["version"], call_id
        record_id = new_record_id()
        return Record(*place, body + b"\n" + self._hash(session_id, *place, record_id, body), record_id)

    def read(self, session_id: str, record: Record) -> tuple[bytes, bytes]:
        """Get the lines of a record: what clients see, and what only the repeat of its call_id needs.

        Raises:
            StateDamagedError: It was damaged or forged.
        """
        # SQLite keeps text as text if somebody has written that instead of bytes.
        lines = record.body.split(b"\n") if isinstance(record.body, bytes) else []
        if len(lines) == 3:  # noqa: PLR2004 - see the module's docstring
            place = record.index, record.version, record.call_id
            expected = self._hash(session_id, *place, record.id, b"\n".join(lines[:2]))
            if hmac.compare_digest(lines[2], expected):
                return lines[0], lines[1]
        raise StateDamagedError(
            f"Record {record.index} fails its keyed hash, because it was damaged or forged, or written with another "
            "secret key: restore a backup, or close the session."
        )

    def read_repeated(self, session_id: str, record: Record, digest: str) -> tuple[dict[str, Any], dict[str, Any]]:
        """Get both lines, as JSON, of the record of a call_id that was sent again.

        Raises:
            StateDamagedError: The record was damaged or forged.
            CallIdReusedError: It is the record of another request.
        """
        shown, private = map(loads, self.read(session_id, record))
        private = private or {}
        if private.get("digest") != digest:
            raise CallIdReusedError(shown["call_id"])
        return shown, private

    def _hash(
        self, session_id: str, index: int, version: int, call_id: str | None, record_id: str, body: bytes
    ) -> bytes:
        place = f"{session_id} {index} {version} {record_id} {call_id or ''}"
        return self._keyed.of(place, body).encode()
