"""The toolpack `world`, which offers `wait` and `get_time` in each session with event rules.

The events hook answers calls to these functions. A nested call (an argument of another call) doesn't reach the hook, so
the function itself runs and raises an error.
"""

from typing import Annotated, Any, Never

from pydantic import Field

from toolpack_server.features.evaluation.event_rules import MAX_SECONDS
from toolpack_server.features.evaluation.tasks.task import TaskAuthor

NAME = "world"
WAIT, GET_TIME = "wait", "get_time"
ALONE = "call it by itself, not as an argument of another call."


def wait(
    seconds: Annotated[float, Field(ge=0, le=MAX_SECONDS, allow_inf_nan=False)] = 3600,
    until_something_happens: bool = True,
) -> dict[str, Any]:
    """Wait until something happens that you notice, or until some time has passed.

    :param seconds: How long to wait at most.
    :param until_something_happens: Stop as soon as something happens. If false, wait the whole time.
    """
    del seconds, until_something_happens
    _refuse(WAIT)


def get_time() -> str:
    """Return the current time, in UTC."""
    _refuse(GET_TIME)


def _refuse(name: str) -> Never:
    """Raise the error for a call that is an argument of another call. The hook answers all other calls."""
    raise ValueError(f"`{name}` can't be nested: {ALONE}")


WORLD_PACK = TaskAuthor(NAME, functions=[wait, get_time], opt_in=True)
WORLD_PACK.description = "Time in a world that moves by itself."
