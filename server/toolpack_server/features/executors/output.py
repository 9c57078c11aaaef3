"""Output of an executor, which the worker copies into the log.

The standard output of an executor is a pipe. If an executor inherited the server's output, a function could forge log
lines or truncate the log file. The worker keeps a limited amount of text per request. It reads and drops further text,
so that the executor doesn't block.
"""

import os
import select

from toolpack_server.base.terminal import printable

MAX_BYTES = 16_384  # maximum number of bytes that are kept per request
DELAY_SECONDS = 0.01  # time between two reads from an executor that prints more than `MAX_BYTES`
_AT_ONCE = 65_536


class Output:
    """The worker's end of the pipe. Creating this object makes the descriptor non-blocking."""

    def __init__(self, descriptor: int) -> None:
        os.set_blocking(descriptor, False)
        self._descriptor = descriptor
        self._text = bytearray()
        self._dropped = 0

    def fileno(self) -> int:
        return self._descriptor

    def wait_for(self, channel: int, poller: select.poll, seconds: float | None = None) -> bool:
        """Read output until the channel is readable. Return False if the executor sends and prints nothing for a time.

        When this method returns, all text that was printed before the answer has been read.

        Args:
            channel: The channel's descriptor.
            poller: A poller with the descriptors of the channel and of this output.
            seconds: Maximum time to wait for output or a frame. None: no limit.
        """
        while True:
            ready = {descriptor for descriptor, _ in poller.poll(None if seconds is None else seconds * 1000)}
            if not ready:
                return False
            if self._descriptor in ready and not self.read():
                poller.unregister(self._descriptor)
            if channel in ready:
                return True
            if self._dropped:  # the executor prints too much, so read more slowly, to save the worker's CPU time
                only = select.poll()
                only.register(channel, select.POLLIN)
                only.poll(DELAY_SECONDS * 1000)

    def read(self) -> bool:
        """Read available output. Keep at most `MAX_BYTES`, and count the dropped bytes. Return False at end of file."""
        try:
            data = os.read(self._descriptor, _AT_ONCE)
        except BlockingIOError:
            return True
        room = MAX_BYTES - len(self._text)
        self._text += data[:room]
        self._dropped += max(len(data) - room, 0)
        return bool(data)

    def take(self) -> str:
        """Return and clear the output since the last call of this method, indented for the log."""
        if not self._text:
            return ""
        rows = self._text.decode("utf-8", "replace").splitlines()
        if self._dropped:
            rows.append(f"… ({self._dropped} more bytes)")
        self._text.clear()
        self._dropped = 0
        return "".join(f"\n  {printable(row)}" for row in rows)

    def close(self) -> None:
        os.close(self._descriptor)
