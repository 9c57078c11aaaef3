"""Runner of the database tests with a newer SQLite than this Python's: the newest that is available as a wheel.

    python -m tools.newer_sqlite [OPTION …]

The options are pytest's. Python's module `sqlite3` loads the SQLite library from the wheel of pysqlite3, which exports
all functions of SQLite. Exit status 1 means that a test failed. If SQLite is built into this Python, or pip finds no
wheel, the program prints this and exits with status 0.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import click

WHEEL = "pysqlite3==0.6.1"
DATABASES = Path("features", "volumes")
TESTS = (
    DATABASES / "test_databases.py",
    DATABASES / "test_database_schemas.py",
    DATABASES / "test_database_differences.py",
    Path("bundled", "test_office.py"),
)


def version(environment: dict[str, str]) -> str:
    """Return the version of SQLite that Python loads with these environment variables."""
    command = [sys.executable, "-c", "import sqlite3; print(sqlite3.sqlite_version)"]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.strip()


def main() -> int:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        options = ["--quiet", "--no-deps", "--only-binary", ":all:", "--target", str(folder / "wheel")]
        installed = subprocess.run([sys.executable, "-m", "pip", "install", *options, WHEEL], check=False)
        libraries = [*folder.glob("wheel/pysqlite3/_sqlite3*.so")]
        if installed.returncode or not libraries:
            click.echo(f"no other SQLite was tested: pip finds no wheel of {WHEEL} for this machine")
            return 0
        (folder / "libsqlite3.so.0").symlink_to(libraries[0])
        environment = {**os.environ, "LD_LIBRARY_PATH": str(folder)}
        python_sqlite, wheel_sqlite = version({**os.environ}), version(environment)
        if python_sqlite == wheel_sqlite:
            click.echo(f"no other SQLite was tested: this Python has SQLite {python_sqlite} built in")
            return 0
        click.echo(f"with SQLite {wheel_sqlite} instead of {python_sqlite}:")
        here = Path(__file__).parents[1] / "tests"
        tests = [str(here / name) for name in TESTS]
        command = [sys.executable, "-m", "pytest", "-q", "-m", "not heavy", *tests, *sys.argv[1:]]
        return subprocess.run(command, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
