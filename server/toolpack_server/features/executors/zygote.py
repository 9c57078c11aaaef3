"""Zygote: the fork server of executors, a fresh interpreter that has imported the toolpacks.

A worker starts the zygote as a new program instead of forking it, so that its memory contains no key, token or
connection. The zygote has one thread, builds no environment and runs no function of a toolpack. If importing the
toolpacks starts threads, each executor imports the toolpacks itself, because a fork doesn't copy threads. When its
worker exits, the zygote kills its executors and the processes that they left behind, and exits.
"""

import contextlib
import gc
import os
import pkgutil
import select
import shutil
import signal
import socket
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NoReturn

from toolpack_server.base.errors import StartError
from toolpack_server.execution.runner import RunnerOperation
from toolpack_server.features.executors import system
from toolpack_server.features.executors.executor import Configuration, run_executor
from toolpack_server.features.executors.sandbox import Sandbox
from toolpack_server.jsonio.strict import dumps, loads
from toolpack_server.packs.catalog import Catalog
from toolpack_server.packs.loading import extend_namespace, load_catalog
from toolpack_server.packs.spawn_imports import enable_spawn_imports
from toolpack_server.volumes.scratch import Scratch, remove_leftovers

MAX_CONFIGURATION = 2**17


def main(control: socket.socket) -> NoReturn:
    """Load the toolpacks, report them to the worker, and fork executors until the worker exits."""
    system.hide_memory()  # executors inherit this, so they can read neither the zygote's memory nor one another's
    control.set_inheritable(False)  # a program that a toolpack starts at import must not inherit the socket
    configuration = Configuration(**loads(control.recv(MAX_CONFIGURATION)))
    operations = [pkgutil.resolve_name(path) for path in configuration.operations]
    catalog: Catalog | None = None
    answer: dict[str, Any] = {}
    if configuration.preload:
        try:
            catalog = load_catalog([*map(Path, configuration.pack_dirs)], configuration.packs, build=False)
            answer = {"inventory": catalog.inventory().to_json(), "threads": system.keeps_threads()}
        except StartError as error:
            answer = {"error": str(error)}
    else:
        # Executors import the toolpacks inside the sandbox, which allows the folders of this namespace.
        extend_namespace([*map(Path, configuration.pack_dirs)], [])
    try:
        control.send(dumps(answer))
    except BrokenPipeError:  # the worker has exited
        os._exit(1)
    if "error" in answer or answer.get("threads"):
        os._exit(1)
    enable_spawn_imports(map(Path, configuration.pack_dirs))
    for path in configuration.policies:
        pkgutil.resolve_name(path).load()  # load it once, for all executors
    gc.collect()
    gc.freeze()  # otherwise, a collection in an executor would copy every shared page of memory
    gc.set_threshold(50_000, 20, 100)  # the same values as in a worker: more frequent collections would free little
    _Forker(control, catalog, operations, configuration).serve()


class _Forker:
    """Forks executors on request, and reports their exit statuses to the worker."""

    def __init__(
        self,
        control: socket.socket,
        catalog: Catalog | None,
        operations: Iterable[type[RunnerOperation[Any]]],
        configuration: Configuration,
    ) -> None:
        self._process = os.getpid()
        self._control = control
        self._catalog = catalog
        self._operations = operations
        self._configuration = configuration
        folder = Path(configuration.scratch_dir) if configuration.scratch_dir else None
        remove_leftovers(folder)
        self._scratch = Scratch(folder, configuration.scratch_bytes)
        self._sandbox = Sandbox(configuration.sandbox, configuration.pack_dirs, configuration.hidden)
        self._executors: dict[int, int] = {}  # the pipe for each executor's exit status, by process id
        self._own = set(system.children())  # the processes that toolpacks started when they were imported
        self._woken, self._wake = socket.socketpair()
        for end in (self._woken, self._wake):
            end.setblocking(False)

    def serve(self) -> NoReturn:
        """Fork an executor for each message, until the worker exits."""
        system.adopt_orphans()
        signal.signal(signal.SIGCHLD, lambda *_: None)  # with a handler, the exit of a child wakes `poll`
        signal.set_wakeup_fd(self._wake.fileno(), warn_on_full_buffer=False)
        poller = select.poll()
        poller.register(self._control, select.POLLIN)
        poller.register(self._woken, select.POLLIN)
        while True:
            ready = {descriptor for descriptor, _ in poller.poll()}
            if self._woken.fileno() in ready:
                self._woken.recv(4096)
                self._reap()
            if self._control.fileno() in ready:
                message, descriptors, _, _ = socket.recv_fds(self._control, 16, 3)
                if not message:
                    self._end()
                for descriptor in descriptors:  # programs started by a function must not inherit them
                    os.set_inheritable(descriptor, False)
                if len(descriptors) == 3:  # noqa: PLR2004 - fewer if this process has too many open files
                    self._fork(*descriptors)

    def _fork(self, end: int, status: int, output: int) -> None:
        """Fork an executor.

        Args:
            end: The executor's end of the channel.
            status: The pipe for the executor's exit status.
            output: The pipe for the executor's output.
        """
        _ = self._scratch.folder  # the first access creates the folder, which all executors share
        try:
            process = os.fork()
        except OSError:
            os.close(status)  # the worker then sees end of file, so it notices that the fork failed
        else:
            if process == 0:
                self._become_executor(end, status, output)
            self._executors[process] = status
        os.close(end)
        os.close(output)

    def _become_executor(self, end: int, status: int, output: int) -> NoReturn:
        """Give up everything that belongs to the zygote in the forked process, and run the executor."""
        try:
            for standard in (1, 2):
                os.dup2(output, standard)
            os.close(output)
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for inherited in (self._control, self._woken, self._wake):
                inherited.close()
            # Only the zygote reports exit statuses. If the zygote exits, the worker must see end of file on these
            # pipes, so executors must not keep them open.
            for descriptor in (status, *self._executors.values()):
                os.close(descriptor)
            run_executor(
                socket.socket(fileno=end),
                self._process,
                self._catalog,
                self._operations,
                self._configuration,
                self._sandbox,
                self._scratch.folder,
            )
        finally:
            os._exit(1)

    def _reap(self) -> None:
        """Report the exit statuses of executors, and kill the processes that they left behind."""
        while True:
            try:
                process, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if process == 0:
                break
            self._own.discard(process)
            pipe = self._executors.pop(process, None)
            if pipe is not None:
                shutil.rmtree(self._scratch.folder / str(process), ignore_errors=True)
                with contextlib.suppress(BrokenPipeError):  # the worker has closed the pipe or exited
                    os.write(pipe, b"%d" % os.waitstatus_to_exitcode(status))
                os.close(pipe)
        for orphan in set(system.children()) - self._executors.keys() - self._own:
            system.kill(orphan)  # its exit wakes `serve`, which calls this again

    def _end(self) -> NoReturn:
        """Kill all executors and the processes that they left behind, and exit."""
        signal.set_wakeup_fd(-1)
        while children := system.children():
            for child in children:
                system.kill(child)
            os.waitpid(-1, 0)
        self._scratch.close()
        os._exit(0)
