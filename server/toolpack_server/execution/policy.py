"""Execution policies: a feature's rules for running toolpacks' code, such as a pinned clock.

A policy is a small set of JSON values, so it can be sent to the process that runs the code. A policy applies to its
whole process. So a call with a policy must run in a process that runs nothing else meanwhile, such as an executor,
and its coroutines are awaited there. The call decodes its environments from bytes, and keeps no live objects for the
next call.
"""

from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar, Self

from pydantic import BaseModel, TypeAdapter

from toolpack_server.snapshots.classes import ClassTable
from toolpack_server.volumes.volume import VolumeContext


class ExecutionPolicy:
    """Base class of policies, which apply while a call runs or an environment is built.

    A subclass is a frozen dataclass with fields of JSON values.

    Attributes:
        digest_type: The type of the results of `digest_part` and `digest_piece`.
    """

    digest_type: ClassVar[TypeAdapter[Any]]

    @classmethod
    def load(cls) -> None:
        """Import slow modules, before the processes that run toolpacks' code are forked from this one."""

    def hold(self) -> AbstractContextManager[None]:
        """Return a context manager that applies the policy to the whole process for a block.

        The process must do nothing else in the block.
        """
        raise NotImplementedError

    def later(self, seconds: float) -> Self:  # noqa: ARG002 - a subclass uses it
        """Return the policy for the same call, run this number of seconds later."""
        return self

    def at(self, microseconds: int) -> Self:  # noqa: ARG002 - a subclass uses it
        """Return the policy for the same call, run at this time since the epoch."""
        return self

    def digest_part(self, environment: BaseModel, classes: ClassTable) -> Any:
        """Return the digest of a part of an environment that the call may have changed."""
        raise NotImplementedError

    def digest_piece(self, part: str, payload: bytes, context: VolumeContext) -> Any:
        """Return the digest of a piece of a volume that the call changed."""
        raise NotImplementedError


def enforce(policy: ExecutionPolicy | None) -> AbstractContextManager[None]:
    """Return a context manager that applies a policy, or does nothing without one."""
    return nullcontext() if policy is None else policy.hold()
