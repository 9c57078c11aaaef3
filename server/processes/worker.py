"""One worker process: uvicorn with the application, and a graceful shutdown.

The rule: a worker that must stop, on a signal or because it has too many stuck threads, first answers 503 at `/readyz`
and to new requests. Then it lets running calls finish, and exits with status 0. It never outlives its supervisor.
"""

import contextlib
import ctypes
import gc
import logging
import os
import resource
import signal
import socket
import sys
import threading
import time
from collections.abc import Generator
from multiprocessing.connection import Connection
from types import FrameType

import uvicorn

from server.errors import StartError
from server.packs.catalog import Catalog
from server.service import Service
from server.settings import Settings
from server.web.app import create_app
from server.web.connections import limited_protocol
from server.web.endpoints import Gateway

log = logging.getLogger("toolpack_server")

START_FAILED = 3
STARTING, SERVING = b"starting", b"serving"
HEARTBEAT_SECONDS = 0.5
TURN_SECONDS = 2.0  # an event loop without an iteration for so long is blocked
GRACE_SECONDS = 3  # for responses still being sent when all calls have ended
PR_SET_PDEATHSIG = 1


class Heartbeat:
    """Shows the supervisor that this process runs Python code and, once it serves, that its event loop isn't blocked.

    Heartbeats stop if a C call never releases the GIL, or if the event loop waits for a lock that an interrupted
    function still holds.

    Args:
        pipe: The pipe to send heartbeats to; it breaks when the supervisor dies. None if there is no supervisor.
    """

    def __init__(self, pipe: Connection | None = None) -> None:
        self._turned: float | None = None
        if pipe is not None:
            threading.Thread(target=self._send, args=(pipe,), name="heartbeat", daemon=True).start()

    def turn(self, *, last: bool = False) -> None:
        """Record an iteration of the event loop; after the last one, it is no longer monitored."""
        self._turned = None if last else time.monotonic()

    def _send(self, pipe: Connection) -> None:
        while True:
            turned = self._turned
            try:
                if turned is None:
                    pipe.send_bytes(STARTING)
                elif time.monotonic() - turned < TURN_SECONDS:
                    pipe.send_bytes(SERVING)
            except OSError:
                os._exit(1)
            time.sleep(HEARTBEAT_SECONDS)


class DrainingServer(uvicorn.Server):
    """uvicorn's server, which after SIGTERM keeps running until all calls have ended."""

    def __init__(self, config: uvicorn.Config, gateway: Gateway, heartbeat: Heartbeat) -> None:
        super().__init__(config)
        self._gateway = gateway
        self._service = gateway.service
        self._heartbeat = heartbeat
        self._stop_at: float | None = None

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Handle signals; unlike uvicorn's, don't raise them again afterwards, so that a clean stop exits 0."""
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                if signal.getsignal(number) is not signal.SIG_IGN:
                    signal.signal(number, self.handle_exit)
        yield

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002 - a signal handler's signature
        """Start draining; at a second signal that is SIGINT, stop waiting for running calls."""
        if self._stop_at is None:
            self.drain()
        elif sig == signal.SIGINT:
            self._stop_at = time.monotonic()

    def drain(self) -> None:
        """Answer new requests with 503 from now on, and stop when no call runs, or after `drain_seconds`."""
        self._gateway.ready = False
        self._stop_at = time.monotonic() + self._service.settings.drain_seconds

    async def on_tick(self, counter: int) -> bool:
        """Drain if this worker has too many stuck threads, and exit when all calls have ended."""
        sessions = self._service.sessions
        if self._stop_at is None and self._service.is_unfit():
            self.drain()
        if self._stop_at is not None and time.monotonic() > self._stop_at:
            sessions.stop()
        if self._stop_at is not None and sessions.is_idle():
            self.should_exit = True
        self._heartbeat.turn(last=self.should_exit)
        return await super().on_tick(counter)


def run_worker(
    settings: Settings, catalog: Catalog, listener: socket.socket, heartbeat: Heartbeat | None = None
) -> None:
    """Serve in this process until SIGTERM or SIGINT.

    Raises:
        StartError: The store or a setting can't be used.
    """
    _allow_open_files()
    app = create_app(Service(settings, catalog))
    # Loaded modules stay: exclude them from garbage collection, and make full collections rare.
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
    config = uvicorn.Config(
        app,
        access_log=False,
        log_config=None,
        http=limited_protocol(settings),
        ws="none",
        proxy_headers=False,
        server_header=False,
        date_header=False,
        timeout_graceful_shutdown=GRACE_SECONDS,
    )
    DrainingServer(config, app.state.gateway, heartbeat or Heartbeat()).run(sockets=[listener])


def _allow_open_files() -> None:
    """Raise the limit of open files to the system's maximum: each connection is one."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def supervised_worker(
    settings: Settings, catalog: Catalog, listener: socket.socket, pipe: Connection, supervisor: int
) -> None:
    """Run a worker in a forked process; never returns.

    Args:
        settings: The settings.
        catalog: The loaded toolpacks.
        listener: The socket that all workers share.
        pipe: See `Heartbeat`.
        supervisor: The supervisor's process id.
    """
    # Ctrl-C reaches the whole process group; only the supervisor handles it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})  # see where it is blocked
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != supervisor:  # it died before prctl
        os._exit(1)
    status = 0
    try:
        run_worker(settings, catalog, listener, Heartbeat(pipe))
    except StartError as error:
        print(f"toolpack-server: {error}", file=sys.stderr)  # noqa: T201 - the log may not be set up
        status = START_FAILED
    except BaseException:
        log.exception("A worker failed")
        status = 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        # Not `sys.exit`, which may wait for threads that are stuck in a function.
        os._exit(status)
