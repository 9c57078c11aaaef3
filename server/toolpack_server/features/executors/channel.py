"""The frames between a worker and an executor: plain JSON, and pieces of bytes.

What an executor sends is the input of an attacker. A frame says first how long it is, its JSON says how long
each piece is, and nothing is read that is longer than allowed. Each side sends one frame and then waits for one, so no
byte comes unasked.
"""

import socket
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from toolpack_server.base.after_fork import detach
from toolpack_server.base.errors import InternalSignal, TooLargeError
from toolpack_server.jsonio.strict import dumps, loads
from toolpack_server.rpc.parsing import has_more_values

MAX_HEAD_BYTES = 4 * 2**20  # of the JSON that an executor sends
MAX_HEAD_VALUES = 250_000

_LENGTHS = struct.Struct("<II")  # of the JSON, and of all pieces together
_AT_ONCE = 65_536


class Frame(NamedTuple):
    """What travels between a worker and an executor in one piece: a JSON object, and bytes that belong to it."""

    head: Mapping[str, Any]
    pieces: list[bytes]


class ExecutorGoneError(InternalSignal):
    """The process at the other end of a channel has ended; `unread`: before it read what was sent to it last."""

    def __init__(self, *, unread: bool = False) -> None:
        super().__init__("The process at the other end has ended.")
        self.unread = unread


class Channel:
    def __init__(self, end: socket.socket, max_bytes: int | None = None) -> None:
        self._socket = end
        self._max_bytes = max_bytes  # of all pieces of a frame that is read; None if whoever sends is trusted

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, head: Mapping[str, Any], pieces: Sequence[bytes] = (), max_head_bytes: int | None = None) -> None:
        """Send a frame.

        Raises:
            ExecutorGoneError: Nobody reads any more.
            TooLargeError: Its JSON is longer than allowed; nothing was sent.
        """
        text = dumps([head, [len(piece) for piece in pieces]])
        if max_head_bytes is not None and len(text) > max_head_bytes:
            raise TooLargeError(f"the answer has {len(text)} bytes; {max_head_bytes} are allowed.")
        size = sum(map(len, pieces))
        start = _LENGTHS.pack(len(text), size) + text
        try:
            if size < _AT_ONCE:
                self._socket.sendall(b"".join([start, *pieces]))
                return
            self._socket.sendall(start)
            for piece in pieces:
                self._socket.sendall(piece)
        except OSError:
            raise ExecutorGoneError(unread=True) from None

    def receive(
        self, read: Callable[[bytes], Any] = loads, allows: Callable[[Sequence[int]], bool] | None = None
    ) -> Frame:
        """Wait for a frame.

        Args:
            read: Reads its JSON; where no integer is large, `orjson.loads` is faster.
            allows: Says whether pieces of these sizes may come; None allows any.

        Raises:
            ExecutorGoneError: Nobody sends any more.
            ValueError: What came isn't a frame, or is too long.
        """
        try:
            found: bytes | bytearray = b""
            while len(found) < _LENGTHS.size:
                more = self._socket.recv(_AT_ONCE)
                if not more:
                    raise ExecutorGoneError
                found += more
            text_size, size = _LENGTHS.unpack_from(found)
            if self._max_bytes is not None and (text_size > MAX_HEAD_BYTES or size > self._max_bytes):
                raise ValueError(f"a frame of {text_size} bytes of JSON and {size} others is too long")
            start = _LENGTHS.size + text_size
            found = self._filled(found, start)
            text = bytes(found[_LENGTHS.size : start])
            if self._max_bytes is not None and has_more_values(text, MAX_HEAD_VALUES):
                raise ValueError(f"the JSON of a frame has more than {MAX_HEAD_VALUES} values")
            head, sizes = _read_head(read(text))
            if sum(sizes) != size:
                raise ValueError("the pieces of a frame have other lengths than it says")
            if allows is not None and not allows(sizes):
                raise ValueError(f"{len(sizes)} pieces of {size} bytes together are more than the request allows")
            found = self._filled(found, start + size)
        except ConnectionResetError:  # it had not read all that was sent to it
            raise ExecutorGoneError(unread=True) from None
        except OSError:
            raise ExecutorGoneError from None
        if len(found) > start + size:
            raise ValueError("there are bytes behind the end of a frame")
        view, pieces = memoryview(found), []
        for length in sizes:
            pieces.append(bytes(view[start : start + length]))
            start += length
        return Frame(head, pieces)

    def _filled(self, begun: bytes | bytearray, size: int) -> bytes | bytearray:
        """Read on until there are so many bytes, if there aren't already."""
        if len(begun) >= size:
            return begun
        buffer = bytearray(size)
        buffer[: len(begun)] = begun
        view, filled = memoryview(buffer), len(begun)
        while filled < size:
            count = self._socket.recv_into(view[filled:])
            if not count:
                raise ExecutorGoneError
            filled += count
        return buffer

    def shutdown(self) -> None:
        """Shut down both directions, unblocking both ends. From any thread."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:  # the other end is gone already, or this one is closed
            return

    def detach(self) -> None:
        """In a process that a function has forked, keep nobody waiting for what this one sends."""
        detach([self._socket.fileno()])

    def close(self) -> None:
        self._socket.close()


def _read_head(value: Any) -> tuple[dict[str, Any], list[int]]:
    match value:
        case [dict(head), list(sizes)] if all(type(size) is int and size >= 0 for size in sizes):
            return head, sizes
    raise ValueError("a frame doesn't have its form")
