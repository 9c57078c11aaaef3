"""The time by which sessions live, between two looks at the store.

Only the store counts it, by one clock for all servers (`SessionStore.count_time`), and a worker adds what has
passed on its own monotonic clock since it looked. So this time runs on evenly, whatever happens to a clock, and what
was written by it needn't be corrected.
"""

import time

from toolpack_server.stores.base import StoreClock


class SessionClock:
    """What a worker knows of the time by which sessions live.

    Attributes:
        ahead: By how many seconds this time is ahead of the monotonic clock.
        uncounted: By how many the store's clock is ahead of this time.
    """

    def __init__(self, counted: StoreClock) -> None:
        self.look(counted)

    def look(self, counted: StoreClock) -> None:
        """Take over what the store has just counted."""
        self.ahead, self.uncounted = counted.now - time.monotonic(), counted.uncounted

    def now(self) -> float:
        return time.monotonic() + self.ahead
