"""Exception handler of the event loop, which limits the log lines about exhausted resources.

At the limit of open files, asyncio reports thousands of errors a second with tracebacks. This handler logs an exhausted
resource once a minute, and passes any other error to asyncio's default handler.
"""

import asyncio
import errno
import time
from typing import Any

from toolpack_server.base.logger import log

REPEAT_SECONDS = 60.0
EXHAUSTED = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}


class LoopFaults:
    """Exception handler for `loop.set_exception_handler`."""

    def __init__(self) -> None:
        self._logged: dict[str, float] = {}

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Log an error that no code has handled. The event loop calls this, with asyncio's description of the error."""
        error = context.get("exception")
        if not (isinstance(error, OSError) and error.errno in EXHAUSTED):
            loop.default_exception_handler(context)
            return
        fault = f"{context['message']}: {error.strerror}"
        now = time.monotonic()
        if now - self._logged.get(fault, float("-inf")) >= REPEAT_SECONDS:
            self._logged[fault] = now
            log.error("%s. This is logged once a minute while it lasts; see `ulimit -Hn`.", fault)
