"""The id of a request: what its log lines, its answer's header and whoever has sent it have in common.

The rule: an id that is given is taken only if it is safe to log.
"""

import os
import random
import re
from contextvars import ContextVar

REQUEST_ID = re.compile(rb"[\x21-\x7e]{1,128}")  # printable ASCII without spaces

request_id: ContextVar[str] = ContextVar("request_id", default="")

_ids = random.Random()  # noqa: S311 - nobody has to be unable to guess them
os.register_at_fork(after_in_child=_ids.seed)  # or a forked process would give the same


def accept_request_id(header: bytes | None) -> str:
    """Get the X-Request-Id header if it is safe to log, else a new id, and make it the current request's."""
    accepted = header.decode("ascii") if header and REQUEST_ID.fullmatch(header) else f"{_ids.getrandbits(64):016x}"
    request_id.set(accepted)
    return accepted
