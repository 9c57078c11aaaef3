"""An executor: a process that handles one request after the other, in its main thread.

It exits when the worker closes the connection. After each request it reports leftovers (threads, children, a
changed working directory): then the worker replaces it.
"""

import contextlib
import os
import pkgutil
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from toolpack_server.base.after_fork import run_after_fork
from toolpack_server.base.errors import StartError, TooLargeError
from toolpack_server.execution.codec import PlainCodec
from toolpack_server.execution.runner import RunnerOperation
from toolpack_server.features.executors import system
from toolpack_server.features.executors.channel import MAX_HEAD_BYTES, Channel, ExecutorGoneError
from toolpack_server.features.executors.sandbox import Sandbox
from toolpack_server.features.executors.work import Work, refused
from toolpack_server.functions.coroutines import keep_main_loop
from toolpack_server.functions.leftovers import Watch
from toolpack_server.packs.catalog import Catalog
from toolpack_server.packs.loading import load_catalog
from toolpack_server.volumes.scratch import Scratch
from toolpack_server.volumes.volume import Limits, Volume, VolumeContext, VolumeKinds


@dataclass
class Configuration:
    """What a zygote and its executors need to know, as plain JSON."""

    pack_dirs: list[str]
    packs: list[str]
    preload: bool  # the zygote loads the toolpacks, and not each executor
    operations: list[str]  # as `module:class`
    conditions: list[str]  # likewise
    max_environment_bytes: int  # of the snapshot of a part
    max_result_bytes: int  # of the result of a call as JSON
    max_answer_bytes: int
    sandbox: list[str]
    hidden: list[str]  # the server's own files and folders, which the sandbox doesn't show
    volumes: list[str]  # as `module:class`
    limits: list[Any]  # of volumes
    scratch_dir: str | None
    scratch_bytes: int  # that one executor keeps there
    memory_bytes: int  # beyond what an executor starts with; 0 for any


def run_executor(
    end: socket.socket,
    zygote: int,
    catalog: Catalog | None,
    operations: Iterable[type[RunnerOperation[Any]]],
    configuration: Configuration,
    sandbox: Sandbox,
    scratch: Path,
) -> NoReturn:
    """Become an executor, and handle requests until the worker closes the connection.

    Without a catalog it loads the toolpacks itself: in the sandbox, which wouldn't hold for threads that it found. It
    makes a folder of its own in `scratch`, which the zygote removes.
    """
    system.end_with_parent(zygote)
    system.adopt_orphans()
    signal.signal(signal.SIGTERM, _for_children_only(os.getpid()))
    channel = Channel(end)
    run_after_fork(channel.detach)
    greeting: dict[str, Any] = {"process": os.getpid()}
    try:
        own = scratch / str(os.getpid())
        own.mkdir(mode=0o700)
        with system.STATM.open() as statm:
            _confine(sandbox, configuration, own)
            if catalog is None:
                catalog = load_catalog([*map(Path, configuration.pack_dirs)], configuration.packs, build=False)
                greeting["inventory"] = catalog.inventory().to_json()
            system.limit_memory(configuration.memory_bytes, statm)
    except OSError as error:
        channel.send({"problem": error.strerror})
        os._exit(1)
    except StartError as error:
        channel.send({"problem": f"it can't load the toolpacks: {error}".removesuffix(".")})
        os._exit(1)
    _draw_other_numbers()
    keep_main_loop()
    channel.send(greeting)
    codec = PlainCodec(catalog, configuration.max_environment_bytes, _volume_context(configuration, own))
    work = Work(channel, codec, operations, configuration.max_result_bytes)
    executor, folder = os.getpid(), os.getcwd()  # noqa: PTH109 - asked after every call
    while True:
        try:
            request = channel.receive()
        except ExecutorGoneError:
            os._exit(0)
        watch = Watch()
        answer = work.do(request)
        if os.getpid() != executor:  # a process that a function has forked returns from it, too
            os._exit(0)
        size = sum(map(len, answer.pieces))
        if size > configuration.max_answer_bytes:
            answer = refused(
                TooLargeError(f"the answer has {size} bytes; {configuration.max_answer_bytes} are allowed.")
            )
        leftovers = _has_leftovers(watch, catalog.toolpacks, folder)
        with contextlib.suppress(Exception):  # a function may have closed or replaced them
            sys.stdout.flush()
            sys.stderr.flush()
        try:
            channel.send({**answer.head, "retire": leftovers}, answer.pieces, MAX_HEAD_BYTES)
        except TooLargeError as error:
            channel.send({**refused(error).head, "retire": leftovers})


def _confine(sandbox: Sandbox, configuration: Configuration, folder: Path) -> None:
    sandbox.enter(folder)
    if "files" in configuration.sandbox:
        os.environ["TMPDIR"] = tempfile.tempdir = str(folder)  # the only place where temporary files can be


def _volume_context(configuration: Configuration, folder: Path) -> VolumeContext:
    kinds: list[type[Volume]] = [pkgutil.resolve_name(path) for path in configuration.volumes]
    scratch = Scratch(None, configuration.scratch_bytes, own=folder)
    return VolumeContext(VolumeKinds(kinds), scratch, Limits(*configuration.limits))


def _has_leftovers(watch: Watch, toolpacks: Iterable[str], folder: str) -> bool:
    try:
        moved = os.getcwd() != folder  # noqa: PTH109 - as above
    except OSError:
        moved = True
    return moved or system.has_children() or watch.leaves_work(toolpacks)


def _for_children_only(executor: int) -> Any:
    """Get a handler of SIGTERM: a service manager may send it to all its processes, which would lose calls.

    Processes that a function forks have the usual handler, as soon as the signal comes.
    """

    def handle(number: int, _frame: FrameType | None) -> None:
        if os.getpid() != executor:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)

    return handle


def _draw_other_numbers() -> None:
    """Seed numpy's generator anew in each executor, as Python does with its own."""
    numpy = sys.modules.get("numpy.random")
    if numpy is not None and threading.current_thread() is threading.main_thread():
        numpy.seed()
