"""What an executor prints, which the worker copies into the log.

An executor has only a pipe, and never the server's own output: it could write lines there that look like the
server's, or cut the file. Of each request a limited part is kept; the rest is read, so that nobody waits, and dropped.
"""

import os
import select

from toolpack_server.base.terminal import printable

MAX_BYTES = 16_384  # of what is printed during one request
PAUSE_SECONDS = 0.01  # between two looks at an executor that prints more than that
_AT_ONCE = 65_536


class Output:
    """The worker's end of the pipe."""

    def __init__(self, descriptor: int) -> None:
        os.set_blocking(descriptor, False)
        self._descriptor = descriptor
        self._text = bytearray()
        self._dropped = 0

    def fileno(self) -> int:
        return self._descriptor

    def wait_for(self, channel: int, poller: select.poll, seconds: float | None = None) -> bool:
        """Read until there is something to read in the channel; both are in the poller, the channel first.

        What was printed before an answer was sent has been read then. False if nothing came for so many seconds.
        """
        while True:
            ready = {descriptor for descriptor, _ in poller.poll(None if seconds is None else seconds * 1000)}
            if not ready:
                return False
            if self._descriptor in ready and not self.read():
                poller.unregister(self._descriptor)
            if channel in ready:
                return True
            if self._dropped:
                only = select.poll()
                only.register(channel, select.POLLIN)
                only.poll(PAUSE_SECONDS * 1000)

    def read(self) -> bool:
        """Read what is there; get False if nobody can print any more."""
        try:
            found = os.read(self._descriptor, _AT_ONCE)
        except BlockingIOError:
            return True
        room = MAX_BYTES - len(self._text)
        self._text += found[:room]
        self._dropped += max(len(found) - room, 0)
        return bool(found)

    def take(self) -> str:
        """Get what was printed since this was called last, for the log: each line is indented."""
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
