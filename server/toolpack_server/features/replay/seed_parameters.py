"""Seeded sessions: what is pinned while their calls run.

What a seeded session does follows from its seed, its clock, its records and the code alone. So its
environments are read from their bytes before every call, and nothing of it is kept alive in between.
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
    """What seeded sessions add to `create_session` and `fork_session`."""

    seed: Annotated[str, Field(min_length=1, max_length=128)] | None = Field(
        None, description="What its functions draw random numbers from, so that they draw the same again."
    )
    clock: Annotated[str, AfterValidator(_check_clock)] | None = Field(
        None, description="The time that its functions see at the start, RFC 3339 with an offset."
    )
    clock_step_seconds: float | None = Field(
        None,
        ge=0,
        le=MAX_STEP_SECONDS,
        allow_inf_nan=False,
        description="How far each call moves the clock on; default: 1.",
    )


@dataclass(frozen=True, slots=True)
class Seeds:
    """What is pinned in a session."""

    seed: str | None = None  # of chance; None if it is real
    clock: str | None = None  # the time at tick 0, RFC 3339 with offset; None if time is real
    clock_step_seconds: float | None = None  # how far each tick moves it on; None without a clock
    ticks: int = 0  # the tick of the record that made the session's first version; 0 unless it is a fork

    def __bool__(self) -> bool:
        return self.seed is not None or self.clock is not None

    @classmethod
    def of(cls, session: StoredSession) -> "Seeds":
        return cls.of_details(details_of(session)) if session.details else REAL

    @classmethod
    def of_details(cls, details: Mapping[str, Any]) -> "Seeds":
        return cls(
            details.get("seed"), details.get("clock"), details.get("clock_step_seconds"), details.get("ticks", 0)
        )

    @classmethod
    def asked(cls, request: Parameters) -> "Seeds":
        if not isinstance(request, SeedParameters):
            return REAL
        return cls(request.seed, request.clock, request.clock_step_seconds)

    def of_new(self, settings: Settings) -> "Seeds":
        """Get what is pinned in a new session that was asked for with this, or raise `InvalidParamsError`."""
        if self.clock is None and self.clock_step_seconds is not None:
            raise InvalidParamsError("clock_step_seconds needs a clock: give both, or neither.")
        seeds = replace(self, clock_step_seconds=1.0) if self.clock and self.clock_step_seconds is None else self
        seeds.check(settings)
        return seeds

    def of_fork(self, parent: "Seeds", settings: Settings) -> "Seeds":
        """Get what is pinned in a fork that was asked for with this: what isn't given is its parent's."""
        given = {name: value for name, value in self.shown().items() if value is not None}
        return replace(parent, **given).of_new(settings) if given else parent

    def details(self) -> dict[str, Any]:
        """Get what a store keeps of this; nothing if nothing is pinned."""
        return {**self.shown(), "ticks": self.ticks} if self else {}

    def shown(self) -> dict[str, Any]:
        return {"seed": self.seed, "clock": self.clock, "clock_step_seconds": self.clock_step_seconds}

    def pin(self, calls: int) -> PinnedClock | None:
        """Get what is pinned for a call; None if nothing is.

        `calls` is 1 more than the index of the record that the call will get; 0 while an environment is built.
        """
        if not self:
            return None
        tick = self.ticks + calls if calls else 0
        if self.clock is None:
            return PinnedClock(tick, self.seed)
        return PinnedClock(
            tick, self.seed, start_ns(datetime.fromisoformat(self.clock), self.clock_step_seconds or 0, tick)
        )

    def check(self, settings: Settings) -> None:
        """Raise `InvalidParamsError` if this server can't pin it."""
        if not self:
            return
        if settings.isolation != "process":
            raise InvalidParamsError(
                "A session with a seed or a clock needs TOOLPACK_ISOLATION=process: only in a process of its own can a "
                "function's clock and chance be pinned. Start the server with it."
            )
        if self.clock is not None and importlib.util.find_spec("time_machine") is None:
            raise InvalidParamsError(
                "A session with a clock needs the package time-machine on the server: pip install "
                "'toolpack-server[seeded]'."
            )


REPLAYS = "replays"  # among the details of a session that a replay has made: how many records there were to run again
REAL = Seeds()
"""Nothing is pinned."""
