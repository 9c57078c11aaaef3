"""Execution policies: a feature's rules for running toolpacks' code, such as a pinned clock.

A policy is a small set of JSON values, so it can be sent to the process that runs the code. A policy applies to that
whole process. So the process of a call with a policy must run nothing else meanwhile; an executor, for example, runs
one call at a time. The call's coroutines are awaited in the same process. The call decodes its environments from bytes,
and keeps no live objects for the next call.
"""

from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar, Self

from pydantic import BaseModel, TypeAdapter

from toolpack_server.snapshots.classes import ClassTable
from toolpack_server.volumes.volume import VolumeContext


class ExecutionPolicy:
    """Base class of policies, which apply while a call runs or an environment is built.

    A subclass is a frozen dataclass whose fields contain JSON values.

    Attributes:
        digest_type: The type of the results of `digest_part` and `digest_piece`.
    """

    digest_type: ClassVar[TypeAdapter[Any]]

    @classmethod
    def load(cls) -> None:
        """Import slow modules before the processes that run toolpacks' code are forked, so that these inherit them."""

    def hold(self) -> AbstractContextManager[None]:
        """Return a context manager that applies the policy to the whole process for a block.

        The process must do nothing else in the block.
        """
        raise NotImplementedError

    def later(self, seconds: float) -> Self:  # noqa: ARG002 - a subclass uses it
        """Return the policy for the same call if it runs this number of seconds later."""
        return self

    def at(self, microseconds: int) -> Self:  # noqa: ARG002 - a subclass uses it
        """Return the policy for the same call if it runs at this time, in microseconds since the epoch."""
        return self

    def digest_part(self, environment: BaseModel, classes: ClassTable) -> Any:
        """Return the digest of a part of an environment. Called for each part that a call might have changed."""
        raise NotImplementedError

    def digest_piece(self, part: str, payload: bytes, context: VolumeContext) -> Any:
        """Return the digest of a piece of a volume that the call changed."""
        raise NotImplementedError


def enforce(policy: ExecutionPolicy | None) -> AbstractContextManager[None]:
    """Return a context manager that applies a policy, or does nothing without one."""
    return nullcontext() if policy is None else policy.hold()
