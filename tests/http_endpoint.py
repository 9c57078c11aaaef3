"""An HTTP server in this process, for tests of its limits on connections, and raw sockets to it.

Tests run with each of uvicorn's HTTP parsers.
"""

import asyncio
import contextlib
import importlib.util
import json
import socket
import threading
from unittest import mock

import serving
import uvicorn
from http_server import Listening
from serving import CATALOG, result_of
from uvicorn.protocols.http import auto
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from toolpack_server.base.settings import Settings
from toolpack_server.web import http_server
from toolpack_server.web.app import create_app
from toolpack_server.wiring.service import Service

HEAD = b"POST /rpc HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
PING = b'{"jsonrpc": "2.0", "method": "list_sessions", "id": 1}'


def request(method, number=1, **params):
    return {"jsonrpc": "2.0", "id": number, "method": method, "params": params}


PROTOCOLS = {"h11": H11Protocol, "httptools": HttpToolsProtocol}
LOOPS = {"h11": "asyncio", "httptools": "uvloop"}  # the modules httptools and uvloop are installed together


def http_server_on(http):
    """Return the module with the protocol classes, loaded as if uvicorn had found this HTTP parser."""
    spec = importlib.util.spec_from_file_location(f"http_server_on_{http}", http_server.__file__)
    module = importlib.util.module_from_spec(spec)
    original, auto.AutoHTTPProtocol = auto.AutoHTTPProtocol, PROTOCOLS[http]
    try:
        spec.loader.exec_module(module)
    finally:
        auto.AutoHTTPProtocol = original
    return module


class Endpoint:
    """A server in this process, with its limits on connections."""

    def __init__(self, server, app, protocol, port):
        self._server, self.app, self.port = server, app, port
        self._protocol = protocol
        self.http = serving.http_client(f"http://127.0.0.1:{port}")

    def rpc(self, method, **params):
        return result_of(self.http.post("/rpc", json=request(method, **params)).content)

    @property
    def loop(self):
        return self._server.loop

    def open(self):
        return set(self._server.server_state.connections)

    def connections(self):
        return len(self.open())

    def pass_time(self, seconds, step=0.025):
        """Wait in small steps, so that the event loop has as many turns as in these seconds on an idle machine."""
        for _ in range(round(seconds / step)):
            asyncio.run_coroutine_threadsafe(asyncio.sleep(step), self._server.loop).result(serving.PATIENCE)

    def cancel_requests(self):
        """Cancel all requests, as a stopping server does when its drain time is over."""

        def cancel():
            for task in [*self._server.server_state.tasks]:
                task.cancel()

        self._server.loop.call_soon_threadsafe(cancel)  # only the loop's thread changes the set

    @contextlib.contextmanager
    def hurried(self, **limits):
        """Set shorter time limits for later requests only, so that the test's preparations can't miss them."""
        with mock.patch.object(self._protocol, "settings", self._protocol.settings.model_copy(update=limits)):
            yield

    def connect(self, *pieces):
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=serving.PATIENCE)
        connection.sendall(b"".join(pieces))
        return connection


@contextlib.contextmanager
def served(http, keep_alive=5, catalog=CATALOG, **limits):
    settings = Settings(store="memory:", **limits)
    app = create_app(Service(settings, catalog))
    protocol_class = http_server_on(http).limited_protocol(settings, app.state.gateway.connections)
    assert [name for name, protocol in PROTOCOLS.items() if issubclass(protocol_class, protocol)] == [http]
    config = uvicorn.Config(
        app,
        port=0,
        log_level="error",
        access_log=False,
        http=protocol_class,
        loop=LOOPS[http],
        ws="none",
        timeout_keep_alive=keep_alive,
    )
    server = Listening(config)
    listener = server.config.bind_socket()
    thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
    thread.start()
    assert server.listens.wait(serving.PATIENCE)
    endpoint = Endpoint(server, app, protocol_class, listener.getsockname()[1])
    try:
        with endpoint.http:
            yield endpoint
    finally:
        server.should_exit = True
        thread.join(serving.PATIENCE)
        listener.close()


def answer(connection):
    """Read one answer, and return its status and its JSON."""
    return read(connection)[1:]


def read(connection, *, more_follows=False):
    """Read one answer, and return its head, status and JSON.

    If another answer may follow, read the head byte by byte, so that no byte of the next answer is lost.
    """
    text = b""
    while b"\r\n\r\n" not in text:
        data = connection.recv(1 if more_follows else 65536)
        assert data, text
        text += data
    head, _, body = text.partition(b"\r\n\r\n")
    length = next((int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")), 0)
    while len(body) < length:
        data = connection.recv(length - len(body) if more_follows else 65536)
        assert data, text
        body += data
    assert len(body) == length, "more than one answer"
    return head.lower(), int(head.split()[1]), json.loads(body) if body else None


def is_ended(connection):
    try:
        return connection.recv(65536) == b""
    except ConnectionResetError:
        return True


def check_refusal(reply, status):
    assert reply[0] == status
    message = reply[1]["error"].pop("message")
    assert reply[1] == {"jsonrpc": "2.0", "id": None, "error": {"code": -32000, "data": {"status": status}}}
    return message
