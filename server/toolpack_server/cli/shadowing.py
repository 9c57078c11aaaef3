"""Files of the user's own that Python would import instead of this package.

The rule: the command itself runs on the right package, so this only warns about programs that are started elsewhere.
"""

from collections.abc import Iterable
from importlib.machinery import PathFinder
from pathlib import Path


def shadowing_files(folders: Iterable[Path]) -> list[str]:
    """Describe each file that Python, started in its folder, imports instead of this package.

    A folder `server` without an `__init__.py` is no such case, and neither is a clone of this project, which contains
    this very package.
    """
    notices = []
    for folder in dict.fromkeys(folder.resolve() for folder in folders):
        spec = PathFinder.find_spec("server", [str(folder)])
        if spec is None or spec.origin is None:
            continue
        if spec.submodule_search_locations and (folder / "server" / "functions_runtime.py").exists():
            continue
        notices.append(
            f"{spec.origin} is imported instead of the package `server` by Python programs that are started in its "
            f"folder, such as `python -m pytest`: rename it."
        )
    return notices
