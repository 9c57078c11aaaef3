"""Worker process: the HTTP server with the application.

A worker exits with status 0 after a signal, or when another worker has replaced it; see `draining`. It never outlives
its supervisor. A process forked by a function closes the worker's sockets. The worker is forked from a process that has
run no toolpack code, and it loads the toolpacks itself.
"""

import contextlib
import ctypes
import gc
import os
import resource
import signal
import socket
from multiprocessing.connection import Connection

from toolpack_server.base.errors import StartError
from toolpack_server.base.logger import log
from toolpack_server.base.settings import Settings
from toolpack_server.observability.metrics import Metrics
from toolpack_server.packs.inventory import Inventory
from toolpack_server.packs.loading import catalog_of
from toolpack_server.packs.spawn_imports import enable_spawn_imports
from toolpack_server.processes.child import follow
from toolpack_server.processes.draining import DrainingServer
from toolpack_server.processes.pipe import SupervisorPipe
from toolpack_server.web.app import create_app
from toolpack_server.wiring.service import Service

ARENAS_VARIABLE = "MALLOC_ARENA_MAX"
_M_ARENA_MAX = -8  # value in malloc.h

OTHER_FILES = 100  # number of files that a worker opens besides its connections: for its store, toolpacks, event loops

START_FAILED, OUTDATED = 3, 4  # exit statuses of a worker that can't serve


def run_worker(service: Service, listener: socket.socket, pipe: SupervisorPipe) -> None:
    """Serve in this process until a signal or the supervisor stops it.

    Raises:
        StartError: A setting can't be used.
    """
    _allow_open_files(service.settings.max_connections)
    enable_spawn_imports(service.settings.pack_dir)
    app = create_app(service)
    # Loaded modules are never freed, so exclude their objects from garbage collection, and make full collections rare.
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
    server = DrainingServer(app, app.state.gateway, pipe)
    queues = service.sessions.queues
    if queues.leases.required:
        pipe.introduce(queues.leases.holder, queues.leases.holder_ended)
    driver = queues.threads.drive(server.loop_factory())
    server.handle_signals(driver.loop)
    driver.run(server.serve(sockets=[listener]))


def share_memory_between_threads() -> None:
    """Make all threads of this process and its children allocate from one malloc arena.

    Call this before the first thread starts. By default, glibc uses one arena per thread, up to eight per core. Memory
    freed in one arena isn't reused by other arenas, so a worker grows by a third under mixed load. Several arenas would
    not be faster, because Python's threads run in turns. `MALLOC_ARENA_MAX` in the environment takes precedence.
    """
    if ARENAS_VARIABLE not in os.environ:
        with contextlib.suppress(AttributeError):  # another C library
            ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)


def _allow_open_files(connections: int) -> None:
    """Raise this process's limit of open files to the system's maximum, because each connection is an open file.

    If the maximum is too low, log this now, because uvloop logs nothing when it closes connections that it can't
    accept.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if 0 <= hard < connections + OTHER_FILES:  # negative: no limit
        log.warning(
            "The system allows %d open files, too few for the %d of TOOLPACK_MAX_CONNECTIONS and %d others: raise "
            "`ulimit -Hn`, or lower the setting.",
            hard,
            connections,
            OTHER_FILES,
        )


def supervised_worker(
    settings: Settings,
    inventory: Inventory,
    listener: socket.socket,
    key: bytes,
    metrics: Metrics,
    pipe: Connection,
    supervisor: int,
) -> int:
    """Run a worker in a forked process, and return its exit status."""
    # Pressing Ctrl-C or closing the terminal signals the whole process group. Only the supervisor handles these
    # signals.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    follow(supervisor)  # after the handlers are set, because it unblocks these signals
    supervisor_pipe = SupervisorPipe(pipe)
    try:
        catalog = catalog_of(settings, build=False)
        if (changed := inventory.difference(catalog.inventory())) is not None:
            supervisor_pipe.fail(
                f"the classes or functions of toolpack {changed!r} have changed since the server started: restart the "
                "server; if no file has changed, make the module define the same classes and functions at each import"
            )
            return OUTDATED
        run_worker(Service(settings, catalog, key=key, metrics=metrics), listener, supervisor_pipe)
    except StartError as error:
        supervisor_pipe.fail(str(error))
        return START_FAILED
    except BaseException:
        log.exception("A worker failed")
        return 1
    return 0
