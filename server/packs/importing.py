"""Imports the module of a toolpack; whatever goes wrong becomes a sentence with file, line and remedy.

The rule: no module ends the command or keeps it waiting, whatever it does when it is imported.
"""

import importlib
import importlib.util
import os
import traceback
from pathlib import Path
from types import ModuleType
from typing import NoReturn

from server.errors import RegistrationError, ToolpackUnavailable
from server.functions_runtime import error_text
from server.packs.patience import Impatience, patience

IMPORT_SECONDS = 10.0


def import_toolpacks(name: str, problems: list[RegistrationError], notices: list[str]) -> ModuleType | None:
    """Import a module; what goes wrong is added to the problems, or to the notices if only a package is missing."""
    exit_process = os._exit
    os._exit = _refuse_exit
    try:
        with patience(IMPORT_SECONDS, "its import"):
            return importlib.import_module(name)
    except ToolpackUnavailable as unavailable:
        notices.append(str(unavailable))
    except RegistrationError as error:
        problems.append(error)
    except Impatience as error:
        problems.append(RegistrationError(f"{_where(name, error)}: {error}"))
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        problems.append(RegistrationError(f"{_where(name, error)}: {_said(name, error)}"))
    finally:
        os._exit = exit_process
    return None


def _refuse_exit(status: int) -> NoReturn:
    raise SystemExit(status)


def _said(name: str, error: BaseException) -> str:
    if isinstance(error, SystemExit):
        return (
            "SystemExit: the module ends the program when it is imported: put such code below "
            '`if __name__ == "__main__":`, or move the file out of the folder.'
        )
    if isinstance(error, SyntaxError) and "null bytes" in str(error):
        return "it holds null bytes: save it as a text file in UTF-8."
    text = " ".join(error_text(error).partition("For further information visit")[0].split()).rstrip(".")
    return f"{text}: {_remedy(name, error)}"


def _remedy(name: str, error: BaseException) -> str:
    if isinstance(error, ModuleNotFoundError) and error.name:
        missing = error.name.partition(".")[0]
        package, _, module = error.name.rpartition(".")
        folder = Path(_file_of(name) or ".").parent
        if (folder / f"{missing}.py").exists():
            return f"import it as {name.rpartition('.')[0]}.{missing}."
        if package == name.rpartition(".")[0]:
            return f"there is no {module}.py beside it: correct the name."
        return "install the package that has it, or correct the name."
    return "correct it or move it away."


def _where(name: str, error: BaseException) -> str:
    """Get the file and line at which a module's import failed."""
    file = _file_of(name)
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}"
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    return f"{file}:{lines[-1]}" if lines else f"{file or name}"


def _file_of(name: str) -> str | None:
    spec = importlib.util.find_spec(name)
    return spec.origin if spec else None
