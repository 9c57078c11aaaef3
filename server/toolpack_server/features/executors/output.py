"""Output of an executor, which the worker copies into the log.

The standard output of an executor is a pipe. With the server's own output, a function could forge log lines or truncate
the log file. The worker keeps a limited amount of text per request. It reads and drops the rest, so that the executor
doesn't block.
"""

import os
import select

from toolpack_server.base.terminal import printable

MAX_BYTES = 16_384  # max bytes that are kept per request
DELAY_SECONDS = 0.01  # between two reads of an executor that prints more
_AT_ONCE = 65_536


class Output:
    """The worker's end of the pipe. The descriptor becomes non-blocking."""

    def __init__(self, descriptor: int) -> None:
        os.set_blocking(descriptor, False)
        self._descriptor = descriptor
        self._text = bytearray()
        self._dropped = 0

    def fileno(self) -> int:
        return self._descriptor

    def wait_for(self, channel: int, poller: select.poll, seconds: float | None = None) -> bool:
        """Read output until the channel is readable. Return False if the executor sends and prints nothing for a time.

        When this returns, all text that was printed before an answer has been read.

        Args:
            channel: The descriptor of the channel.
            poller: Has the descriptors of the channel and of this output.
            seconds: The time; None: no limit.
        """
        while True:
            ready = {descriptor for descriptor, _ in poller.poll(None if seconds is None else seconds * 1000)}
            if not ready:
                return False
            if self._descriptor in ready and not self.read():
                poller.unregister(self._descriptor)
            if channel in ready:
                return True
            if self._dropped:  # the executor prints much: read more slowly, to save the worker's CPU time
                only = select.poll()
                only.register(channel, select.POLLIN)
                only.poll(DELAY_SECONDS * 1000)

    def read(self) -> bool:
        """Read available output, keep at most `MAX_BYTES`, and count the rest. Return False at the end of the pipe."""
        try:
            data = os.read(self._descriptor, _AT_ONCE)
        except BlockingIOError:
            return True
        room = MAX_BYTES - len(self._text)
        self._text += data[:room]
        self._dropped += max(len(data) - room, 0)
        return bool(data)

    def take(self) -> str:
        """Return and forget the output since the last call, indented for the log."""
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
