"""Pinned time and chance: what a function sees of the clock, and draws, is the same whenever it runs.

The clock is pinned by time-machine, which replaces the C functions behind `time` and `datetime`: references that were
taken at import follow it, and types stay the real ones. Chance comes from BLAKE2b over the seed and the tick; no
generator is kept from one call to the next.

Only in a process that runs one call at a time, as everything in the process sees what is pinned. After
it real time and chance are back. docs/evaluate/replay.md lists what isn't pinned.
"""

import hashlib
import os
import random
import sys
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, Self

from pydantic import BaseModel, TypeAdapter
from typing_extensions import override

from toolpack_server.base.module_rngs import module_rngs
from toolpack_server.execution.policy import ExecutionPolicy
from toolpack_server.features.replay.world_digest import Entries, part_entries, piece_entries
from toolpack_server.snapshots.classes import ClassTable
from toolpack_server.volumes.volume import VolumeContext

LOOK_NS = 1000  # by which each look at the clock moves it on
SECOND_NS = 10**9

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_BLOCK = 64
_SEED_BYTES = 32
_MULTICAST = 1 << 40  # marks the address of a machine as made up (RFC 9562, section 6.10)


@dataclass(frozen=True, slots=True)
class PinnedClock(ExecutionPolicy):
    """What is pinned while one call runs, of which the digests of all that it changes are kept."""

    tick: int  # the number of the call; 0 while an initial environment is built
    seed: str | None = None  # what chance is drawn from, together with the tick; None leaves it real
    now_ns: int | None = None  # the time at which the call starts, in nanoseconds since the epoch; None leaves it real
    digest_type = TypeAdapter(Entries | None)

    @classmethod
    @override
    def load(cls) -> None:
        with suppress(ImportError):
            load_time_machine()

    @contextmanager
    @override
    def hold(self) -> Iterator[None]:
        """Pin time and chance for the block; `ImportError` if the clock is to be pinned without time-machine."""
        with ExitStack() as stack:
            if self.now_ns is not None:
                stack.enter_context(_clock(self.now_ns))
            if self.seed is not None:
                stack.enter_context(_chance(self.seed, self.tick))
            yield

    @override
    def later(self, seconds: float) -> Self:
        return self if self.now_ns is None else replace(self, now_ns=self.now_ns + round(seconds * SECOND_NS))

    @override
    def digest_part(self, environment: BaseModel, classes: ClassTable) -> Entries | None:
        return part_entries(environment, classes)

    @override
    def digest_piece(self, part: str, payload: bytes, context: VolumeContext) -> Entries:
        return piece_entries(part, payload, context)


def start_ns(clock: datetime, step_seconds: float, tick: int) -> int:
    """Get the time at which a call starts, in nanoseconds since the epoch.

    Args:
        clock: When tick 0 starts.
        step_seconds: How far each tick moves the clock on.
    """
    microseconds = (clock - _EPOCH) // timedelta(microseconds=1)
    return microseconds * 1000 + tick * round(step_seconds * SECOND_NS)


def load_time_machine() -> Any:
    """Import time-machine, without pytest, which it would import where that is installed."""
    if "time_machine" in sys.modules:
        return sys.modules["time_machine"]
    without: dict[str, Any] = {} if "pytest" in sys.modules else {"pytest": None}
    sys.modules.update(without)
    try:
        import time_machine  # noqa: PLC0415 - an optional package
    finally:
        for name in without:
            del sys.modules[name]
    return time_machine


@contextmanager
def _clock(now_ns: int) -> Iterator[None]:
    time_machine = load_time_machine()
    travel = time_machine.travel(_EPOCH, tick=False)
    traveller = travel.start()
    try:
        # Its own class stands still, or moves as fast as real time.
        traveller.__class__ = _moving(time_machine.Traveller)
        traveller.next_ns = now_ns
        yield
    finally:
        travel.stop()


@lru_cache(maxsize=1)
def _moving(base: Any) -> Any:
    """Get the class of a clock that each look moves on."""

    class Moving(base):  # type: ignore[misc]
        next_ns = 0

        def time_ns(self) -> int:
            now_ns = self.next_ns
            self.next_ns += LOOK_NS
            return now_ns

    return Moving


class _Stream:
    """Bytes drawn from a seed and a tick."""

    def __init__(self, seed: str, tick: int) -> None:
        encoded = seed.encode("utf-8", "surrogatepass")
        self._key = hashlib.blake2b(b"%d:%b %d" % (len(encoded), encoded, tick)).digest()
        self._blocks = 0
        self._left = b""

    def take(self, size: int, /) -> bytes:
        """Get the next bytes; takes the place of `os.urandom`."""
        if size < 0:
            raise ValueError("negative argument not allowed")
        pieces = [self._left]
        missing = size - len(self._left)
        while missing > 0:
            block = hashlib.blake2b(b"%d" % self._blocks, key=self._key, digest_size=_BLOCK).digest()
            self._blocks += 1
            pieces.append(block)
            missing -= _BLOCK
        drawn = b"".join(pieces)
        self._left = drawn[size:]
        return drawn[:size]

    def number(self) -> int:
        return int.from_bytes(self.take(_SEED_BYTES))

    def number_of(self, name: str) -> int:
        """Get a number for a name, which doesn't depend on what was drawn before."""
        return int.from_bytes(hashlib.blake2b(name.encode(), key=self._key, digest_size=_SEED_BYTES).digest())


@contextmanager
def _chance(seed: str, tick: int) -> Iterator[None]:
    stream = _Stream(seed, tick)
    shared: random.Random = random._inst  # noqa: SLF001 - functions imported by name use it
    seed_generator: Any = random.Random.seed

    def seeded(self: random.Random, a: Any = None, version: int = 2) -> None:
        seed_generator(self, stream.number() if a is None else a, version)

    # In this order: what is drawn first doesn't depend on which Python version has which attributes.
    shared_seed, node = stream.number(), int.from_bytes(stream.take(6)) | _MULTICAST
    replaced = [
        (os, "urandom", stream.take),
        (random, "_urandom", stream.take),
        (random.Random, "seed", seeded),
        (uuid, "_node", node),
    ]
    originals = [(owner, name, vars(owner)[name]) for owner, name, _ in replaced]
    seed_generator(shared, shared_seed)
    module_rngs.seed(stream.number_of)
    try:
        for owner, name, value in replaced:
            setattr(owner, name, value)
        yield
    finally:
        for owner, name, value in originals:
            setattr(owner, name, value)
        seed_generator(shared)
        module_rngs.seed()
