"""One worker process: uvicorn around the application, with a stop that loses nothing.

The rule: a worker that is told to stop, or that has become unfit, first says so at `/readyz` and to new requests, then
lets what runs come to its end, and exits with status 0. It never outlives its supervisor.
"""

import contextlib
import ctypes
import gc
import os
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

START_FAILED = 3
BEAT_SECONDS = 0.5
# Short, so that a function that computes in Python doesn't hold up all others for 5 ms at every turn.
SWITCH_SECONDS = 0.0002
PR_SET_PDEATHSIG = 1


class DrainingServer(uvicorn.Server):
    """uvicorn's server, which on SIGTERM goes on answering until running calls have ended."""

    def __init__(self, config: uvicorn.Config, application: Server) -> None:
        super().__init__(config)
        self._application = application
        self._stop_at: float | None = None

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Handle signals, and unlike uvicorn's own don't raise them again: a stop that went well exits 0."""
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, self.handle_exit)
        yield

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002 - a signal handler's signature
        """Begin to stop; the second time, stop at once."""
        if self._stop_at is not None:
            self.should_exit = self.force_exit = True
        else:
            self.drain()

    def drain(self) -> None:
        """Answer new requests with 503 from now on, and stop once nothing runs any more."""
        self._application.ready = False
        self._stop_at = time.monotonic() + self._application.settings.drain_seconds

    async def on_tick(self, counter: int) -> bool:
        """See that a worker which holds too many stuck threads stops, and that a stop comes to its end."""
        application = self._application
        if self._stop_at is None and application.is_unfit():
            self.drain()
        if self._stop_at is not None and (application.sessions.is_idle() or time.monotonic() > self._stop_at):
            self.should_exit = True
        return await super().on_tick(counter)


def run_worker(settings: Settings, catalog: Catalog, listener: socket.socket) -> None:
    """Serve in this process until told to stop.

    Raises:
        StartError: It can't start.
    """
    sys.setswitchinterval(SWITCH_SECONDS)
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
        timeout_graceful_shutdown=max(1, int(settings.drain_seconds)),
    )
    DrainingServer(config, application).run(sockets=[listener])


def supervised_worker(settings: Settings, catalog: Catalog, listener: socket.socket, pipe: Connection) -> None:
    """Be a worker in a process of its own: never returns.

    Args:
        settings: The settings.
        catalog: The loaded toolpacks, as they were when the supervisor forked.
        listener: The socket that all workers share.
        pipe: Where beats go; it breaks when the supervisor dies.
    """
    # The supervisor alone decides what Ctrl-C means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    threading.Thread(target=_beat, args=(pipe,), name="beat", daemon=True).start()
    status = 0
    try:
        run_worker(settings, catalog, listener)
    except StartError as error:
        print(f"toolpack-server: {error}", file=sys.stderr)  # noqa: T201 - the log may not be set up
        status = START_FAILED
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        # Not `sys.exit`: a thread that is stuck in a function must not keep the process.
        os._exit(status)


def _beat(pipe: Connection) -> None:
    """Show the supervisor that Python code runs here; a C call that never lets go of the GIL stops this too."""
    while True:
        try:
            pipe.send_bytes(b"beat")
        except OSError:
            os._exit(1)
        time.sleep(BEAT_SECONDS)
