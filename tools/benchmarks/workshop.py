"""The workshop, which starts contenders in processes of their own.

Each contender runs as pip installs it. This server and bare Starlette run with the packages of this process. Bare
Starlette also runs without uvloop and httptools, which it doesn't require. Servers of other projects run in virtual
environments with pinned packages, which are installed once and cached. Nothing is installed into the project's
environment.
"""

import hashlib
import os
import subprocess
import sys
import venv
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from tools.benchmarks.processes import Process, UnavailableError, running

HERE = Path(__file__).parent
APPS = HERE / "apps"
PACKS = HERE / "packs"
INSTALL_SECONDS = 900


@dataclass(frozen=True)
class Workshop:
    """Starts contenders.

    Attributes:
        folder: A folder for logs and data, which is removed at the end.
        cache: A folder for virtual environments, which stays.
    """

    folder: Path
    cache: Path

    def run(
        self,
        module: str,
        *arguments: object,
        requirements: str | None = None,
        environment: Mapping[str, str] | None = None,
        piped: bool = False,
        plain: bool = False,
    ) -> AbstractContextManager[Process]:
        """Run a Python module until the block ends.

        Args:
            module: The module.
            arguments: The module's arguments.
            requirements: The name of a requirements file. None means that the module runs with this process's packages.
            environment: Environment variables to add to this process's. The server's settings in these are left out.
            piped: Connect standard input and output to pipes.
            plain: Hide uvloop and httptools.
        """
        python = self.python(requirements) if requirements else sys.executable
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("TOOLPACK_")}
        command = [python, str(APPS / "launch.py"), "plain" if plain else "installed", module, *map(str, arguments)]
        log = self.folder / f"{module}.log"
        log.unlink(missing_ok=True)
        return running(command, log, inherited | dict(environment or {}), piped=piped)

    def python(self, requirements: str) -> str:
        """Return the Python of the virtual environment with these requirements. Create a missing environment."""
        file = HERE / "requirements" / f"{requirements}.txt"
        digest = hashlib.sha256(file.read_bytes()).hexdigest()[:12]
        folder = self.cache / f"{requirements}-{digest}"
        python, complete = folder / "bin" / "python", folder / "complete"
        if not complete.exists():
            print(f"Installing {requirements} into {folder} …", file=sys.stderr, flush=True)
            venv.create(folder, with_pip=True, clear=True)
            _run_checked([python, "-m", "pip", "install", "--quiet", "-r", file])
            complete.touch()
        return str(python)


def _run_checked(command: Sequence[object]) -> None:
    try:
        subprocess.run(list(map(str, command)), check=True, capture_output=True, text=True, timeout=INSTALL_SECONDS)
    except subprocess.CalledProcessError as error:
        lines = error.stderr.strip().splitlines() or ["no reason given"]
        raise UnavailableError(f"it can't be installed: {lines[-1]}") from None
    except subprocess.TimeoutExpired:
        raise UnavailableError(f"it couldn't be installed within {INSTALL_SECONDS} s") from None
