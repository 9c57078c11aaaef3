"""Audit of tasks in a child process, which is replaced if it ends or hangs.

An author's code may end its process, use all memory or wait forever. This affects only the report on its own task. No
process that forks runs toolpacks' code.
"""

import asyncio
import gc
import json
import logging
import os
import resource
import subprocess
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import Field

from toolpack_author.audit.auditing import Auditor, Effort, report
from toolpack_author.audit.findings import AuditFinding
from toolpack_server.base.settings import Settings, load_settings
from toolpack_server.features.api.core import EvaluationError, FeatureSettings, StartError
from toolpack_server.features.authoring.checking.command import IN_MEMORY
from toolpack_server.features.evaluation.tasks.finding import all_tasks
from toolpack_server.features.evaluation.tasks.task import SEPARATOR
from toolpack_server.packs.loading import catalog_of
from toolpack_server.processes.child import Child, follow
from toolpack_server.processes.isolated_call import run_isolated
from toolpack_server.wiring.service import Service

GRACE_SECONDS = 5.0  # after a deadline, for the process to interrupt the code itself
GARBAGE = 20_000, 20, 20  # thresholds of the garbage collector
LOADING_SECONDS = 600.0
HASH_SEEDS = ("1", "2", "3", "4")  # fixed, so that all machines have the same findings

Report = dict[str, Any]


class AuditSettings(FeatureSettings, feature="audit"):
    memory_bytes: int = Field(
        2 * 2**30, gt=0, le=2**60, description="Maximum memory of an audit of tasks, in addition to that at its start."
    )


class _Beat(NamedTuple):
    """Announcement of the code that the process runs next, with its time limit."""

    what: str
    seconds: float


def task_names(settings: Settings) -> list[str]:
    """Return the names of all tasks, in their order.

    Raises:
        StartError: The toolpacks or their tasks can't be loaded.
    """
    answer = run_isolated(lambda: _names(settings))
    if "problem" in answer:
        raise StartError(answer["problem"])
    names: list[str] = answer["names"]
    return names


def _names(settings: Settings) -> dict[str, Any]:
    try:
        catalog = catalog_of(settings)
        return {"names": [f"{pack.name}{SEPARATOR}{task.name}" for pack, task in all_tasks(catalog)]}
    except (StartError, EvaluationError) as error:
        return {"problem": str(error)}


def audit_tasks(settings: Settings, names: Sequence[str], effort: Effort) -> Iterator[tuple[str, Report]]:
    """Audit tasks and yield the report on each.

    Raises:
        StartError: The toolpacks can't be loaded.
    """
    yield from _each(settings, names, effort, Auditor.audit)


def _each(
    settings: Settings, names: Sequence[str], effort: Effort, job: Callable[[Auditor, str], Any]
) -> Iterator[tuple[str, Any]]:
    """Run a job for each task and yield its result. If a task breaks the process, yield a report that says so."""
    left = [*names]
    while left:
        child = Child(partial(_work, os.getpid(), settings, tuple(left), effort, job))
        try:
            for name in [*left]:
                result, broken = _received(child)
                yield name, result
                left.remove(name)
                if broken:
                    break
        finally:
            child.end()
            child.wait()
            child.pipe.close()


def _received(child: Child) -> tuple[Any, bool]:
    """Return the result for the next task, and whether the process must be replaced."""
    beat = loading = _Beat("the toolpacks' import", LOADING_SECONDS)
    while True:
        try:
            if not child.pipe.poll(beat.seconds + GRACE_SECONDS):
                text = f"{beat.what} took longer than {beat.seconds:g} s and can't be interrupted"
                return report([AuditFinding("evaluator-fails", True, text)]), True
            message = json.loads(child.pipe.recv_bytes())
        except (EOFError, OSError):
            text = f"{beat.what} ended the process ({child.wait()})"
            if beat is loading:  # no task has started
                raise StartError(f"{text[0].upper()}{text[1:]}.") from None
            return report([AuditFinding("evaluator-fails", True, text)]), True
        if "problem" in message:
            raise StartError(message["problem"])
        if "found" in message:
            return message["found"], False
        beat = _Beat(*message["beat"])


def _work(
    parent: int,
    settings: Settings,
    names: Sequence[str],
    effort: Effort,
    job: Callable[[Auditor, str], Any],
    pipe: Connection,
) -> int:
    follow(parent)
    _be_quiet()
    try:
        catalog = catalog_of(settings)
        _limit_memory(settings.of(AuditSettings).memory_bytes)
        service = Service(settings.model_copy(update=IN_MEMORY), catalog)
    except Exception as error:  # noqa: BLE001 - reported to the parent
        kind = "" if isinstance(error, StartError) else f"{type(error).__name__}: "
        pipe.send_bytes(json.dumps({"problem": f"{kind}{error}"}).encode())
        return 1
    gc.freeze()  # present objects stay; a task leaves few reference cycles
    gc.set_threshold(*GARBAGE)
    loop = asyncio.new_event_loop()
    # The event loop has its own thread, so that a signal can interrupt late code on the main thread.
    threading.Thread(target=loop.run_forever, daemon=True).start()

    def phase(what: str, seconds: float) -> None:
        pipe.send_bytes(json.dumps({"beat": [what, seconds]}).encode())

    auditor = Auditor(service, effort, phase, lambda work: asyncio.run_coroutine_threadsafe(work, loop).result())
    for name in names:
        pipe.send_bytes(json.dumps({"found": job(auditor, name)}).encode())
    pipe.close()
    os._exit(0)  # threads may be stuck in a toolpack's code


def _be_quiet() -> None:
    """Discard output and logs of toolpacks, which would mix with the findings."""
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    logging.disable(logging.CRITICAL)


def _limit_memory(more: int) -> None:
    with suppress(OSError, ValueError):  # not every system reports or limits memory
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
        limit = pages * resource.getpagesize() + more
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


# Other hash seeds


class HashSeeds:
    """Processes with other hash seeds, which evaluate all tasks at the same time as the audit."""

    def __init__(self, settings: Settings, names: Sequence[str], clients: Collection[str]) -> None:
        asked = {
            "packs": settings.packs and ",".join(settings.packs),
            "pack_dir": [str(path) for path in settings.pack_dir],
            "names": [*names],
            "clients": [*clients],
        }
        self._running = [
            subprocess.Popen(  # noqa: S603 - runs this module
                [sys.executable, "-m", __name__, json.dumps(asked)],
                env={**os.environ, "PYTHONHASHSEED": seed},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
            for seed in HASH_SEEDS
        ]

    def unstable(self) -> list[str]:
        """Return the names of the tasks with different verdicts. Raise as `audit_tasks`."""
        reports: list[Mapping[str, Any]] = []
        for process in self._running:
            text = process.communicate()[0]
            if process.returncode != 0:
                raise StartError(text.decode() or f"A process with another hash seed ended ({process.returncode}).")
            reports.append(json.loads(text))
        names = {name for verdicts in reports for name in verdicts}
        return sorted(name for name in names if len({json.dumps(one.get(name), sort_keys=True) for one in reports}) > 1)

    def end(self) -> None:
        for process in self._running:
            with process:
                process.kill()


def _verdicts(asked: Mapping[str, Any]) -> Mapping[str, Any]:
    settings = load_settings(pack_dir=tuple(map(Path, asked["pack_dir"])), packs=asked["packs"])
    effort = Effort(0, 0, (), frozenset(asked["clients"]))
    found = _each(settings, asked["names"], effort, Auditor.verdicts)
    return {name: verdicts if isinstance(verdicts, list) else [] for name, verdicts in found}


if __name__ == "__main__":
    follow(os.getppid())
    try:
        print(json.dumps(_verdicts(json.loads(sys.argv[1]))))  # noqa: T201 - read by the parent process
    except StartError as problem:
        print(problem, end="")  # noqa: T201 - read by the parent process
        sys.exit(1)
