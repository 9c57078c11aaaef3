"""Limit on the memory of all requests that are being received or answered, in total and per owner.

Memory is reserved before it is used, and released when the request is answered. The transport reserves the body of a
request. A method that unpacks data reserves the unpacked size. Reservations are thread-safe.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

from toolpack_server.base.errors import OverloadedError
from toolpack_server.base.settings import Settings

Refusal = Callable[[str], Exception]
"""Creates an exception from its message."""


class BytesInFlight:
    """Counter of the bytes that all requests have reserved."""

    def __init__(self, settings: Settings) -> None:
        self._limit = settings.max_bytes_in_flight
        self._limit_per_owner = settings.share(settings.max_bytes_in_flight)
        self._by_owner: dict[str, int] = {}
        self._lock = threading.Lock()
        self.total = 0

    @property
    def max_per_request(self) -> int:
        """Maximum number of bytes that one request can reserve while there is no other request."""
        return min(self._limit, self._limit_per_owner)

    def reserve(self, owner: str, size: int, refusal: Refusal = OverloadedError) -> None:
        """Reserve bytes for an owner. Raise `refusal` if that exceeds a limit."""
        with self._lock:
            total, owner_total = self.total + size, self._by_owner.get(owner, 0) + size
            if total <= self._limit and owner_total <= self._limit_per_owner:
                self.total, self._by_owner[owner] = total, owner_total
                return
        if total > self._limit:
            usage, limit = f"all clients together use {total - size} bytes", self._limit
        else:
            usage, limit = f"your requests use {owner_total - size} bytes", self._limit_per_owner
        raise refusal(
            f"Too many bytes of requests are being received or answered: {usage}, and this one needs {size} more; "
            f"{limit} are allowed. Nothing was changed. Send the request again later."
        )

    def add(self, owner: str, size: int) -> None:
        """Add bytes without checking the limits. A negative number releases bytes."""
        with self._lock:
            self.total += size
            owner_total = self._by_owner.get(owner, 0) + size
            if owner_total:
                self._by_owner[owner] = owner_total
            else:
                self._by_owner.pop(owner, None)


@dataclass(slots=True)
class Reservation:
    """Bytes that one request has reserved. The end of a `with` block releases them."""

    in_flight: BytesInFlight
    owner: str
    refusal: Refusal = OverloadedError
    size: int = 0

    def grow_to(self, size: int) -> None:
        """Grow to `size` bytes if the reservation is smaller. Raise `refusal` if that exceeds a limit."""
        if size > self.size:
            self.in_flight.reserve(self.owner, size - self.size, self.refusal)
            self.size = size

    def resize(self, size: int) -> None:
        """Change the size to `size` bytes without checking the limits."""
        self.in_flight.add(self.owner, size - self.size)
        self.size = size

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.resize(0)
