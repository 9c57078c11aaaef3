"""The traceback of a function that raised, for its developer or the operator.

It shows the toolpack's own code and what that has called, not the server's way to it. It is plain text of
limited length, and never part of a reply.
"""

import asyncio
import concurrent.futures
import sysconfig
import threading
import traceback
from pathlib import Path

import pydantic

MAX_CHARACTERS = 16_000
MAX_PLACE = 1_000
MAX_FRAMES = 40  # of each exception: the outermost and the innermost

_ours = [str(Path(__file__).parents[1]) + "/"]
_ON_THE_WAY = (
    str(Path(asyncio.__file__).parent) + "/",
    str(Path(concurrent.futures.__file__).parent) + "/",
    str(Path(pydantic.__file__).parent) + "/",
    threading.__file__,
)


_LIBRARIES = tuple(f"{sysconfig.get_path(name)}/" for name in ("stdlib", "platstdlib", "purelib", "platlib"))


def leave_out(folder: Path) -> None:
    """Leave code in a folder out of tracebacks, as the server's own is: functions are run by it, too."""
    _ours.append(f"{folder}/")


def traceback_text(error: BaseException) -> str | None:
    """Get the traceback of an exception with its causes; None if none of it is the toolpack's code."""
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
    """Return where the toolpack's own code raised an exception: file, line and function; None if it didn't.

    That is the innermost line of it, or of a library if all of it is one.
    """
    own = library = None
    trace = error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        if not code.co_filename.startswith((*_ours, *_ON_THE_WAY, "<")):
            library = trace
            own = own if code.co_filename.startswith(_LIBRARIES) else trace
        trace = trace.tb_next
    found = own or library
    if found is None:
        return None
    code = found.tb_frame.f_code
    place = f"{code.co_filename}:{found.tb_lineno}: {code.co_qualname}"
    return place[:MAX_PLACE].encode("utf-8", "replace").decode()


def _shorten(report: traceback.TracebackException) -> bool:
    """Leave out the server's frames, of the causes too; say whether the first exception has others."""
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
