"""Test of the trainers' newest clients; prints which of them no longer work.

    python -m tools.peers [--pinned] [PEER ...]

The peers are the extras of packages/toolpack-trainers, with the versions that the documentation names. Each gets a
separate environment in a temporary folder, with the newest version of each package, or with `--pinned` the named one.
Then the package's tests run with it. Exit status 1 means that a peer failed.
"""

import os
import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import NamedTuple

import click

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "packages" / "toolpack-trainers"
PIN = re.compile(r"==.*")


class Trial(NamedTuple):
    """Settings for testing a peer.

    Attributes:
        tests: Arguments of pytest.
        variable: The variable that names the peer's Python to the tests.
        python: The Python that the peer needs; None for any.
        flags: Flags of pip.
        also: Packages that the peer imports, if its own requirements aren't installed.
    """

    tests: str
    variable: str = "TRAINERS"
    python: str | None = None
    flags: tuple[str, ...] = ()
    also: tuple[str, ...] = ()


TRIALS = {
    "ors": Trial("test_ors_clients.py -k sdk"),
    "trl": Trial("test_ors_clients.py -k trl"),
    "openenv": Trial("test_openenv_clients.py -k not(verifiers)"),
    "verifiers": Trial("test_openenv_clients.py -k verifiers"),
    # It requires 3.13.14, but runs on older versions.
    "nemo-gym": Trial("test_nemo_gym_agents.py", "NEMO_GYM", "3.13", ("--ignore-requires-python",)),
    "harbor": Trial("test_harbor.py", "HARBOR", "3.12", ("--no-deps",), ("pathspec", "pydantic", "toml")),
}


def peers() -> dict[str, list[str]]:
    """Return the requirements of each peer."""
    project = tomllib.loads((PACKAGE / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras: dict[str, list[str]] = project["optional-dependencies"]
    return extras


def create(environment: Path, python: str | None) -> None:
    """Create a virtual environment, with a Python of this version if one is given."""
    if python is None:
        subprocess.run([sys.executable, "-m", "venv", environment], check=True)
    else:
        subprocess.run([ROOT / ".ci" / "python", python, environment], cwd=ROOT, check=True)


def versions(python: Path, requirements: list[str]) -> str:
    """Return the names and the installed versions of the required packages."""
    names = [re.split(r"[\[=]", each)[0] for each in requirements]
    code = f"from importlib.metadata import version; print(*(f'{{n}} {{version(n)}}' for n in {names}), sep=', ')"
    return subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def plays(name: str, requirements: list[str], folder: Path) -> bool:
    """Install a peer, run its tests, print the outcome, and return whether all of them passed."""
    trial, python = TRIALS[name], folder / name / "bin" / "python"
    named = ", ".join(requirements)
    try:
        create(folder / name, trial.python)
        pip = [python, "-m", "pip", "install", "-q"]
        subprocess.run([*pip, *trial.flags, *requirements], check=True)
        if trial.also:
            subprocess.run([*pip, *trial.also], check=True)
        installed = versions(python, requirements)
    except subprocess.CalledProcessError:
        click.echo(f"{name}: can't be installed ({named})")
        return False
    file, *selection = trial.tests.split(" ", 2)
    command = [sys.executable, "-m", "pytest", "-n", "0", "-m", "not long", "-rs", PACKAGE / "tests" / file, *selection]
    environment = {**os.environ, trial.variable: str(python)}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, cwd=ROOT)
    skipped = "SKIPPED" in ended.stdout
    passed = ended.returncode == 0 and not skipped
    outcome = "plays" if passed else "wasn't tried" if ended.returncode == 0 else "rotted"
    click.echo(f"{name}: {outcome} ({installed})")
    if not passed:
        click.echo(ended.stdout[-4000:] + ended.stderr[-2000:], err=True)
    return passed


@click.command()
@click.option("--pinned", is_flag=True, help="Install the versions that the documentation names, not the newest.")
@click.argument("names", nargs=-1, metavar="[PEER]...", type=click.Choice([*TRIALS]))
def main(names: tuple[str, ...], *, pinned: bool) -> None:
    """Test the newest versions of the trainers' clients, and print which of them no longer work."""
    chosen = {name: requirements for name, requirements in peers().items() if not names or name in names}
    if not pinned:
        chosen = {name: [PIN.sub("", each) for each in requirements] for name, requirements in chosen.items()}
    with tempfile.TemporaryDirectory() as folder:
        failed = [name for name, requirements in chosen.items() if not plays(name, requirements, Path(folder))]
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
