"""Functions that look at the clock and draw numbers, in every way that AgentDojo's and others' do."""

import asyncio
import os
import random
import secrets
import threading
import time
import uuid
from datetime import UTC, date, datetime
from random import choice, randint
from typing import Annotated, Any
from uuid import uuid4

from pydantic import BaseModel, Field

from server import Depends, TaskEnvironment, Toolpack


class Throw(BaseModel):
    id: str = Field(default_factory=lambda: uuid4().hex)
    number: int
    at: datetime = Field(default_factory=datetime.now)


class Table(TaskEnvironment):
    throws: list[Throw] = Field(default_factory=list)
    players: set[str] = Field(default_factory=set)
    laid: Any = None
    lucky: int = 0
    opened_at: datetime | None = None


def open_table(players: int = 3) -> Table:
    """Open a table.

    :param players: How many players there are.
    """
    names = {f"player {uuid.uuid4().hex[:6]}" for _ in range(players)}
    return Table(players=names, lucky=randint(1, 10**9), opened_at=datetime.now(UTC))


toolpack = Toolpack("dice", open_table)

Throws = Annotated[list[Throw], Depends("throws")]
Players = Annotated[set[str], Depends("players")]


@toolpack.function
def throw(throws: Throws, sides: int = 6) -> Throw:
    """Throw a die.

    :param sides: How many sides it has.
    """
    throws.append(Throw(number=randint(1, sides)))
    return throws[-1]


@toolpack.function
async def throw_later(throws: Throws) -> Throw:
    """Throw a die after a moment."""
    await asyncio.sleep(0.001)
    throws.append(Throw(number=choice(range(100))))
    return throws[-1]


@toolpack.function(read_only=True)
def look() -> list[Any]:
    """Look at every clock, and draw from everything."""
    return [
        *(time.time(), time.time_ns(), datetime.now().isoformat(), uuid.uuid1().hex),  # noqa: DTZ005
        *(random.random(), secrets.token_hex(), os.urandom(8).hex(), random.SystemRandom().random(), uuid.uuid4().hex),
        *(random.Random().random(), time.strftime("%c %Z"), hash("text"), date.today().isoformat()),  # noqa: DTZ011
    ]


@toolpack.function
def join(players: Players, name: str) -> list[str]:
    """Join the table, and get the players in the order that the set happens to have.

    :param name: The name.
    """
    players.add(name)
    if len(players) % 7 == 0:
        players.discard(next(iter(players)))
    return list(players)


@toolpack.function(read_only=True)
def seats(players: Players) -> list[str]:
    """Get the players in the order that the set happens to have."""
    return list(players)


@toolpack.function
def fail(throws: Throws) -> None:
    """Throw a die, then fail."""
    throws.append(Throw(number=1))
    raise ValueError(f"fell off the table at {time.time()} {random.random()}")


@toolpack.function
def tie(environment: Annotated[Any, Depends(lambda environment: environment)]) -> None:
    """Let the table refer to itself."""
    environment.laid = knot = []
    knot.append(knot)


@toolpack.function(timeout_seconds=0.3)
def stall(throws: Throws) -> None:
    """Wait, past the deadline."""
    throws.append(Throw(number=1))
    time.sleep(60)


@toolpack.function
def crash(throws: Throws) -> None:
    """End the process."""
    throws.append(Throw(number=1))
    os._exit(3)


@toolpack.function
def straggle() -> float:
    """Leave a thread behind that draws and looks on."""

    def go_on() -> None:
        while True:
            random.random()
            time.time()

    drawn = random.random()
    threading.Thread(target=go_on, daemon=True).start()
    return drawn
