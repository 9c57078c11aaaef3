"""Tracebacks of functions that raised, for the toolpack's developer or the operator.

A traceback shows the toolpack's own code and the libraries that it called, without the server's frames. It is plain
text of limited length, and is never included in a response.
"""

import asyncio
import concurrent.futures
import sysconfig
import threading
import traceback
from pathlib import Path

import pydantic

MAX_CHARACTERS = 16_000
MAX_PLACE = 1_000  # maximum number of characters of a location
MAX_FRAMES = 40  # maximum number of frames per exception; the outermost and the innermost halves are kept

_ours = [str(Path(__file__).parents[1]) + "/"]
# The code of asyncio and other libraries that is called between the server's frames and the toolpack's frames.
_ON_THE_WAY = (
    str(Path(asyncio.__file__).parent) + "/",
    str(Path(concurrent.futures.__file__).parent) + "/",
    str(Path(pydantic.__file__).parent) + "/",
    threading.__file__,
)


_LIBRARIES = tuple(f"{sysconfig.get_path(name)}/" for name in ("stdlib", "platstdlib", "purelib", "platlib"))


def leave_out(folder: Path) -> None:
    """Hide the code in a folder from tracebacks, like the server's own code.

    Other packages that run functions call this for their folders.
    """
    _ours.append(f"{folder}/")


def traceback_text(error: BaseException) -> str | None:
    """Return the traceback of an exception with its causes, or None if it contains no frame of the toolpack's code."""
    try:
        report = traceback.TracebackException(type(error), error, error.__traceback__, compact=True)
        if not _shorten(report):
            return None
        text = "".join(report.format()).rstrip()
    except Exception:  # noqa: BLE001 - formatting runs code of the exception's class
        return None
    if len(text) > MAX_CHARACTERS:
        half = MAX_CHARACTERS // 2
        text = f"{text[:half]}\n… ({len(text) - MAX_CHARACTERS} characters are left out) …\n{text[-half:]}"
    return text.encode("utf-8", "replace").decode()


def raised_at(error: BaseException) -> str | None:
    """Return where the toolpack's code raised an exception, as `file:line: function`.

    The location is that of the innermost frame of the toolpack's own code, or else of a library that it called. Return
    None if the traceback contains only the server's frames.
    """
    own = library = None
    trace = error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        if not code.co_filename.startswith((*_ours, *_ON_THE_WAY, "<")):
            library = trace
            own = own if code.co_filename.startswith(_LIBRARIES) else trace
        trace = trace.tb_next
    innermost = own or library
    if innermost is None:
        return None
    code = innermost.tb_frame.f_code
    location = f"{code.co_filename}:{innermost.tb_lineno}: {code.co_qualname}"
    return location[:MAX_PLACE].encode("utf-8", "replace").decode()


def _shorten(report: traceback.TracebackException) -> bool:
    """Remove the server's frames from an exception and its causes. Return whether the exception has frames left.

    At the beginning, the libraries between the server and the toolpack (`_ON_THE_WAY`) are also removed. Further inside
    they stay, because the toolpack itself called them.
    """
    frames, ours = [*report.stack], tuple(_ours)
    while frames and frames[0].filename.startswith((*ours, *_ON_THE_WAY)):
        del frames[0]
    frames = [frame for frame in frames if not frame.filename.startswith(ours)]
    if len(frames) > MAX_FRAMES:
        frames = frames[: MAX_FRAMES // 2] + frames[-MAX_FRAMES // 2 :]
    report.stack = traceback.StackSummary.from_list(frames)
    for other in (report.__cause__, report.__context__, *(report.exceptions or ())):
        if other is not None:
            _shorten(other)
    return bool(frames)
