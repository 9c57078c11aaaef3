"""Conditions under which toolpacks' code runs, if a feature sets any.

A few values say what they are, so they travel to whatever process runs the code. Under conditions each call
reads its environments from their bytes, keeps none for the next one, and lets nobody else await its coroutines.
"""

from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar, Self

from pydantic import BaseModel, TypeAdapter

from toolpack_server.snapshots.classes import ClassTable
from toolpack_server.volumes.volume import VolumeContext


class ExecutionPolicy:
    """What holds while one call runs, or an environment is built: a frozen dataclass of JSON values.

    Attributes:
        found: What `find` and `digest_piece` get.
    """

    found: ClassVar[TypeAdapter[Any]]

    @classmethod
    def load(cls) -> None:
        """Import what takes long, in a process from which those that run toolpacks' code are forked."""

    def hold(self) -> AbstractContextManager[None]:
        """Let them hold for a block; this process does nothing else meanwhile."""
        raise NotImplementedError

    def later(self, seconds: float) -> Self:  # noqa: ARG002 - a subclass uses it
        """Get those of the same call so many seconds later."""
        return self

    def find(self, environment: BaseModel, classes: ClassTable) -> Any:
        """Get what is to be known of a part of an environment that the call may have changed."""
        raise NotImplementedError

    def digest_piece(self, part: str, payload: bytes, context: VolumeContext) -> Any:
        """Get what is to be known of a piece of a volume that the call has changed."""
        raise NotImplementedError


def held(conditions: ExecutionPolicy | None) -> AbstractContextManager[None]:
    return nullcontext() if conditions is None else conditions.hold()
