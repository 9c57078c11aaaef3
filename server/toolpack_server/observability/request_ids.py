"""Request ids, which connect a client's request with its response header and its log lines.

A client can choose the id with the header X-Request-Id. The server accepts only ids that are safe to log.
"""

import re
from contextvars import ContextVar

from toolpack_server.base.after_fork import id_numbers

REQUEST_ID = re.compile(rb"[\x21-\x7e]{1,128}")  # printable ASCII without spaces

request_id: ContextVar[str] = ContextVar("request_id", default="")


def accept_request_id(header: bytes | None) -> str:
    """Set and return the current request's id: the X-Request-Id header if it is safe to log, else a new id."""
    if header and REQUEST_ID.fullmatch(header):
        accepted = header.decode("ascii")
    else:
        accepted = f"{id_numbers.getrandbits(64):016x}"
    request_id.set(accepted)
    return accepted
