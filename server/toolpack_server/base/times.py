"""Timestamps for clients (RFC 3339) and expiry times of sessions.

Inside the server a time is a float, in seconds since the epoch. Only this module formats times for clients.
"""

from datetime import UTC, datetime
from functools import lru_cache

# A session lives up to this fraction longer than its TTL, so that not every call must write its expiry.
GRACE = 0.05


def timestamp(seconds: float) -> str:
    """Return a time as RFC 3339 text in UTC, with milliseconds."""
    whole, thousandths = divmod(round(seconds * 1000), 1000)
    return f"{_second(whole)}.{thousandths:03}Z"


@lru_cache(maxsize=8)  # most times to format are in the current second
def _second(seconds: int) -> str:
    """Return a time as RFC 3339 text without its fraction and time zone."""
    return datetime.fromtimestamp(seconds, UTC).isoformat().partition("+")[0]


def expiry(ttl_seconds: float, now: float) -> float:
    """Return the expiry time to store for a session that received a call at the time `now`."""
    return now + ttl_seconds * (1 + GRACE)
