"""HTTP server with a graceful shutdown, which loses no call, answer or connection.

There are two ways to end:

- A *stopped* worker got a signal. It reports that it isn't ready, and serves as before for `shutdown_delay_seconds`, so
  that load balancers notice. Then it still accepts connections but answers 503, until no call runs or `drain_seconds`
  have passed. A further SIGINT *hurries* it: it doesn't wait for running calls.
- A *retired* worker was replaced. It leaves new connections to its replacement, and answers all requests on its own
  connections.

In both cases, every request gets a JSON answer, and each answer closes its connection. At the end, idle connections
stay open for a moment, because a request may be arriving.
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

LINGER_SECONDS = 0.5  # wait for requests that are arriving, and for responses that are being sent
CANCEL_SECONDS = 0.2  # wait for the answers to cancelled requests
POLL_SECONDS = 0.01


class DrainingServer(HttpServer):
    """A server that answers every request before it ends."""

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
        """Stop at a signal. The main thread calls this, because no other thread may. Another thread runs the loop."""

        def handle(number: int, frame: FrameType | None) -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(self.handle_exit, number, frame)

        handle_stop(handle)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002 - a signal handler's signature
        """Stop. If a further signal is SIGINT, don't wait for running calls."""
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
            self._leave()  # the signal may have come before `ready` was set
        elif self._pipe.retired:
            self.stop_listening()
            self._drain()
        if self._hurried or self._pipe.hurried:
            self._stop_at = time.monotonic()
        self.should_exit = self._stop_at is not None and (self._is_done() or time.monotonic() >= self._stop_at)
        self._pipe.turn(last=self.should_exit)
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Answer the remaining requests, then close all connections.

        The order loses no request: refuse new calls, stop the threads, accept the connections that wait in the
        system's queue, and give requests and answers on their way a moment.
        """
        retired = not self._stopped  # a retired worker has waited for idle connections already
        self._gateway.ready = False
        self._drain()
        self._service.sessions.queues.stop()
        await self.accept_rest(sockets or [])
        await _until(lambda: not (self._gateway.answering if retired else self.connections()), LINGER_SECONDS)
        self.cancel_requests()
        await _until(lambda: not self.requests(), CANCEL_SECONDS)
        await self.end()

    def close_in_child(self) -> None:
        """Release the sockets and signal handlers in a process that a function has forked."""
        detach([*(connection.fileno() for connection in self.sockets()), *self._pipe.descriptors()])
        # SIGTERM, as `terminate()` sends it, must end the child. Its signals must not wake this server's event loop.
        handle_stop(signal.SIG_DFL)
        signal.set_wakeup_fd(-1)

    def _leave(self) -> None:
        """Refuse new requests if load balancers have had the time to notice that this server isn't ready."""
        if time.monotonic() >= self._refuse_at:
            self._gateway.ready = False
            self._drain()

    def _drain(self) -> None:
        """Close each connection after its next answer, and stop when no call runs, or after `drain_seconds`."""
        if self._stop_at is not None:
            return
        self._quiet_since = time.monotonic()
        self._stop_at = self._quiet_since + self._service.settings.drain_seconds
        self._service.sessions.begin_draining()
        self.close_with_next_answer()

    def _is_done(self) -> bool:
        """Return whether no call runs, and no connection needs this worker any more."""
        now = time.monotonic()
        if self._gateway.answering or not self._service.sessions.queues.is_idle():
            self._quiet_since = now
            return False
        if self._stopped:
            return True
        # A retired worker may have accepted a connection that isn't counted yet, so it waits a moment. It also waits
        # for idle connections, which time out after some seconds. But if only one process may use the store
        # (`exclusive`), its replacement waits for the store, so idle connections aren't waited for.
        is_quiet = now - self._quiet_since > LINGER_SECONDS
        return is_quiet and (self._service.settings.exclusive or not self.connections())


async def _until(condition: Callable[[], bool], seconds: float) -> None:
    """Wait until a condition holds, but at most about so many seconds."""
    # Count loop iterations, not seconds: data that arrived while this process was suspended must still be read.
    for _ in range(round(seconds / POLL_SECONDS)):
        if condition():
            return
        await asyncio.sleep(POLL_SECONDS)
