"""Audit of tasks in a child process, which is replaced if it exits or hangs.

An author's code might exit its process, use all memory or wait forever. In a child process, this affects only the
report on the author's own task. The parent process runs no toolpack's code, so it can fork safely.
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

from toolpack_author.audit.auditing import AuditOptions, Auditor, report
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

GRACE_SECONDS = 5.0  # time after a deadline in which the process can interrupt the code itself
GARBAGE = 20_000, 20, 20  # thresholds of the garbage collector; high, because a collection takes time
LOADING_SECONDS = 600.0  # time limit for importing the toolpacks
HASH_SEEDS = ("1", "2", "3", "4")  # fixed, so that all machines have the same findings

Report = dict[str, Any]


class AuditSettings(FeatureSettings, feature="audit"):
    memory_bytes: int = Field(
        2 * 2**30, gt=0, le=2**60, description="Maximum memory that an audit of tasks adds to the memory at its start."
    )


class _Heartbeat(NamedTuple):
    """Message of the child process: a description of the code that it runs next, with its time limit."""

    description: str
    seconds: float


def task_names(settings: Settings) -> list[str]:
    """Return the names of all tasks, in their order. A child process reads them, because that runs toolpacks' code.

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


def audit_tasks(settings: Settings, names: Sequence[str], options: AuditOptions) -> Iterator[tuple[str, Report]]:
    """Audit tasks in a child process, and yield the name of each task with its report.

    Raises:
        StartError: The toolpacks can't be loaded.
    """
    yield from _run_each(settings, names, options, Auditor.audit)


def _run_each(
    settings: Settings, names: Sequence[str], options: AuditOptions, job: Callable[[Auditor, str], Any]
) -> Iterator[tuple[str, Any]]:
    """Run a job for each task in a child process, and yield the task's name and the job's result.

    If a task breaks the process, its result is a report that says so. A new process continues with the next task.
    """
    remaining = [*names]
    while remaining:
        child = Child(partial(_work, os.getpid(), settings, tuple(remaining), options, job))
        try:
            for name in [*remaining]:
                result, broken = _receive(child)
                yield name, result
                remaining.remove(name)
                if broken:
                    break
        finally:
            child.end()
            child.wait()
            child.pipe.close()


def _receive(child: Child) -> tuple[Any, bool]:
    """Wait for the result for the next task. Return it, and whether the process must be replaced.

    Meanwhile the process announces each piece of code with a time limit.

    Raises:
        StartError: The process can't load the toolpacks.
    """
    heartbeat = loading = _Heartbeat("the toolpacks' import", LOADING_SECONDS)
    while True:
        try:
            if not child.pipe.poll(heartbeat.seconds + GRACE_SECONDS):
                text = f"{heartbeat.description} took longer than {heartbeat.seconds:g} s and can't be interrupted"
                return report([AuditFinding("evaluator-fails", True, text)]), True
            message = json.loads(child.pipe.recv_bytes())
        except (EOFError, OSError):
            text = f"{heartbeat.description} ended the process ({child.wait()})"
            if heartbeat is loading:  # no task has started
                raise StartError(f"{text[0].upper()}{text[1:]}.") from None
            return report([AuditFinding("evaluator-fails", True, text)]), True
        if "problem" in message:
            raise StartError(message["problem"])
        if "result" in message:
            return message["result"], False
        heartbeat = _Heartbeat(*message["beat"])


def _work(
    parent: int,
    settings: Settings,
    names: Sequence[str],
    options: AuditOptions,
    job: Callable[[Auditor, str], Any],
    pipe: Connection,
) -> int:
    """Run a job for each task in the child process, and send announcements and results through the pipe.

    Return 1 if the toolpacks can't be loaded. Otherwise the process exits after the last job.
    """
    follow(parent)
    _discard_output()
    try:
        catalog = catalog_of(settings)
        _limit_memory(settings.of(AuditSettings).memory_bytes)
        service = Service(settings.model_copy(update=IN_MEMORY), catalog)
    except Exception as error:  # noqa: BLE001 - reported to the parent
        kind = "" if isinstance(error, StartError) else f"{type(error).__name__}: "
        pipe.send_bytes(json.dumps({"problem": f"{kind}{error}"}).encode())
        return 1
    gc.freeze()  # excludes the loaded toolpacks from collections, because they stay in memory
    gc.set_threshold(*GARBAGE)
    loop = asyncio.new_event_loop()
    # The event loop has its own thread, so that a signal can interrupt late code on the main thread.
    threading.Thread(target=loop.run_forever, daemon=True).start()

    def announce(what: str, seconds: float) -> None:
        pipe.send_bytes(json.dumps({"beat": [what, seconds]}).encode())

    auditor = Auditor(service, options, announce, lambda work: asyncio.run_coroutine_threadsafe(work, loop).result())
    for name in names:
        pipe.send_bytes(json.dumps({"result": job(auditor, name)}).encode())
    pipe.close()
    os._exit(0)  # without waiting for threads, which might be stuck in a toolpack's code


def _discard_output() -> None:
    """Discard toolpacks' output and logs, which would mix with the findings."""
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    logging.disable(logging.CRITICAL)


def _limit_memory(added_bytes: int) -> None:
    """Limit this process's memory to its present size plus `added_bytes`."""
    with suppress(OSError, ValueError):  # not every system reports or limits memory
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
        limit = pages * resource.getpagesize() + added_bytes
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


# Other hash seeds


class HashSeeds:
    """Processes with other hash seeds, which evaluate all tasks at the same time as the audit.

    The order of a set of strings depends on the hash seed. If other hash seeds lead to another verdict, the evaluator
    depends on this order, so its verdicts aren't reliable.
    """

    def __init__(self, settings: Settings, names: Sequence[str], clients: Collection[str]) -> None:
        arguments = {
            "packs": settings.packs and ",".join(settings.packs),
            "pack_dir": [str(path) for path in settings.pack_dir],
            "names": [*names],
            "clients": [*clients],
        }
        self._running = [
            subprocess.Popen(  # noqa: S603 - runs this module
                [sys.executable, "-m", __name__, json.dumps(arguments)],
                env={**os.environ, "PYTHONHASHSEED": seed},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
            for seed in HASH_SEEDS
        ]

    def unstable(self) -> list[str]:
        """Wait for the processes, and return the names of the tasks with different verdicts.

        Raises:
            StartError: The toolpacks can't be loaded.
        """
        reports: list[Mapping[str, Any]] = []
        for process in self._running:
            text = process.communicate()[0]
            if process.returncode != 0:
                raise StartError(text.decode() or f"A process with another hash seed ended ({process.returncode}).")
            reports.append(json.loads(text))
        names = {name for verdicts in reports for name in verdicts}
        return sorted(name for name in names if len({json.dumps(one.get(name), sort_keys=True) for one in reports}) > 1)

    def end(self) -> None:
        """Kill the processes."""
        for process in self._running:
            with process:
                process.kill()


def _verdicts(arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the verdicts on each task, in a process with another hash seed."""
    settings = load_settings(pack_dir=tuple(map(Path, arguments["pack_dir"])), packs=arguments["packs"])
    options = AuditOptions(0, 0, (), frozenset(arguments["clients"]))
    results = _run_each(settings, arguments["names"], options, Auditor.verdicts)
    # A task that broke its process has a report in place of verdicts. The audit itself reports such a task.
    return {name: verdicts if isinstance(verdicts, list) else [] for name, verdicts in results}


if __name__ == "__main__":
    follow(os.getppid())
    try:
        print(json.dumps(_verdicts(json.loads(sys.argv[1]))))  # noqa: T201 - read by the parent process
    except StartError as problem:
        print(problem, end="")  # noqa: T201 - read by the parent process
        sys.exit(1)
