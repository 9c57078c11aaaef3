"""Functions that wait, as functions wait for a model or a website, and then change their world."""

import asyncio
import time
from typing import Annotated

from pydantic import BaseModel, Field

from toolpack_server import Depends, Rollout, TaskEnvironment, Toolpack


class Waits(BaseModel):
    count: int = 0


class WaiterEnvironment(TaskEnvironment):
    waits: Waits = Field(default_factory=Waits)


toolpack = Toolpack("waiter", WaiterEnvironment)


@toolpack.task("waits", prompt="Wait.")
def waits(rollout: Rollout[WaiterEnvironment]) -> float:
    """Return a reward of 1 if the agent has waited."""
    return float(rollout.environment.waits.count > 0)


TheWaits = Annotated[Waits, Depends("waits")]


@toolpack.function
async def wait(waits: TheWaits, seconds: float) -> int:
    """Wait, and count the call.

    :param seconds: The duration.
    """
    await asyncio.sleep(seconds)
    waits.count += 1
    return waits.count


@toolpack.function
def quick(waits: TheWaits) -> int:
    """Count the call without waiting."""
    waits.count += 1
    return waits.count


@toolpack.function
def sleep(waits: TheWaits, seconds: float) -> int:
    """Wait in a thread, and count the call.

    :param seconds: The duration.
    """
    time.sleep(seconds)
    waits.count += 1
    return waits.count
