"""Channel for frames between a worker and an executor. A *frame* is one message: plain JSON and pieces of bytes.

The worker treats an executor's frames as an attacker's input. A frame starts with its lengths, and its JSON lists the
length of each piece, so that the receiver can reject a frame that is too long before it reads the frame. Each side
sends one frame and then waits for a frame from the other side.
"""

import socket
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from toolpack_server.base.after_fork import detach
from toolpack_server.base.errors import InternalSignal, TooLargeError
from toolpack_server.jsonio.strict import dumps, loads
from toolpack_server.rpc.parsing import has_more_values

MAX_HEAD_BYTES = 4 * 2**20  # maximum size of the JSON in an executor's frame
MAX_HEAD_VALUES = 250_000  # maximum number of values in this JSON

_LENGTHS = struct.Struct("<II")  # size of the JSON in bytes, and total size of all pieces
_AT_ONCE = 65_536  # bytes per read; also the limit below which pieces are copied, to be sent together with the JSON


class Frame(NamedTuple):
    """One message between a worker and an executor: a JSON object and pieces of bytes."""

    head: Mapping[str, Any]
    pieces: list[bytes]


class ExecutorGoneError(InternalSignal):
    """The process at the other end of a channel has exited.

    Attributes:
        unread: The process exited before it read the last frame, so it hasn't begun the request in this frame.
    """

    def __init__(self, *, unread: bool = False) -> None:
        super().__init__("The process at the other end of the channel has exited.")
        self.unread = unread


class Channel:
    """One end of a socket that carries frames.

    Args:
        max_bytes: Maximum total size of the pieces of a received frame. None: the sender is trusted.
    """

    def __init__(self, end: socket.socket, max_bytes: int | None = None) -> None:
        self._socket = end
        self._max_bytes = max_bytes

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, head: Mapping[str, Any], pieces: Sequence[bytes] = (), max_head_bytes: int | None = None) -> None:
        """Send a frame.

        Raises:
            ExecutorGoneError: The other end is closed.
            TooLargeError: The JSON is longer than `max_head_bytes`, so nothing was sent.
        """
        text = dumps([head, [len(piece) for piece in pieces]])
        if max_head_bytes is not None and len(text) > max_head_bytes:
            raise TooLargeError(f"the answer has {len(text)} bytes; at most {max_head_bytes} are allowed.")
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
            read: Parses the JSON. `orjson.loads` is faster, but supports only integers below 2**64.
            allows: Returns whether the frame may contain pieces of these sizes. None: any sizes are allowed.

        Raises:
            ExecutorGoneError: The other end is closed.
            ValueError: The data isn't a frame, or is too long.
        """
        try:
            data: bytes | bytearray = b""
            while len(data) < _LENGTHS.size:
                chunk = self._socket.recv(_AT_ONCE)
                if not chunk:
                    raise ExecutorGoneError
                data += chunk
            text_size, size = _LENGTHS.unpack_from(data)
            if self._max_bytes is not None and (text_size > MAX_HEAD_BYTES or size > self._max_bytes):
                raise ValueError(f"a frame of {text_size} bytes of JSON and {size} bytes of pieces is too long")
            start = _LENGTHS.size + text_size
            data = self._read_until(data, start)
            text = bytes(data[_LENGTHS.size : start])
            if self._max_bytes is not None and has_more_values(text, MAX_HEAD_VALUES):
                raise ValueError(f"the JSON of a frame has more than {MAX_HEAD_VALUES} values")
            head, sizes = _read_head(read(text))
            if sum(sizes) != size:
                raise ValueError("the lengths of a frame's pieces don't add up to its total length")
            if allows is not None and not allows(sizes):
                raise ValueError(f"{len(sizes)} pieces with {size} bytes in total are more than the request allows")
            data = self._read_until(data, start + size)
        except ConnectionResetError:  # the process exited, and its socket still had unread data
            raise ExecutorGoneError(unread=True) from None
        except OSError:
            raise ExecutorGoneError from None
        if len(data) > start + size:
            raise ValueError("there are bytes after the end of a frame")
        view, pieces = memoryview(data), []
        for length in sizes:
            pieces.append(bytes(view[start : start + length]))
            start += length
        return Frame(head, pieces)

    def _read_until(self, start: bytes | bytearray, size: int) -> bytes | bytearray:
        """Read until `size` bytes are available, including `start`."""
        if len(start) >= size:
            return start
        buffer = bytearray(size)
        buffer[: len(start)] = start
        view, filled = memoryview(buffer), len(start)
        while filled < size:
            count = self._socket.recv_into(view[filled:])
            if not count:
                raise ExecutorGoneError
            filled += count
        return buffer

    def shutdown(self) -> None:
        """Shut down both directions, which unblocks both ends. This is thread-safe."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:  # one of the ends is already closed
            return

    def detach(self) -> None:
        """Close the socket in a process forked by a function. Otherwise the worker wouldn't see the executor exit."""
        detach([self._socket.fileno()])

    def close(self) -> None:
        self._socket.close()


def _read_head(value: Any) -> tuple[dict[str, Any], list[int]]:
    """Return the object and the lengths of the pieces in a frame's parsed JSON. Raise a `ValueError` for other JSON."""
    match value:
        case [dict(head), list(sizes)] if all(type(size) is int and size >= 0 for size in sizes):
            return head, sizes
    raise ValueError("the JSON of a frame isn't [object, list of lengths]")
