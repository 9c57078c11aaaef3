"""Paths relative to the module of the author who creates a database or files.

The server's working folder doesn't matter, so a toolpack behaves the same in any of them. The working
folder is used only if there is no module file, as in an interactive session.
"""

import os
import sys
from pathlib import Path

_SKIPPED_PACKAGES = ("toolpack_server", "pydantic")  # pydantic calls the default factories of fields


def relative_to_caller(path: str | os.PathLike[str]) -> Path:
    """Return the absolute form of a path. Relative paths start at the folder of the module that called this package."""
    frame = sys._getframe(1)  # noqa: SLF001 - inspect.stack() would read the source of every frame
    while frame.f_back and frame.f_globals.get("__name__", "").partition(".")[0] in _SKIPPED_PACKAGES:
        frame = frame.f_back
    return (Path(frame.f_globals.get("__file__") or "").parent / path).absolute()
