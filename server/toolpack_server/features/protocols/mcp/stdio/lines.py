"""Reader and writer of lines on file descriptors, each with its own thread, because a pipe can block.

The reader discards lines that are too long, and reads the next line only after the previous one was handled.
"""

import asyncio
import contextlib
import os
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from queue import SimpleQueue
from typing import Any

READ_BYTES = 64 * 1024
CLOSE_SECONDS = 2.0
MAX_OFFERED = 100  # number of lines in the queue from which optional lines are dropped


def take_standard_streams() -> tuple[int, int]:
    """Move standard input and output to new descriptors, and return the new descriptors.

    Afterwards, printed text is written to standard error, and standard input is empty. This also holds in processes
    that functions start.
    """
    source, sink = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    try:
        os.dup2(2, 1)
    except OSError:  # standard error is closed
        os.dup2(null, 1)
    os.close(null)
    with contextlib.suppress(AttributeError, ValueError):  # some programs replace `sys.stdout`
        sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    return source, sink


class LineReader:
    """Reads lines from a descriptor. A line longer than `max_bytes` is discarded and reported as None."""

    def __init__(self, source: int, max_bytes: int) -> None:
        self._source = source
        self.max_bytes = max_bytes

    async def for_each(self, take: Callable[[bytes | None], Coroutine[Any, Any, None]]) -> None:
        """Await `take` for each line in turn until the input ends. A line that is too long is None."""
        loop, ended = asyncio.get_running_loop(), asyncio.Event()

        def read() -> None:
            with contextlib.suppress(RuntimeError):  # the event loop was closed
                for line in self._lines():
                    asyncio.run_coroutine_threadsafe(take(line), loop).result()
                loop.call_soon_threadsafe(ended.set)

        threading.Thread(target=read, name="input", daemon=True).start()
        await ended.wait()

    def _lines(self) -> Iterator[bytes | None]:
        """Yield the lines until the input ends.

        The beginning of a line that is too long is dropped, to limit memory.
        """
        rest, too_long = bytearray(), False
        while piece := self._piece():
            start = 0
            while (end := piece.find(b"\n", start)) >= 0:
                rest += piece[start:end]
                yield None if too_long or len(rest) > self.max_bytes else bytes(rest)
                rest.clear()
                start, too_long = end + 1, False
            rest += piece[start:]
            if len(rest) > self.max_bytes:
                rest.clear()
                too_long = True
        if too_long or rest:
            yield None if too_long else bytes(rest)

    def _piece(self) -> bytes:
        try:
            return os.read(self._source, READ_BYTES)
        except OSError:
            return b""


class LineWriter:
    """Writes lines to a descriptor. Thread-safe."""

    def __init__(self, sink: int) -> None:
        self._sink = sink
        self._lines: SimpleQueue[bytes | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._write, name="output", daemon=True)
        self._thread.start()

    def write(self, line: bytes) -> None:
        """Append a line to the queue of the writing thread."""
        self._lines.put(line)

    def offer(self, line: bytes) -> None:
        """Write an optional line, or drop it if the queue is long."""
        if self._lines.qsize() < MAX_OFFERED:
            self.write(line)

    def waiting(self) -> int:
        """Return the number of lines in the queue, or 0 if the client has closed its end."""
        return self._lines.qsize() if self._thread.is_alive() else 0

    def close(self) -> None:
        """Wait until all lines are written, at most `CLOSE_SECONDS`."""
        self._lines.put(None)
        self._thread.join(CLOSE_SECONDS)

    def _write(self) -> None:
        """Write queued lines until `close` or until the client closes its end. This is the thread's function."""
        while (line := self._lines.get()) is not None:
            data = memoryview(line + b"\n")
            try:
                while data:
                    data = data[os.write(self._sink, data) :]
            except OSError:  # the client has closed its end
                return
