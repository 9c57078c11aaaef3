"""Times as clients see them (RFC 3339), and when a session expires.

Times inside the server are seconds since the epoch, as `time.time` gives them; they become text here only.
"""

from datetime import UTC, datetime
from functools import lru_cache

# A session lives up to this share longer than its TTL, so that its expiry needn't be written at every call.
GRACE = 0.05


def timestamp(seconds: float) -> str:
    """Format a time as RFC 3339, in UTC, to the millisecond."""
    whole, thousandths = divmod(round(seconds * 1000), 1000)
    return f"{_second(whole)}.{thousandths:03}Z"


@lru_cache(maxsize=8)  # most formatted times are of the current second
def _second(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat().partition("+")[0]


def expiry(ttl_seconds: float, now: float) -> float:
    """Get the expiry to store for a session that is called now."""
    return now + ttl_seconds * (1 + GRACE)
