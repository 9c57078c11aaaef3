"""Error reports for authors of toolpacks: with file, line and name, raised at once or collected.

Each report is one sentence: where the problem is, what is wrong and how to fix it.
"""

import functools
import inspect
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from types import FrameType
from typing import Any

from toolpack_server.base.errors import RegistrationError
from toolpack_server.functions_runtime import error_text

# While this holds a list, `located` appends problems to it instead of raising them, so that `check` finds them all.
collected_problems: ContextVar[list[RegistrationError] | None] = ContextVar("collected_problems", default=None)


@contextmanager
def located(subject: object) -> Iterator[None]:
    """Turn an exception of the block into a `RegistrationError` with the location of `subject`.

    The error is raised, or collected while `collected_problems` holds a list.

    Args:
        subject: The author's function or class, or its location as a string.
    """
    try:
        yield
    except Exception as error:
        reason = str(error) if isinstance(error, RegistrationError) else error_text(error)
        problem = RegistrationError(f"{location_of(subject)}: {reason}")
        problems = collected_problems.get()
        if problems is None:
            raise problem from error
        problems.append(problem)


def caller_location(name: str) -> str:
    """Return the file and line that create the toolpack of this name: the first caller outside the server's code."""
    frame = _caller()
    return f"{frame.f_code.co_filename}:{frame.f_lineno}: Toolpack({name!r})"


def caller_description() -> str:
    """Return the first paragraph of the docstring of the module that creates a toolpack."""
    paragraph = inspect.cleandoc(_caller().f_globals.get("__doc__") or "").partition("\n\n")[0]
    return " ".join(paragraph.split())


def _caller() -> FrameType:
    """Return the frame of the first caller outside the server's code."""
    frame = sys._getframe(2)  # noqa: SLF001 - inspect.stack() would read the source of every frame
    while frame.f_back and frame.f_globals["__name__"].startswith("toolpack_server."):
        frame = frame.f_back
    return frame


def qualified_name(subject: Any) -> str:
    """Return the name of a function or class, after the names of the classes and functions around it."""
    plain, name = _plain(subject), getattr(subject, "name", None)
    if isinstance(name, str) and name != getattr(plain, "__name__", name):  # a ready `Function` can be renamed
        return name
    return getattr(plain, "__qualname__", None) or type(plain).__qualname__


def _plain(subject: Any) -> Any:
    """Return the function inside a ready `Function`, a `functools.partial` or decorators that set `__wrapped__`."""
    subject = subject if isinstance(subject, type) else getattr(subject, "run", subject)
    while isinstance(subject, functools.partial) or hasattr(subject, "__wrapped__"):
        subject = subject.func if isinstance(subject, functools.partial) else subject.__wrapped__
    is_object = not (inspect.isroutine(subject) or isinstance(subject, type) or hasattr(subject, "__code__"))
    return type(subject).__call__ if is_object and callable(subject) else subject


def location_of(subject: Any) -> str:
    """Return the file, line and name of a function or class. A string is returned unchanged."""
    if isinstance(subject, str):
        return subject
    name = qualified_name(subject)
    plain = subject = _plain(subject)
    try:
        return f"{Path(inspect.getsourcefile(plain) or '?')}:{inspect.getsourcelines(plain)[1]}: {name}"
    except (TypeError, OSError):
        return f"{getattr(subject, '__module__', '?')}: {name}"
