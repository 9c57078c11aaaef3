"""Imports of toolpacks in processes that a function starts with `multiprocessing`.

With the start method `spawn`, such a process is a fresh interpreter. It first runs the parent's main module again, and
then imports the module of the function to call. Two things would go wrong: the server's main module is a command, which
must not run again, and the new process doesn't know the folders of toolpacks. So a process that runs functions sets
this module as its main module. In the new process, this module adds the folders to the import path.
"""

import importlib.util
import os
import sys
from collections.abc import Iterable
from pathlib import Path

from toolpack_server.packs.loading import extend_namespace

_VARIABLE = "TOOLPACKS_PATH"


def enable_spawn_imports(pack_dirs: Iterable[Path]) -> None:
    """Enable imports from these folders in processes that this process starts with `multiprocessing`.

    Each process that runs functions calls this once, at its start.
    """
    os.environ[_VARIABLE] = os.pathsep.join(str(folder.resolve()) for folder in pack_dirs)
    sys.modules["__main__"].__spec__ = importlib.util.find_spec(__name__)


if __name__ == "__mp_main__":
    extend_namespace([Path(folder) for folder in os.environ.get(_VARIABLE, "").split(os.pathsep) if folder], [])
