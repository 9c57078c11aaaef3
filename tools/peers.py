"""Test of the newest clients of trainers. It prints which of them no longer work with this server.

    python -m tools.peers [--pinned] [PEER ...]

These clients, the peers, are the extras of packages/toolpack-trainers. Each peer is installed in an environment of its
own, in its newest version, or with `--pinned` in the version that the documentation names. Then the tests of
packages/toolpack-trainers run with this peer. Exit status 1 means that a peer failed.
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


class PeerTest(NamedTuple):
    """Settings for testing a peer.

    Attributes:
        tests: Arguments of pytest.
        variable: The environment variable that tells the tests the path of the peer's Python.
        python: The version of Python that the peer needs, or None if any version will do.
        flags: Flags of pip.
        imports: Packages that the peer imports. They are needed if `flags` skip the peer's own requirements.
    """

    tests: str
    variable: str = "TRAINERS"
    python: str | None = None
    flags: tuple[str, ...] = ()
    imports: tuple[str, ...] = ()


PEER_TESTS = {
    "ors": PeerTest("test_ors_clients.py -k sdk"),
    "trl": PeerTest("test_ors_clients.py -k trl"),
    "openenv": PeerTest("test_openenv_clients.py -k not(verifiers)"),
    "verifiers": PeerTest("test_openenv_clients.py -k verifiers"),
    # NeMo Gym requires Python 3.13.14, but runs on older patch versions, too.
    "nemo-gym": PeerTest("test_nemo_gym_agents.py", "NEMO_GYM", "3.13", ("--ignore-requires-python",)),
    "harbor": PeerTest("test_harbor.py", "HARBOR", "3.12", ("--no-deps",), ("pathspec", "pydantic", "toml")),
}


def peers() -> dict[str, list[str]]:
    """Return the requirements of each peer."""
    project = tomllib.loads((PACKAGE / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras: dict[str, list[str]] = project["optional-dependencies"]
    return extras


def create(environment: Path, python: str | None) -> None:
    """Create a virtual environment with this version of Python, or with the running Python if it is None."""
    if python is None:
        subprocess.run([sys.executable, "-m", "venv", environment], check=True)
    else:
        subprocess.run([ROOT / ".ci" / "python", python, environment], cwd=ROOT, check=True)


def versions(python: Path, requirements: list[str]) -> str:
    """Return the names and the installed versions of the required packages."""
    names = [re.split(r"[\[=]", each)[0] for each in requirements]
    code = f"from importlib.metadata import version; print(*(f'{{n}} {{version(n)}}' for n in {names}), sep=', ')"
    return subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def run_peer_tests(name: str, requirements: list[str], folder: Path) -> bool:
    """Install a peer, run its tests, print the outcome, and return whether all of them passed."""
    peer_test, python = PEER_TESTS[name], folder / name / "bin" / "python"
    required = ", ".join(requirements)
    try:
        create(folder / name, peer_test.python)
        pip = [python, "-m", "pip", "install", "-q"]
        subprocess.run([*pip, *peer_test.flags, *requirements], check=True)
        if peer_test.imports:
            subprocess.run([*pip, *peer_test.imports], check=True)
        installed = versions(python, requirements)
    except subprocess.CalledProcessError:
        click.echo(f"{name}: can't be installed ({required})")
        return False
    file, *selection = peer_test.tests.split(" ", 2)
    command = [sys.executable, "-m", "pytest", "-n", "0", "-m", "not long", "-rs", PACKAGE / "tests" / file, *selection]
    environment = {**os.environ, peer_test.variable: str(python)}
    process = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, cwd=ROOT)
    skipped = "SKIPPED" in process.stdout
    passed = process.returncode == 0 and not skipped
    outcome = "works" if passed else "wasn't tested" if process.returncode == 0 else "no longer works"
    click.echo(f"{name}: {outcome} ({installed})")
    if not passed:
        click.echo(process.stdout[-4000:] + process.stderr[-2000:], err=True)
    return passed


@click.command()
@click.option("--pinned", is_flag=True, help="Install the versions that the documentation names, not the newest.")
@click.argument("names", nargs=-1, metavar="[PEER]...", type=click.Choice([*PEER_TESTS]))
def main(names: tuple[str, ...], *, pinned: bool) -> None:
    """Test the newest versions of the trainers' clients, and print which of them no longer work."""
    selected = {name: requirements for name, requirements in peers().items() if not names or name in names}
    if not pinned:
        selected = {name: [PIN.sub("", each) for each in requirements] for name, requirements in selected.items()}
    with tempfile.TemporaryDirectory() as folder:
        failed = [
            name for name, requirements in selected.items() if not run_peer_tests(name, requirements, Path(folder))
        ]
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
