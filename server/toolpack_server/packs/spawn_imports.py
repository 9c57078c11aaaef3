"""Lets processes that a function starts by `multiprocessing` import the modules of toolpacks.

Such a process is a fresh interpreter, in which `multiprocessing` first runs the main module again and then looks up, by
the names of their modules, the functions to call. Modules of toolpacks are in folders that only the server knows, and
its main module is a command that nobody wants there. In a process that runs functions, this module passes for
the main one; run as that, it does nothing but find the folders.
"""

import importlib.util
import os
import sys
from collections.abc import Iterable
from pathlib import Path

from toolpack_server.packs.loading import extend_namespace

_VARIABLE = "TOOLPACKS_PATH"


def enable_spawn_imports(pack_dirs: Iterable[Path]) -> None:
    """Let processes that this one starts by `multiprocessing` find toolpacks in these folders; once, at its start."""
    os.environ[_VARIABLE] = os.pathsep.join(str(folder.resolve()) for folder in pack_dirs)
    sys.modules["__main__"].__spec__ = importlib.util.find_spec(__name__)


if __name__ == "__mp_main__":
    extend_namespace([Path(folder) for folder in os.environ.get(_VARIABLE, "").split(os.pathsep) if folder], [])
