"""How the records of one session follow each other, and what a fork takes of them.

A reset goes back on the path, so the records of a session are a tree, of which each version's path is one branch. What
forks inherit of a branch is the same without answers: each fork gives its own.

The rule: it only grows, and what is known of a record never changes. So it can be read while another thread adds to it.
"""

import hashlib
import re
from array import array
from collections.abc import Sequence
from typing import NamedTuple

from server.jsonio.strict import loads
from server.stores.base import Record

DIGEST_BYTES = 16

_KIND = re.compile(rb'\{"index":\d+,"kind":"([a-z]+)"')


class History:
    """The records of one session, which are numbered from 0; the place before the first record is -1.

    What forks inherit is kept by *node*: node 0 is the beginning, and node n + 1 stands for record n.

    Attributes:
        last_id: The id of the last record that was added.
    """

    def __init__(self) -> None:
        self.last_id = ""
        self._tip = -1
        self._listed: tuple[int, Sequence[int]] = -1, ()  # the path that was asked for last, by its tip
        self._tips = {0: -1}  # for each version, the last record of its path
        self._before = array("i")  # for each record, the one before it on its path
        self._heir = array("i", [0])  # for each node, the last one at or before it that forks inherit
        self._length = array("i", [0])  # for each node, how many records forks inherit up to it
        self._jump = array("i", [0])  # for each node, one far before it, so that a place is found in few steps
        self._digests = bytearray(DIGEST_BYTES)  # for each node, a digest of all records that forks inherit up to it

    def __len__(self) -> int:
        return len(self._before)

    def add(self, record: Record, text: bytes) -> None:
        """Add the next record; `text` is what clients see of it."""
        kind = _kind(text)
        heir = self._heir[self._tip + 1]
        self._before.append(self._tip)
        if kind == "reset":
            self._tip = self._tips.get(loads(text)["to_version"], -1)
        else:
            self._tip = record.index
        if kind in {"reset", "answer"}:
            self._add_node(heir, self._length[heir], self._jump[heir], self.digest(heir))
        else:
            # "Skew-binary" jumps (Myers 1983): two of the same length are followed by one over both.
            jump = self._jump[heir]
            far = self._jump[jump]
            even = self._length[heir] - self._length[jump] == self._length[jump] - self._length[far]
            digest = hashlib.blake2b(self.digest(heir) + record.body, digest_size=DIGEST_BYTES).digest()
            self._add_node(record.index + 1, self._length[heir] + 1, far if even else heir, digest)
        self._tips[record.version] = self._tip
        self.last_id = record.id

    def tip(self, version: int) -> int:
        """Get the last record on the path of a version; -1 if there is none."""
        return self._tips.get(version, -1)

    def path(self, version: int) -> Sequence[int]:
        """Get the records on the path of a version, in order."""
        tip, indices = self._listed
        if tip == self.tip(version):
            return indices
        indices = array("i")
        index = tip = self.tip(version)
        while index >= 0:
            indices.append(index)
            index = self._before[index]
        indices.reverse()
        self._listed = tip, indices
        return indices

    def inherited(self, version: int) -> "Inherited":
        """Get what a fork of a version inherits."""
        node = self._heir[self.tip(version) + 1]
        return Inherited(self, node, self._length[node])

    def node_at(self, node: int, length: int) -> int:
        """Get the node at or before a node up to which forks inherit so many records."""
        while self._length[node] > length:
            jump = self._jump[node]
            node = jump if self._length[jump] >= length else self._parent(node)
        return node

    def records(self, node: int, count: int) -> list[int]:
        """Get the last records, so many, that forks inherit up to a node, in order."""
        indices = []
        for _ in range(count):
            indices.append(node - 1)
            node = self._parent(node)
        return indices[::-1]

    def digest(self, node: int) -> bytes:
        """Get a digest of all records that forks inherit up to a node."""
        return bytes(self._digests[node * DIGEST_BYTES : (node + 1) * DIGEST_BYTES])

    def _parent(self, node: int) -> int:
        return self._heir[self._before[node - 1] + 1]

    def _add_node(self, heir: int, length: int, jump: int, digest: bytes) -> None:
        self._heir.append(heir)
        self._length.append(length)
        self._jump.append(jump)
        self._digests += digest


class Inherited(NamedTuple):
    """What a fork inherits of a session's own records: a branch of its history.

    Attributes:
        history: The history.
        node: The last node of the branch.
        length: How many records there are.
    """

    history: History
    node: int
    length: int

    def up_to(self, length: int) -> "Inherited":
        """Get the first records, so many."""
        return Inherited(self.history, self.history.node_at(self.node, length), length)

    def digest(self) -> bytes:
        """Get a digest of all these records."""
        return self.history.digest(self.node)

    def records(self, start: int, stop: int) -> list[int]:
        """Get the indices of the records at these places."""
        return self.history.records(self.up_to(stop).node, stop - start)


NOTHING_INHERITED = Inherited(History(), 0, 0)


def _kind(text: bytes) -> str:
    found = _KIND.match(text)
    return found[1].decode() if found else str(loads(text)["kind"])
