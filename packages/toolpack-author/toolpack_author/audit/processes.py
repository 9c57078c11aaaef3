"""Audits tasks in processes of their own: one after the other in one, and a new one where that is ended.

Whatever an author's code does to its process, such as to end it, to take all memory or to wait for ever,
costs its task only. No process that forks runs toolpacks' code.
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

GRACE_SECONDS = 5.0  # after a deadline at which the process itself should have ended what was late
GARBAGE = 20_000, 20, 20  # objects, and collections of younger ones, before each collection
LOADING_SECONDS = 600.0
HASH_SEEDS = ("1", "2", "3", "4")  # fixed ones, so that each machine finds the same

Report = dict[str, Any]


class AuditSettings(FeatureSettings, feature="audit"):
    memory_bytes: int = Field(
        2 * 2**30, gt=0, le=2**60, description="Memory that the audit of tasks may take beyond what it starts with."
    )


class _Beat(NamedTuple):
    """What a process is about to run, and for how long at most."""

    what: str
    seconds: float


def task_names(settings: Settings) -> list[str]:
    """Get the names of all tasks, in their order.

    Raises:
        StartError: The toolpacks, or their tasks, can't be loaded.
    """
    found = run_isolated(lambda: _names(settings))
    if "problem" in found:
        raise StartError(found["problem"])
    names: list[str] = found["names"]
    return names


def _names(settings: Settings) -> dict[str, Any]:
    try:
        catalog = catalog_of(settings)
        return {"names": [f"{pack.name}{SEPARATOR}{task.name}" for pack, task in all_tasks(catalog)]}
    except (StartError, EvaluationError) as error:
        return {"problem": str(error)}


def audit_tasks(settings: Settings, names: Sequence[str], effort: Effort) -> Iterator[tuple[str, Report]]:
    """Audit tasks, and get the report on each.

    Raises:
        StartError: The toolpacks can't be loaded.
    """
    yield from _each(settings, names, effort, Auditor.audit)


def _each(
    settings: Settings, names: Sequence[str], effort: Effort, job: Callable[[Auditor, str], Any]
) -> Iterator[tuple[str, Any]]:
    """Do a job for each task, and get what it has found, or a report on a task that has broken its process."""
    left = [*names]
    while left:
        child = Child(partial(_work, os.getpid(), settings, tuple(left), effort, job))
        try:
            for name in [*left]:
                found, broken = _received(child)
                yield name, found
                left.remove(name)
                if broken:
                    break
        finally:
            child.end()
            child.wait()
            child.pipe.close()


def _received(child: Child) -> tuple[Any, bool]:
    """Get what was found of the next task, and whether its process has to be ended."""
    beat = loading = _Beat("the toolpacks' import", LOADING_SECONDS)
    while True:
        try:
            if not child.pipe.poll(beat.seconds + GRACE_SECONDS):
                text = f"{beat.what} took longer than {beat.seconds:g} s, and nothing ends it"
                return report([AuditFinding("evaluator-fails", True, text)]), True
            message = json.loads(child.pipe.recv_bytes())
        except (EOFError, OSError):
            text = f"{beat.what} has ended the process ({child.wait()})"
            if beat is loading:  # no task has begun
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
    except Exception as error:  # noqa: BLE001 - this process says nothing else
        kind = "" if isinstance(error, StartError) else f"{type(error).__name__}: "
        pipe.send_bytes(json.dumps({"problem": f"{kind}{error}"}).encode())
        return 1
    gc.freeze()  # what is there now stays; a task leaves little that refers to itself
    gc.set_threshold(*GARBAGE)
    loop = asyncio.new_event_loop()
    # The event loop has a thread of its own: on the main thread a signal ends what is late.
    threading.Thread(target=loop.run_forever, daemon=True).start()

    def phase(what: str, seconds: float) -> None:
        pipe.send_bytes(json.dumps({"beat": [what, seconds]}).encode())

    auditor = Auditor(service, effort, phase, lambda work: asyncio.run_coroutine_threadsafe(work, loop).result())
    for name in names:
        pipe.send_bytes(json.dumps({"found": job(auditor, name)}).encode())
    pipe.close()
    os._exit(0)  # threads may be stuck in a toolpack's code


def _be_quiet() -> None:
    """Let toolpacks print nothing among the findings."""
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    logging.disable(logging.CRITICAL)


def _limit_memory(more: int) -> None:
    with suppress(OSError, ValueError):  # not every system says how much there is, or lets it be limited
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
        limit = pages * resource.getpagesize() + more
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


# Other hash seeds


class HashSeeds:
    """Has the verdicts on tasks given by processes with other hash seeds, beside all else."""

    def __init__(self, settings: Settings, names: Sequence[str], clients: Collection[str]) -> None:
        asked = {
            "packs": settings.packs and ",".join(settings.packs),
            "pack_dir": [str(path) for path in settings.pack_dir],
            "names": [*names],
            "clients": [*clients],
        }
        self._running = [
            subprocess.Popen(  # noqa: S603 - as above
                [sys.executable, "-m", __name__, json.dumps(asked)],
                env={**os.environ, "PYTHONHASHSEED": seed},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
            for seed in HASH_SEEDS
        ]

    def unstable(self) -> list[str]:
        """Get the names of the tasks on which they give different verdicts; raises as `audit_tasks`."""
        found: list[Mapping[str, Any]] = []
        for process in self._running:
            text = process.communicate()[0]
            if process.returncode != 0:
                raise StartError(text.decode() or f"A process with another hash seed has ended ({process.returncode}).")
            found.append(json.loads(text))
        names = {name for verdicts in found for name in verdicts}
        return sorted(name for name in names if len({json.dumps(each.get(name), sort_keys=True) for each in found}) > 1)

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
        print(json.dumps(_verdicts(json.loads(sys.argv[1]))))  # noqa: T201 - what its parent reads
    except StartError as problem:
        print(problem, end="")  # noqa: T201 - likewise
        sys.exit(1)
