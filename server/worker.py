"""One worker process: uvicorn around the application, with a stop that loses nothing.

The rule: a worker that is told to stop, or that has become unfit, first says so at `/readyz` and to new requests, then
lets what runs come to its end, and exits with status 0. It never outlives its supervisor.
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

from server.app import Server, create_app
from server.catalog import Catalog
from server.errors import StartError
from server.protocol import limited_protocol
from server.settings import Settings

log = logging.getLogger("toolpack_server")

START_FAILED = 3
STARTING, SERVING = b"starting", b"serving"
BEAT_SECONDS = 0.5
TURN_SECONDS = 2.0  # an event loop that hasn't turned for so long stands still
GRACE_SECONDS = 3  # for answers that are on their way when all calls have ended
PR_SET_PDEATHSIG = 1


class Pulse:
    """Shows the supervisor that Python code runs here and, once this worker serves, that its event loop turns.

    A C call that never lets go of the GIL stops it, and so does an event loop that waits for a lock which an
    interrupted function still holds.

    Args:
        pipe: Where beats go; it breaks when the supervisor dies. None where there is no supervisor.
    """

    def __init__(self, pipe: Connection | None = None) -> None:
        self._turned: float | None = None
        if pipe is not None:
            threading.Thread(target=self._beat, args=(pipe,), name="beat", daemon=True).start()

    def turn(self, *, last: bool = False) -> None:
        """Note that the event loop has turned; after the last time nothing is said about it any more."""
        self._turned = None if last else time.monotonic()

    def _beat(self, pipe: Connection) -> None:
        while True:
            turned = self._turned
            try:
                if turned is None:
                    pipe.send_bytes(STARTING)
                elif time.monotonic() - turned < TURN_SECONDS:
                    pipe.send_bytes(SERVING)
            except OSError:
                os._exit(1)
            time.sleep(BEAT_SECONDS)


class DrainingServer(uvicorn.Server):
    """uvicorn's server, which on SIGTERM goes on answering until running calls have ended."""

    def __init__(self, config: uvicorn.Config, application: Server, pulse: Pulse) -> None:
        super().__init__(config)
        self._application = application
        self._pulse = pulse
        self._stop_at: float | None = None

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Handle signals, and unlike uvicorn's own don't raise them again: a stop that went well exits 0."""
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                if signal.getsignal(number) is not signal.SIG_IGN:
                    signal.signal(number, self.handle_exit)
        yield

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002 - a signal handler's signature
        """Begin to stop; at a second Ctrl-C, wait no longer for running calls."""
        if self._stop_at is None:
            self.drain()
        elif sig == signal.SIGINT:
            self._stop_at = time.monotonic()

    def drain(self) -> None:
        """Answer new requests with 503 from now on, and stop once nothing runs any more."""
        self._application.ready = False
        self._stop_at = time.monotonic() + self._application.settings.drain_seconds

    async def on_tick(self, counter: int) -> bool:
        """See that a worker which holds too many stuck threads stops, and that a stop comes to its end."""
        application = self._application
        if self._stop_at is None and application.is_unfit():
            self.drain()
        if self._stop_at is not None and time.monotonic() > self._stop_at:
            application.sessions.mailboxes.stop()
        if self._stop_at is not None and application.sessions.is_idle():
            self.should_exit = True
        self._pulse.turn(last=self.should_exit)
        return await super().on_tick(counter)


def run_worker(settings: Settings, catalog: Catalog, listener: socket.socket, pulse: Pulse | None = None) -> None:
    """Serve in this process until told to stop.

    Raises:
        StartError: It can't start.
    """
    _allow_open_files()
    app = create_app(settings, catalog)
    application: Server = app.state.server
    application.open()
    # What is loaded stays: the collector needn't look at it again, and a full collection costs more than it finds.
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
    DrainingServer(config, application, pulse or Pulse()).run(sockets=[listener])


def _allow_open_files() -> None:
    """Take all the open files that the system grants: each connection is one."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def supervised_worker(
    settings: Settings, catalog: Catalog, listener: socket.socket, pipe: Connection, supervisor: int
) -> None:
    """Be a worker in a process of its own: never returns.

    Args:
        settings: The settings.
        catalog: The loaded toolpacks, as they were when the supervisor forked.
        listener: The socket that all workers share.
        pipe: See `Pulse`.
        supervisor: The supervisor's process id.
    """
    # The supervisor alone decides what Ctrl-C means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})  # see where it is blocked
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != supervisor:  # it died before the line above
        os._exit(1)
    status = 0
    try:
        run_worker(settings, catalog, listener, Pulse(pipe))
    except StartError as error:
        print(f"toolpack-server: {error}", file=sys.stderr)  # noqa: T201 - the log may not be set up
        status = START_FAILED
    except BaseException:
        log.exception("A worker has failed")
        status = 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        # Not `sys.exit`: a thread that is stuck in a function must not keep the process.
        os._exit(status)
