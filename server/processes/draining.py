"""uvicorn's server with an end that loses nothing: no call, no answer, no connection.

A worker that is stopped goes on accepting connections and answers 503, until no call runs or `drain_seconds` are over.
A worker that is retired leaves new connections to the one that takes its place, and runs what comes on those it has.
The rule: every request gets an answer, in JSON, and each answer closes its connection. When nothing else is left, idle
connections get a moment in which a request that is on its way may arrive.
"""

import asyncio
import contextlib
import logging
import os
import signal
import socket
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

import uvicorn

from server.processes.pipe import SupervisorPipe
from server.web.endpoints import Gateway

log = logging.getLogger("toolpack_server")

LINGER_SECONDS = 0.5  # for requests that are on their way, and for responses that are being sent
CANCEL_SECONDS = 0.2  # for the answers to cancelled requests
POLL_SECONDS = 0.01
CLOSE = (b"connection", b"close")


class DrainingServer(uvicorn.Server):
    """uvicorn's server, which at its end answers everything.

    Args:
        config: uvicorn's configuration.
        gateway: What the application shares with it.
        pipe: The pipe to the supervisor.
    """

    def __init__(self, config: uvicorn.Config, gateway: Gateway, pipe: SupervisorPipe) -> None:
        super().__init__(config)
        self._gateway = gateway
        self._service = gateway.service
        self._pipe = pipe
        self._stopped = self._hurried = False
        self._stop_at: float | None = None
        self._quiet_since = 0.0

    def handle_signals(self, loop: asyncio.AbstractEventLoop) -> None:
        """Stop at a signal; called on the main thread, which isn't the one that runs the loop."""

        def handle(number: int, frame: FrameType | None) -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(self.handle_exit, number, frame)

        for number in (signal.SIGTERM, signal.SIGINT):
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, handle)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002 - a signal handler's signature
        """Stop; at a second signal that is SIGINT, without waiting for running calls."""
        self._hurried |= self._stopped and sig == signal.SIGINT
        self._stopped = True
        self._gateway.ready = False
        self._drain()

    async def on_tick(self, counter: int) -> bool:
        """Look after this worker: whether it should be replaced, and if it drains, whether it is done."""
        if not self._pipe.unfit and self._service.is_unfit():
            self._pipe.unfit = True
            if not self._pipe.has_supervisor:
                log.warning("There are too many stuck threads, but without a supervisor nothing can be replaced.")
        if self._stopped:
            self._gateway.ready = False  # the signal may have come before it was set
        elif self._pipe.retired:
            for server in self.servers:
                server.close()
            self._drain()
        if self._hurried or self._pipe.hurried:
            self._stop_at = time.monotonic()
        self.should_exit = self._stop_at is not None and (self._is_done() or time.monotonic() >= self._stop_at)
        self._pipe.turn(last=self.should_exit)
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Answer whatever is left, then close all connections."""
        retired = self._gateway.ready  # then it has waited for idle connections already
        self._gateway.ready = False
        self._drain()
        self._service.sessions.stop()
        await self._stop_listening(sockets or [])
        state = self.server_state
        await _until(lambda: not (self._gateway.answering if retired else state.connections), LINGER_SECONDS)
        for task in [*state.tasks]:
            task.cancel()
        await _until(lambda: not state.tasks, CANCEL_SECONDS)
        for connection in [*state.connections]:
            connection.shutdown()
        await self.lifespan.shutdown()

    def close_in_child(self) -> None:
        """In a process that a function has forked, close the sockets of this one, so that it doesn't keep the port.

        Their numbers stay in use, because objects that this process has inherited would close them once more.
        """
        sockets = [listener for server in getattr(self, "servers", ()) for listener in server.sockets]
        sockets += [connection.transport.get_extra_info("socket") for connection in self.server_state.connections]
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in [*(one.fileno() for one in sockets), *self._pipe.descriptors()]:
            if descriptor >= 0:
                os.dup2(null, descriptor)
        os.close(null)

    def _drain(self) -> None:
        """Close each connection with its next answer, and stop when no call runs, or after `drain_seconds`."""
        if self._stop_at is not None:
            return
        self._quiet_since = time.monotonic()
        self._stop_at = self._quiet_since + self._service.settings.drain_seconds
        self.config.encoded_headers = self.server_state.default_headers = [CLOSE]
        connections: set[Any] = self.server_state.connections
        for connection in connections:
            if connection.cycle is not None:
                connection.cycle.default_headers = [CLOSE]

    def _is_done(self) -> bool:
        now = time.monotonic()
        if self._gateway.answering or not self._service.sessions.is_idle():
            self._quiet_since = now
            return False
        if self._stopped or not self.server_state.connections:
            return True
        # Retired: idle connections end by themselves after some seconds, unless somebody waits for the store meanwhile.
        return self._service.settings.exclusive and now - self._quiet_since > LINGER_SECONDS

    async def _stop_listening(self, listeners: list[socket.socket]) -> None:
        """Close the listening sockets, after accepting the connections that clients take for open already."""
        accepted = []
        for listener in listeners:
            if listener.fileno() >= 0:
                with contextlib.suppress(OSError):
                    while True:
                        accepted.append(listener.accept()[0])
        for server in self.servers:
            server.close()
        for connection in accepted:
            connection.setblocking(False)
            with contextlib.suppress(OSError):
                await asyncio.get_running_loop().connect_accepted_socket(self._protocol, connection)

    def _protocol(self) -> Any:
        state = {"config": self.config, "server_state": self.server_state, "app_state": self.lifespan.state}
        return self.config.http_protocol_class(**state)


async def _until(condition: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:  # noqa: ASYNC110 - callbacks of uvicorn change it
        await asyncio.sleep(POLL_SECONDS)
