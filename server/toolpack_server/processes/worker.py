"""One worker process: the HTTP server with the application.

A worker ends on a signal, or when another serves in its place, and then exits with status 0; `draining` says
how. It never outlives its supervisor, and a process that a function has forked keeps none of its sockets. It was forked
from one that has run no toolpack code, and loads the toolpacks itself.
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
_M_ARENA_MAX = -8  # of malloc.h

OTHER_FILES = 100  # that a worker has open beside connections: of its store, of toolpacks, of event loops

START_FAILED, OUTDATED = 3, 4  # exit statuses: why a worker doesn't serve


def run_worker(service: Service, listener: socket.socket, pipe: SupervisorPipe) -> None:
    """Serve in this process until it is to end; a setting that can't be used is a `StartError`."""
    _allow_open_files(service.settings.max_connections)
    enable_spawn_imports(service.settings.pack_dir)
    app = create_app(service)
    # Loaded modules stay: exclude them from garbage collection, and make full collections rare.
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
    """Have the threads of this process, and of those that it forks, allocate from one place; before they start.

    glibc gives each thread an arena of its own, up to eight for each core. What was freed in one isn't used by the
    others, so that under mixed load a worker grows by a third; as Python's threads take turns, nothing is faster for
    it. `MALLOC_ARENA_MAX` in the environment takes precedence.
    """
    if ARENAS_VARIABLE not in os.environ:
        with contextlib.suppress(AttributeError):  # another C library
            ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)


def _allow_open_files(connections: int) -> None:
    """Raise the limit of open files to the system's maximum: each connection is one.

    What is too low is said now: uvloop closes connections that it can't accept, and reports nothing.
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
    """Run a worker in a forked process, and get its exit status."""
    # Ctrl-C, and the end of a terminal, reach the whole process group; only the supervisor handles them.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    follow(supervisor)
    supervisor_pipe = SupervisorPipe(pipe)
    try:
        catalog = catalog_of(settings, build=False)
        if (other := inventory.difference(catalog.inventory())) is not None:
            supervisor_pipe.fail(
                f"the toolpack {other!r} has other classes or functions than when the server was started: start the "
                "server again; if no file has changed, let the module define the same whenever it is imported"
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
