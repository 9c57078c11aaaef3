"""How a fork's past is stored: cut into pieces, most of which it shares with other forks.

A past of n records is cut like the binary number n: for 13 times `LEAST` records a piece of 8 times `LEAST`, one of 4
times and one of `LEAST`; what remains, fewer than `LEAST` records, is written for each fork. So a long past costs a
fork few references, and a piece that was made once serves for as long as the path goes on.

The rule: a blob begins with a keyed hash of its id and of all the rest. So whoever can write to the store can't put one
in another's place.
"""

import hmac
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import repeat
from typing import Any

from server.errors import StateDamagedError
from server.jsonio.strict import dumps, loads
from server.snapshots.seal import KeyedHash

LEAST = 32  # records in the shortest piece

Line = tuple[str, bytes]
"""A record of a path: its session, and the JSON that clients see."""

_HASH_DIGITS = 64


def cut(length: int) -> Iterator[tuple[int, int]]:
    """Get the pieces of a past of so many records: the first place of each, and the place after its last."""
    start = 0
    for exponent in reversed(range((length // LEAST).bit_length())):
        size = LEAST << exponent
        if length & size:
            yield start, start + size
            start += size


def is_shortest(start: int, stop: int) -> bool:
    """Whether a piece can't be made of two others."""
    return stop - start == LEAST


class Sealer:
    """Writes blobs of records and reads them again.

    Args:
        key: The secret key.
    """

    def __init__(self, key: bytes) -> None:
        self._keyed = KeyedHash(key, "path")
        self._names = KeyedHash(key, "piece of a path")

    def name(self, *of: str | bytes) -> str:
        """Get the blob id of the piece that is known by all this."""
        return self._names.of(*of)

    def close(self, blob_id: str, facts: Mapping[str, Any], lines: Iterable[Line]) -> bytes:
        """Get a blob of facts and records."""
        owners: list[tuple[str, int]] = []
        texts = []
        for of, text in lines:
            count = owners.pop()[1] if owners and owners[-1][0] == of else 0
            owners.append((of, count + 1))
            texts.append(text)
        packed = zlib.compress(b"\n".join([dumps({**facts, "records": owners}), *texts]), 1)
        return self._keyed.of(blob_id, packed).encode() + packed

    def open(self, blob_id: str, blob: bytes) -> tuple[Mapping[str, Any], Sequence[Line]]:
        """Get the facts and the records of a blob.

        Raises:
            StateDamagedError: It was damaged or forged.
        """
        # SQLite keeps text as text if somebody has written that instead of bytes.
        packed = blob[_HASH_DIGITS:] if isinstance(blob, bytes) else b""
        if not packed or not hmac.compare_digest(blob[:_HASH_DIGITS], self._keyed.of(blob_id, packed).encode()):
            raise StateDamagedError("The stored past of the session fails its keyed hash: it was damaged or forged.")
        first, *texts = zlib.decompress(packed).split(b"\n")
        facts = loads(first)
        return facts, [*zip(_owners(facts["records"]), texts, strict=False)]


def _owners(records: Iterable[tuple[str, int]]) -> Iterator[str]:
    for session_id, count in records:
        yield from repeat(session_id, count)
