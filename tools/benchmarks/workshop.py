"""The workshop, which starts contenders: the folder, and the virtual environments of the other contenders.

Each contender runs as pip installs it. Ours and bare Starlette run with this process's packages. Bare Starlette also
runs without uvloop and httptools, which it doesn't require. Each other contender has a virtual environment with pinned
packages in the cache, installed once. Nothing is installed into the project's environment.
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

from tools.benchmarks.processes import Process, UnavailableError, started

HERE = Path(__file__).parent
APPS = HERE / "apps"
PACKS = HERE / "packs"
INSTALL_SECONDS = 900


@dataclass(frozen=True)
class Workshop:
    """Starts contenders.

    Attributes:
        folder: A folder for logs and data; removed at the end.
        cache: A folder for virtual environments; kept.
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
            arguments: Its arguments.
            requirements: The name of its requirements file; default: this process's packages.
            environment: Variables to add to this process's; the server's settings are removed from the latter.
            piped: Connect standard input and output to pipes.
            plain: Hide uvloop and httptools.
        """
        python = self.python(requirements) if requirements else sys.executable
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("TOOLPACK_")}
        command = [python, str(APPS / "launch.py"), "plain" if plain else "installed", module, *map(str, arguments)]
        log = self.folder / f"{module}.log"
        log.unlink(missing_ok=True)
        return started(command, log, inherited | dict(environment or {}), piped=piped)

    def python(self, requirements: str) -> str:
        """Return the interpreter of the virtual environment with these requirements. Create the environment if
        necessary.
        """
        file = HERE / "requirements" / f"{requirements}.txt"
        digest = hashlib.sha256(file.read_bytes()).hexdigest()[:12]
        place = self.cache / f"{requirements}-{digest}"
        python, complete = place / "bin" / "python", place / "complete"
        if not complete.exists():
            print(f"Installing {requirements} into {place} …", file=sys.stderr, flush=True)
            venv.create(place, with_pip=True, clear=True)
            _check([python, "-m", "pip", "install", "--quiet", "-r", file])
            complete.touch()
        return str(python)


def _check(command: Sequence[object]) -> None:
    try:
        subprocess.run(list(map(str, command)), check=True, capture_output=True, text=True, timeout=INSTALL_SECONDS)
    except subprocess.CalledProcessError as error:
        lines = error.stderr.strip().splitlines() or ["no reason given"]
        raise UnavailableError(f"it can't be installed: {lines[-1]}") from None
    except subprocess.TimeoutExpired:
        raise UnavailableError(f"it could not be installed within {INSTALL_SECONDS} s") from None
