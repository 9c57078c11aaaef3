"""The toolpacks `ledger` and `tally` of the fault test. They make every change visible.

The ledger has a running hash of its entries, so the checks notice a call that is lost, repeated or out of order.
"""

import asyncio
import hashlib
import time
from typing import Annotated

from pydantic import BaseModel

from toolpack_server import Depends, TaskEnvironment, Toolpack

MAX_LAST = 8


class Ledger(BaseModel):
    length: int = 0
    digest: str = ""
    last: list[str] = []

    def write(self, entry: str) -> None:
        self.length += 1
        self.digest = hashlib.sha256(f"{self.digest} {entry}".encode()).hexdigest()[:16]
        self.last = [*self.last[1 - MAX_LAST :], entry]

    def receipt(self) -> "Receipt":
        return Receipt(length=self.length, digest=self.digest)


class Receipt(BaseModel):
    length: int
    digest: str


class Tally(BaseModel):
    total: int = 0
    counts: dict[str, int] = {}


class LedgerEnvironment(TaskEnvironment):
    ledger: Ledger = Ledger()


class TallyEnvironment(TaskEnvironment):
    tally: Tally = Tally()


ledger_pack = Toolpack("ledger", LedgerEnvironment)
tally_pack = Toolpack("tally", TallyEnvironment)

TheLedger = Annotated[Ledger, Depends("ledger")]
TheTally = Annotated[Tally, Depends("tally")]


@ledger_pack.function
def append(ledger: TheLedger, entry: str) -> Receipt:
    """Write an entry.

    :param entry: The text.
    """
    ledger.write(entry)
    return ledger.receipt()


@ledger_pack.function
def append_slowly(ledger: TheLedger, entry: str, seconds: float) -> Receipt:
    """Write an entry, slowly.

    :param entry: The text.
    :param seconds: The duration.
    """
    ledger.write(entry)
    time.sleep(seconds)
    return ledger.receipt()


@ledger_pack.function
def append_number(ledger: TheLedger, entry: str, number: int) -> Receipt:
    """Write an entry with a number, usually the result of a nested call.

    :param entry: The text.
    :param number: The number.
    """
    ledger.write(f"{entry}: {number}")
    return ledger.receipt()


@ledger_pack.function
def append_and_fail(ledger: TheLedger, entry: str, number: int = 0) -> Receipt:
    """Write an entry, then fail, so that the entry is lost.

    :param entry: The text.
    :param number: A number, usually the result of a nested call.
    """
    ledger.write(f"{entry}: {number}")
    raise ValueError(f"{entry} is not wanted")


@ledger_pack.function(timeout_seconds=0.2)
def append_and_hang(ledger: TheLedger, entry: str, seconds: float) -> Receipt:
    """Write an entry, then miss the deadline, so that the entry is lost.

    :param entry: The text.
    :param seconds: The time to sleep; 0 computes forever instead.
    """
    ledger.write(entry)
    time.sleep(seconds)
    while True:
        ledger.write(entry)


@ledger_pack.function
async def append_patiently(ledger: TheLedger, entry: str, seconds: float) -> Receipt:
    """Write an entry, and wait for a while, without a thread.

    :param entry: The text.
    :param seconds: The time to wait.
    """
    ledger.write(entry)
    await asyncio.sleep(seconds)
    return ledger.receipt()


@ledger_pack.function(timeout_seconds=0.3)
async def append_too_late(ledger: TheLedger, entry: str, seconds: float) -> Receipt:
    """Write an entry, and wait past the deadline. When cancelled, write once more. Neither entry may have an effect.

    :param entry: The text.
    :param seconds: The time to wait.
    """
    ledger.write(entry)
    try:
        await asyncio.sleep(seconds)
    except asyncio.CancelledError:
        ledger.write(f"{entry} once more")
    return ledger.receipt()


@ledger_pack.function
def append_and_hog(ledger: TheLedger, entry: str) -> Receipt:
    """Write an entry, then compute for minutes in C code that never releases the GIL.

    :param entry: The text.
    """
    ledger.write(entry)
    sum(range(10**10))
    return ledger.receipt()


@ledger_pack.function(read_only=True)
def read(ledger: TheLedger, entry: str) -> str:
    """Return the ledger's length and digest.

    :param entry: A text to repeat.
    """
    return f"{entry}: {ledger.length} {ledger.digest}"


@tally_pack.function
async def add(tally: TheTally, name: str, amount: int) -> int:
    """Add to a count, and return it.

    :param name: The name of the count.
    :param amount: The amount to add.
    """
    tally.counts[name] = tally.counts.get(name, 0) + amount
    tally.total += amount
    return tally.counts[name]
