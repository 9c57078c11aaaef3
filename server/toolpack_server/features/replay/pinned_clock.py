"""Pinned clock and random numbers of a call, so that its function returns the same result each time it runs.

The package time-machine pins the clock: it replaces the C functions behind `time` and `datetime`. So functions that
were imported by name are also pinned, and `datetime` stays the real class. Random numbers are derived from the seed and
the tick with BLAKE2b. No random generator keeps its state from one call to the next.

The whole process sees the pinned values, so it must run only one call at a time. After the call, time and random
numbers are real again. docs/evaluate/replay.md lists what isn't pinned.
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

READ_STEP_NS = 1000  # nanoseconds that each reading adds to the pinned clock
SECOND_NS = 10**9

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_BLOCK = 64
_SEED_BYTES = 32
_MULTICAST = 1 << 40  # bit that marks a MAC address as random (RFC 9562, section 6.10)


@dataclass(frozen=True, slots=True)
class PinnedClock(ExecutionPolicy):
    """Execution policy that pins time and random numbers for one call. It also digests the parts that the call changes.

    Attributes:
        tick: The number of the call; 0 while an initial environment is built.
        seed: Seed of the random numbers, together with the tick; None leaves random numbers real.
        now_ns: Start of the call in nanoseconds since the epoch; None leaves time real.
    """

    tick: int
    seed: str | None = None
    now_ns: int | None = None
    digest_type = TypeAdapter(Entries | None)

    @classmethod
    @override
    def load(cls) -> None:
        with suppress(ImportError):
            load_time_machine()

    @contextmanager
    @override
    def hold(self) -> Iterator[None]:
        """Pin time and random numbers for a block.

        Raises:
            ImportError: The clock needs time-machine, which isn't installed.
        """
        with ExitStack() as stack:
            if self.now_ns is not None:
                stack.enter_context(_pinned_time(self.now_ns))
            if self.seed is not None:
                stack.enter_context(_pinned_random(self.seed, self.tick))
            yield

    @override
    def later(self, seconds: float) -> Self:
        return self if self.now_ns is None else replace(self, now_ns=self.now_ns + round(seconds * SECOND_NS))

    @override
    def at(self, microseconds: int) -> Self:
        return self if self.now_ns is None else replace(self, now_ns=microseconds * 1000)

    @override
    def digest_part(self, environment: BaseModel, classes: ClassTable) -> Entries | None:
        return part_entries(environment, classes)

    @override
    def digest_piece(self, part: str, payload: bytes, context: VolumeContext) -> Entries:
        return piece_entries(part, payload, context)


def start_ns(clock: datetime, step_seconds: float, tick: int) -> int:
    """Return the start time of a call, in nanoseconds since the epoch.

    Args:
        clock: The start of tick 0.
        step_seconds: Seconds that each tick adds to the clock.
    """
    microseconds = (clock - _EPOCH) // timedelta(microseconds=1)
    return microseconds * 1000 + tick * round(step_seconds * SECOND_NS)


def load_time_machine() -> Any:
    """Import time-machine, and keep it from importing pytest, which it otherwise does if pytest is installed."""
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
def _pinned_time(now_ns: int) -> Iterator[None]:
    """Replace the clock of the process for a block. It starts at `now_ns`, in nanoseconds since the epoch."""
    time_machine = load_time_machine()
    travel = time_machine.travel(_EPOCH, tick=False)
    clock = travel.start()
    try:
        # time-machine's own clocks stand still or run in real time, but this clock must advance only when it is read.
        clock.__class__ = _moving_class(time_machine.Traveller)
        clock.next_ns = now_ns
        yield
    finally:
        travel.stop()


@lru_cache(maxsize=1)
def _moving_class(base: Any) -> Any:
    """Return the class of a clock that each reading advances."""

    class Moving(base):  # type: ignore[misc]
        next_ns = 0

        def time_ns(self) -> int:
            now_ns = self.next_ns
            self.next_ns += READ_STEP_NS
            return now_ns

    return Moving


class _Stream:
    """Stream of random bytes, determined by a seed and a tick."""

    def __init__(self, seed: str, tick: int) -> None:
        encoded = seed.encode("utf-8", "surrogatepass")
        self._key = hashlib.blake2b(b"%d:%b %d" % (len(encoded), encoded, tick)).digest()
        self._blocks = 0
        self._left = b""

    def take(self, size: int, /) -> bytes:
        """Return the next bytes. This replaces `os.urandom`."""
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
        """Return the next random number of 256 bits."""
        return int.from_bytes(self.take(_SEED_BYTES))

    def number_of(self, name: str) -> int:
        """Return the number for a name. Unlike `number`, it doesn't depend on the bytes that were taken before."""
        return int.from_bytes(hashlib.blake2b(name.encode(), key=self._key, digest_size=_SEED_BYTES).digest())


@contextmanager
def _pinned_random(seed: str, tick: int) -> Iterator[None]:
    """Replace the sources of random numbers in the process for a block.

    The sources are the generator behind the functions of `random`, new generators, `os.urandom`, and the MAC address in
    UUIDs.
    """
    stream = _Stream(seed, tick)
    shared: random.Random = random._inst  # noqa: SLF001 - functions of `random` that were imported by name use it
    seed_generator: Any = random.Random.seed

    def seeded(self: random.Random, a: Any = None, version: int = 2) -> None:
        """Replace `Random.seed`, which without a seed `a` would use the system's random numbers."""
        seed_generator(self, stream.number() if a is None else a, version)

    # Generate these two numbers first and in this order, so that they are the same in each Python version.
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
