"""Parameters of seeded sessions: the seed of the random numbers, and the clock.

The results of a seeded session must depend only on its seed, clock, records and code. So its environments are decoded
from their bytes before every call, because live objects could carry other state from one call to the next.
"""

import importlib.util
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Annotated, Any

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from toolpack_server.base.errors import InvalidParamsError
from toolpack_server.base.settings import Settings
from toolpack_server.features.replay.pinned_clock import PinnedClock, start_ns
from toolpack_server.protocol.parameters import Parameters
from toolpack_server.sessions.recipes import details_of
from toolpack_server.stores.base import StoredSession

MAX_STEP_SECONDS = 366 * 86_400
CLOCK_YEARS = 1900, 9000

_RFC_3339 = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?(Z|[+-]\d\d:\d\d)", re.ASCII)


def _check_clock(clock: str) -> str:
    """Return a valid start time of a clock unchanged. Raise an error for pydantic if the time is invalid."""
    if not _RFC_3339.fullmatch(clock):
        raise PydanticCustomError("clock", "The clock is not a time like 2026-03-02T09:30:00Z, with an offset")
    try:
        year = datetime.fromisoformat(clock).year
    except ValueError:
        raise PydanticCustomError("clock", "There is no such time") from None
    if not CLOCK_YEARS[0] <= year <= CLOCK_YEARS[1]:
        raise PydanticCustomError("clock", f"The year is not between {CLOCK_YEARS[0]} and {CLOCK_YEARS[1]}")
    return clock


class SeedParameters(Parameters):
    """Parameters of `create_session` and `fork_session` for seeded sessions."""

    seed: Annotated[str, Field(min_length=1, max_length=128)] | None = Field(
        None, description="Seed of the random numbers that functions generate. The same seed produces the same numbers."
    )
    clock: Annotated[str, AfterValidator(_check_clock)] | None = Field(
        None, description="Start of the clock that the session's functions see, in RFC 3339 with an offset."
    )
    clock_step_seconds: float | None = Field(
        None,
        ge=0,
        le=MAX_STEP_SECONDS,
        allow_inf_nan=False,
        description="Seconds that each call adds to the clock; default: 1.",
    )


@dataclass(frozen=True, slots=True)
class Seeds:
    """The seed and clock of a session.

    Attributes:
        seed: Seed of the random numbers, or None if they aren't pinned.
        clock: Time at tick 0 in RFC 3339 with an offset, or None if time isn't pinned.
        clock_step_seconds: Seconds that each tick adds to the clock, or None without a clock.
        ticks: Tick of the record that created the session's first version; 0 unless the session is a fork.
    """

    seed: str | None = None
    clock: str | None = None
    clock_step_seconds: float | None = None
    ticks: int = 0

    def __bool__(self) -> bool:
        return self.seed is not None or self.clock is not None

    @classmethod
    def of(cls, session: StoredSession) -> "Seeds":
        """Return the seeds of a session."""
        return cls.of_details(details_of(session)) if session.details else REAL

    @classmethod
    def of_details(cls, details: Mapping[str, Any]) -> "Seeds":
        """Return the seeds in the details of a session."""
        return cls(
            details.get("seed"), details.get("clock"), details.get("clock_step_seconds"), details.get("ticks", 0)
        )

    @classmethod
    def of_request(cls, request: Parameters) -> "Seeds":
        """Return the seeds as a client requested them, without defaults."""
        if not isinstance(request, SeedParameters):
            return REAL
        return cls(request.seed, request.clock, request.clock_step_seconds)

    def of_new(self, settings: Settings) -> "Seeds":
        """Return these requested seeds, completed with the defaults for a new session.

        Raises:
            InvalidParamsError: `clock_step_seconds` is set without `clock`, or this server can't pin them.
        """
        if self.clock is None and self.clock_step_seconds is not None:
            raise InvalidParamsError("clock_step_seconds needs a clock: give both, or neither.")
        seeds = replace(self, clock_step_seconds=1.0) if self.clock and self.clock_step_seconds is None else self
        seeds.check(settings)
        return seeds

    def of_fork(self, parent: "Seeds", settings: Settings) -> "Seeds":
        """Return these requested seeds, completed with the parent's values for a fork.

        Raises:
            InvalidParamsError: For the same reasons as in `of_new`.
        """
        own = {name: value for name, value in self.shown().items() if value is not None}
        return replace(parent, **own).of_new(settings) if own else parent

    def details(self) -> dict[str, Any]:
        """Return the details to store in the session, empty if nothing is pinned."""
        return {**self.shown(), "ticks": self.ticks} if self else {}

    def shown(self) -> dict[str, Any]:
        return {"seed": self.seed, "clock": self.clock, "clock_step_seconds": self.clock_step_seconds}

    def pin(self, number: int) -> PinnedClock | None:
        """Return the pinned clock of a call, or None if the session has no seed and no clock.

        Args:
            number: Number of the call's record, counted from 1. 0 while an environment is built.
        """
        if not self:
            return None
        tick = self.ticks + number if number else 0
        if self.clock is None:
            return PinnedClock(tick, self.seed)
        return PinnedClock(
            tick, self.seed, start_ns(datetime.fromisoformat(self.clock), self.clock_step_seconds or 0, tick)
        )

    def check(self, settings: Settings) -> None:
        """Check that this server can pin the seed and the clock.

        Raises:
            InvalidParamsError: The server uses threads, or time-machine isn't installed.
        """
        if not self:
            return
        if settings.isolation != "process":
            raise InvalidParamsError(
                "A session with a seed or a clock needs TOOLPACK_ISOLATION=process, because the clock and random "
                "numbers can be pinned only for a whole process. Start the server with this setting."
            )
        if self.clock is not None and importlib.util.find_spec("time_machine") is None:
            raise InvalidParamsError(
                "A session with a clock needs the package time-machine on the server: pip install "
                "'toolpack-server[seeded]'."
            )


REPLAYS = "replays"
"""Key in the details of a replay's session. Its value is the number of records to run again."""
REAL = Seeds()
"""The seeds of a session with real random numbers and real time."""
