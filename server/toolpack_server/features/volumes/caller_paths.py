"""Where the relative paths begin that an author gives to a database or to files: at his module.

The working folder doesn't matter, so a toolpack is the same wherever the server is started. It is taken only
where there is no module, as in an interactive session.
"""

import os
import sys
from pathlib import Path

_OURS = ("toolpack_server", "pydantic")  # pydantic calls the factories of fields


def relative_to_caller(path: str | os.PathLike[str]) -> Path:
    """Get an absolute path; a relative one begins at the folder of the module whose code has called this package."""
    frame = sys._getframe(1)  # noqa: SLF001 - inspect.stack() would read the source of every frame
    while frame.f_back and frame.f_globals.get("__name__", "").partition(".")[0] in _OURS:
        frame = frame.f_back
    return (Path(frame.f_globals.get("__file__") or "").parent / path).absolute()
