"""Where the benchmark works: its folder, the variant, and the virtual environments of the other contenders.

The rule: ours and bare Starlette run with the packages of whoever starts the benchmark, the others with pinned ones of
their own, which are installed once into the cache; nothing is installed into the project's environment.
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
from typing import Literal

from tests.benchmarks.processes import Process, UnavailableError, started

HERE = Path(__file__).parent
APPS = HERE / "apps"
PACKS = HERE / "packs"
INSTALL_SECONDS = 900


@dataclass(frozen=True)
class Workshop:
    """Where and how contenders are started.

    Attributes:
        folder: For logs and data; removed in the end.
        cache: For virtual environments; kept.
        variant: `plain` is asyncio and h11, `fast` is uvloop and httptools.
    """

    folder: Path
    cache: Path
    variant: Literal["plain", "fast"]

    def run(
        self,
        module: str,
        *arguments: object,
        requirements: str | None = None,
        environment: Mapping[str, str] | None = None,
        talking: bool = False,
    ) -> AbstractContextManager[Process]:
        """Run a Python module in the chosen variant until the block ends.

        Args:
            module: The module.
            arguments: Its arguments.
            requirements: What it needs, by the name of a file; default: what this process has.
            environment: Variables beside this process's own, which come without settings of the server.
            talking: Its standard input and output are pipes.
        """
        python = self.python(requirements) if requirements else sys.executable
        own = {name: value for name, value in os.environ.items() if not name.startswith("TOOLPACK_")}
        command = [python, str(APPS / "launch.py"), self.variant, module, *map(str, arguments)]
        log = self.folder / f"{module}.log"
        log.unlink(missing_ok=True)
        return started(command, log, own | dict(environment or {}), talking=talking)

    def python(self, requirements: str) -> str:
        """Get the interpreter of a virtual environment with these requirements, made if it isn't there."""
        wanted = HERE / "requirements" / f"{requirements}.txt"
        digest = hashlib.sha256(wanted.read_bytes()).hexdigest()[:12]
        place = self.cache / f"{requirements}-{digest}"
        python, complete = place / "bin" / "python", place / "complete"
        if not complete.exists():
            print(f"Installing {requirements} into {place} …", file=sys.stderr, flush=True)
            venv.create(place, with_pip=True, clear=True)
            _check([python, "-m", "pip", "install", "--quiet", "-r", wanted])
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
