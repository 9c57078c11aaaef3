"""How many bytes of requests are in memory at once, in all and by owner.

What a request takes is reserved before it is taken, and released when the request is answered. Whoever
receives requests reserves their bodies; a method that unpacks something reserves what comes out of it, in any thread.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

from toolpack_server.base.errors import OverloadedError
from toolpack_server.base.settings import Settings

Refusal = Callable[[str], Exception]
"""Makes an exception of its text."""


class BytesInFlight:
    """The bytes of all requests that are being received or answered."""

    def __init__(self, settings: Settings) -> None:
        self._limit = settings.max_bytes_in_flight
        self._limit_per_owner = settings.share(settings.max_bytes_in_flight)
        self._by_owner: dict[str, int] = {}
        self._lock = threading.Lock()
        self.total = 0

    @property
    def most(self) -> int:
        """How many bytes a request can reserve if there is no other."""
        return min(self._limit, self._limit_per_owner)

    def reserve(self, owner: str, size: int, refusal: Refusal = OverloadedError) -> None:
        """Count bytes, or raise a refusal."""
        with self._lock:
            total, of_owner = self.total + size, self._by_owner.get(owner, 0) + size
            if total <= self._limit and of_owner <= self._limit_per_owner:
                self.total, self._by_owner[owner] = total, of_owner
                return
        if total > self._limit:
            so_far, limit = f"all clients together have {total - size}", self._limit
        else:
            so_far, limit = f"you have {of_owner - size}", self._limit_per_owner
        raise refusal(
            f"Too many bytes of requests are being received or answered: {so_far}, and {limit} are allowed. Nothing "
            f"was changed. Send the request again later."
        )

    def add(self, owner: str, size: int) -> None:
        """Count bytes that can't be refused any more; fewer, if the number is negative."""
        with self._lock:
            self.total += size
            of_owner = self._by_owner.get(owner, 0) + size
            if of_owner:
                self._by_owner[owner] = of_owner
            else:
                self._by_owner.pop(owner, None)


@dataclass(slots=True)
class Reservation:
    """The bytes of one request; a `with` block releases them at its end."""

    in_flight: BytesInFlight
    owner: str
    refusal: Refusal = OverloadedError
    size: int = 0

    def grow_to(self, size: int) -> None:
        """Reserve bytes, or raise the refusal."""
        if size > self.size:
            self.in_flight.reserve(self.owner, size - self.size, self.refusal)
            self.size = size

    def resize(self, size: int) -> None:
        """Count another number of bytes from now on, whatever the limits."""
        self.in_flight.add(self.owner, size - self.size)
        self.size = size

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.resize(0)
