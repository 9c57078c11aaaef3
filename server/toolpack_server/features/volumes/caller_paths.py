"""Paths relative to the module where an author creates a database or files.

These paths don't depend on the server's working folder, so a toolpack behaves the same wherever the server starts. The
working folder is used only if the module has no file, for example in an interactive session.
"""

import os
import sys
from pathlib import Path

# Includes pydantic, because pydantic calls the default factories of fields.
_SKIPPED_PACKAGES = ("toolpack_server", "pydantic")


def relative_to_caller(path: str | os.PathLike[str]) -> Path:
    """Return the absolute form of a path. Relative paths start at the folder of the module that called this package."""
    frame = sys._getframe(1)  # noqa: SLF001 - inspect.stack() would read the source of every frame
    while frame.f_back and frame.f_globals.get("__name__", "").partition(".")[0] in _SKIPPED_PACKAGES:
        frame = frame.f_back
    return (Path(frame.f_globals.get("__file__") or "").parent / path).absolute()
