"""The id of a request: what its log lines, its answer's header and whoever has sent it have in common.

An id that is given is taken only if it is safe to log.
"""

import re
from contextvars import ContextVar

from toolpack_server.base.after_fork import id_numbers

REQUEST_ID = re.compile(rb"[\x21-\x7e]{1,128}")  # printable ASCII without spaces

request_id: ContextVar[str] = ContextVar("request_id", default="")


def accept_request_id(header: bytes | None) -> str:
    """Get the X-Request-Id header if it is safe to log, else a new id, and make it the current request's."""
    if header and REQUEST_ID.fullmatch(header):
        accepted = header.decode("ascii")
    else:
        accepted = f"{id_numbers.getrandbits(64):016x}"
    request_id.set(accepted)
    return accepted
