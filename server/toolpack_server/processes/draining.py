"""HTTP server with a graceful shutdown, which loses no call, response or connection.

A worker shuts down in one of two ways:

- A *stopped* worker has received a signal. It reports that it isn't ready, but still serves for
  `shutdown_delay_seconds`, so that load balancers notice. After that, it still accepts connections but responds with
  503, until no call is running or `drain_seconds` have passed. A further SIGINT *hurries* the worker, which means that
  it doesn't wait for running calls.
- A *retired* worker was replaced. It leaves new connections to its replacement, and responds to all requests on its own
  connections.

In both cases, every request gets a JSON response, and each response closes its connection. At the end, idle connections
stay open for a moment, because a request might be arriving.
"""

import asyncio
import contextlib
import signal
import socket
import time
from collections.abc import Callable
from types import FrameType

from starlette.types import ASGIApp

from toolpack_server.base.after_fork import detach, run_after_fork
from toolpack_server.base.logger import log
from toolpack_server.processes.child import handle_stop
from toolpack_server.processes.pipe import SupervisorPipe
from toolpack_server.web.endpoints import Gateway
from toolpack_server.web.http_server import HttpServer

LINGER_SECONDS = 0.5  # time to wait for requests that are arriving, and for responses that are being sent
CANCEL_SECONDS = 0.2  # time to wait for the responses to cancelled requests
POLL_SECONDS = 0.01


class DrainingServer(HttpServer):
    """HTTP server that responds to every request before it exits."""

    def __init__(self, app: ASGIApp, gateway: Gateway, pipe: SupervisorPipe) -> None:
        super().__init__(app, gateway.service.settings, gateway.connections)
        self._gateway = gateway
        self._service = gateway.service
        self._pipe = pipe
        self._stopped = self._hurried = False
        self._refuse_at = 0.0
        self._stop_at: float | None = None
        self._quiet_since = 0.0
        run_after_fork(self.close_in_child)

    def handle_signals(self, loop: asyncio.AbstractEventLoop) -> None:
        """Install signal handlers that stop this server.

        Call this on the main thread, because Python allows no other thread to set handlers. The event loop runs on
        another thread.
        """

        def handle(number: int, frame: FrameType | None) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(self.handle_exit, number, frame)

        handle_stop(handle)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002 - a signal handler's signature
        """Handle a stop signal: begin to stop. If a further signal is SIGINT, stop waiting for running calls."""
        if not self._stopped and not self._pipe.has_supervisor:
            log.info("The server stops: it was sent %s.", signal.Signals(sig).name)
        self._hurried |= self._stopped and sig == signal.SIGINT
        if not self._stopped:
            self._refuse_at = time.monotonic() + self._service.settings.shutdown_delay_seconds
        self._stopped = self._gateway.leaving = True
        self.close_with_next_answer()  # so that clients connect again, and load balancers choose another server
        self._leave()

    async def on_tick(self, counter: int) -> bool:
        """Check whether this worker should be replaced, and whether draining is complete."""
        if not self._pipe.unfit and self._service.is_unfit():
            self._pipe.unfit = True
            if not self._pipe.has_supervisor:
                log.warning(
                    "The server has too many stuck threads, and no supervisor that could replace it: restart it. A "
                    "server with a persistent TOOLPACK_STORE has a supervisor."
                )
        if self._stopped:
            self._leave()  # again, because the signal might have come before `ready` was set
        elif self._pipe.retired:
            self.stop_listening()
            self._drain()
        if self._hurried or self._pipe.hurried:
            self._stop_at = time.monotonic()
        self.should_exit = self._stop_at is not None and (self._is_done() or time.monotonic() >= self._stop_at)
        self._pipe.turn(last=self.should_exit)
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Respond to the remaining requests, then close all connections.

        The order of these steps loses no request: refuse new calls, stop the threads, accept the connections in the
        system's queue, and wait a moment for requests and responses in transit.
        """
        retired = not self._stopped  # a retired worker has already waited for idle connections
        self._gateway.ready = False
        self._drain()
        self._service.sessions.queues.stop()
        await self.accept_rest(sockets or [])
        await _until(lambda: not (self._gateway.answering if retired else self.connections()), LINGER_SECONDS)
        self.cancel_requests()
        await _until(lambda: not self.requests(), CANCEL_SECONDS)
        await self.end()

    def close_in_child(self) -> None:
        """Release the sockets and signal handlers in a process forked by a function."""
        detach([*(connection.fileno() for connection in self.sockets()), *self._pipe.descriptors()])
        # SIGTERM, which `Process.terminate()` sends, must end the child. The child's signals must not wake this
        # server's event loop.
        handle_stop(signal.SIG_DFL)
        signal.set_wakeup_fd(-1)

    def _leave(self) -> None:
        """Refuse new requests, once load balancers have had time to notice that this server isn't ready."""
        if time.monotonic() >= self._refuse_at:
            self._gateway.ready = False
            self._drain()

    def _drain(self) -> None:
        """Close each connection after its next response. Stop when no call is running, or after `drain_seconds`."""
        if self._stop_at is not None:
            return
        self._quiet_since = time.monotonic()
        self._stop_at = self._quiet_since + self._service.settings.drain_seconds
        self._service.sessions.begin_draining()
        self.close_with_next_answer()

    def _is_done(self) -> bool:
        """Return whether no call is running, and no connection needs this worker any more."""
        now = time.monotonic()
        if self._gateway.answering or not self._service.sessions.queues.is_idle():
            self._quiet_since = now
            return False
        if self._stopped:
            return True
        # A retired worker might have accepted a connection that isn't counted yet, so it waits a moment. It also waits
        # for idle connections, which time out after some seconds. But if only one process can use the store
        # (`exclusive`), its replacement waits until this worker has released the store, so it doesn't wait for them.
        is_quiet = now - self._quiet_since > LINGER_SECONDS
        return is_quiet and (self._service.settings.exclusive or not self.connections())


async def _until(condition: Callable[[], bool], seconds: float) -> None:
    """Wait until a condition holds, but at most about this number of seconds."""
    # Count loop iterations instead of seconds, because data that arrived while this process was suspended must still be
    # read.
    for _ in range(round(seconds / POLL_SECONDS)):
        if condition():
            return
        await asyncio.sleep(POLL_SECONDS)
