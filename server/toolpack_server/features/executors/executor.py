"""Main loop of an executor, a process that handles requests one after the other in its main thread.

The executor exits when the worker closes the connection. After each request, the executor reports whether the function
has left threads, child processes or a changed working directory. If so, the worker replaces the executor.
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
from toolpack_server.features.executors.work import RequestHandler, refused
from toolpack_server.functions.coroutines import keep_main_loop
from toolpack_server.functions.leftovers import Watch
from toolpack_server.packs.catalog import Catalog
from toolpack_server.packs.loading import load_catalog
from toolpack_server.volumes.scratch import Scratch
from toolpack_server.volumes.volume import Limits, Volume, VolumeContext, VolumeKinds


@dataclass
class Configuration:
    """Configuration of a zygote and its executors, as plain JSON."""

    pack_dirs: list[str]
    packs: list[str]
    preload: bool  # the zygote imports the toolpacks; if False, each executor imports them
    operations: list[str]  # classes of the supported operations, as `module:class`
    policies: list[str]  # classes of execution policies, as `module:class`
    max_environment_bytes: int  # maximum size of a part's snapshot
    max_result_bytes: int  # maximum size of a call's result as JSON
    max_answer_bytes: int  # maximum total size of an answer's pieces
    sandbox: list[str]  # kinds of resources to block: `files`, `network`, or both
    hidden: list[str]  # the server's own files and folders, which the sandbox hides
    volumes: list[str]  # classes of volumes, as `module:class`
    limits: list[Any]  # values of the fields of `Limits`, which apply to volumes
    scratch_dir: str | None
    scratch_bytes: int  # maximum size of one executor's files in the scratch folder
    memory_bytes: int  # maximum memory that an executor can use beyond its memory at the start; 0: no limit


def run_executor(
    end: socket.socket,
    zygote: int,
    catalog: Catalog | None,
    operations: Iterable[type[RunnerOperation[Any]]],
    configuration: Configuration,
    sandbox: Sandbox,
    scratch: Path,
) -> NoReturn:
    """Turn this process into an executor, and handle requests until the worker closes the connection.

    Args:
        catalog: The toolpacks. None: the executor imports them, after entering the sandbox, because the sandbox doesn't
            apply to threads that were started before.
        scratch: The parent folder of the executor's own folder, which the zygote removes after the executor's exit.
    """
    system.end_with_parent(zygote)
    system.adopt_orphans()
    signal.signal(signal.SIGTERM, _sigterm_handler(os.getpid()))
    channel = Channel(end)
    run_after_fork(channel.detach)
    greeting: dict[str, Any] = {"process": os.getpid()}
    try:
        own = scratch / str(os.getpid())
        own.mkdir(mode=0o700)
        with system.STATM.open() as statm:  # open this before entering the sandbox, which might hide the file
            _confine(sandbox, configuration, own)
            if catalog is None:
                catalog = load_catalog([*map(Path, configuration.pack_dirs)], configuration.packs, build=False)
                greeting["inventory"] = catalog.inventory().to_json()
            system.limit_memory(configuration.memory_bytes, statm)
    except OSError as error:
        channel.send({"problem": error.strerror})
        os._exit(1)
    except StartError as error:
        channel.send({"problem": f"the toolpacks can't be loaded: {error}".removesuffix(".")})
        os._exit(1)
    _reseed_numpy()
    keep_main_loop()
    channel.send(greeting)
    codec = PlainCodec(catalog, configuration.max_environment_bytes, _volume_context(configuration, own))
    work = RequestHandler(channel, codec, operations, configuration.max_result_bytes)
    executor, folder = os.getpid(), os.getcwd()  # noqa: PTH109 - `_has_leftovers` compares it after every call
    while True:
        try:
            request = channel.receive()
        except ExecutorGoneError:
            os._exit(0)
        watch = Watch()
        answer = work.do(request)
        if os.getpid() != executor:  # a process forked by the function also returns here
            os._exit(0)
        size = sum(map(len, answer.pieces))
        if size > configuration.max_answer_bytes:
            answer = refused(
                TooLargeError(f"the answer has {size} bytes; at most {configuration.max_answer_bytes} are allowed.")
            )
        leftovers = _has_leftovers(watch, catalog.toolpacks, folder)
        with contextlib.suppress(Exception):  # a function might have closed or replaced the streams
            sys.stdout.flush()
            sys.stderr.flush()
        try:
            channel.send({**answer.head, "retire": leftovers}, answer.pieces, MAX_HEAD_BYTES)
        except TooLargeError as error:
            channel.send({**refused(error).head, "retire": leftovers})


def _confine(sandbox: Sandbox, configuration: Configuration, folder: Path) -> None:
    """Enter the sandbox, and use the executor's own folder for temporary files."""
    sandbox.enter(folder)
    if "files" in configuration.sandbox:
        os.environ["TMPDIR"] = tempfile.tempdir = str(folder)  # the only folder that the executor can write to


def _volume_context(configuration: Configuration, folder: Path) -> VolumeContext:
    """Return what volumes need in this executor: their classes, their limits, and the executor's folder for files."""
    kinds: list[type[Volume]] = [pkgutil.resolve_name(path) for path in configuration.volumes]
    scratch = Scratch(None, configuration.scratch_bytes, own=folder)
    return VolumeContext(VolumeKinds(kinds), scratch, Limits(*configuration.limits))


def _has_leftovers(watch: Watch, toolpacks: Iterable[str], folder: str) -> bool:
    """Return whether a request has left threads or child processes, or has changed the working directory."""
    try:
        moved = os.getcwd() != folder  # noqa: PTH109 - faster than `Path.cwd`, and runs after every call
    except OSError:
        moved = True
    return moved or system.has_children() or watch.leaves_work(toolpacks)


def _sigterm_handler(executor: int) -> Any:
    """Return a SIGTERM handler that ignores the signal in the executor, but terminates the executor's children.

    A service manager can send SIGTERM to all processes of the server, which then finishes the running calls. If the
    executor exited at the signal, its call would be lost.
    """

    def handle(number: int, _frame: FrameType | None) -> None:
        if os.getpid() != executor:  # a process forked by a function inherited this handler
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)

    return handle


def _reseed_numpy() -> None:
    """Reseed numpy's global generator after the fork, if numpy is imported, just as Python reseeds `random`.

    Otherwise all executors would generate the same random numbers.
    """
    numpy = sys.modules.get("numpy.random")
    if numpy is not None and threading.current_thread() is threading.main_thread():
        numpy.seed()
