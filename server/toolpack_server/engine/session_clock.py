"""Session clock: a worker's copy of the store's clock, which determines when sessions expire.

The store maintains one clock for all servers (`SessionStore.count_time`). A worker reads it from time to time, and adds
the time since the last reading from its own monotonic clock. So session time runs evenly, even if a system clock is
set, and stored times need no correction.
"""

import time

from toolpack_server.stores.base import StoreClock


class SessionClock:
    """A worker's copy of the store's clock.

    Attributes:
        ahead: Session time minus the monotonic clock, in seconds.
        uncounted: The store's clock minus session time, in seconds.
    """

    def __init__(self, counted: StoreClock) -> None:
        self.look(counted)

    def look(self, counted: StoreClock) -> None:
        """Set the clock from a new reading of the store's clock."""
        self.ahead, self.uncounted = counted.now - time.monotonic(), counted.uncounted

    def now(self) -> float:
        return time.monotonic() + self.ahead
