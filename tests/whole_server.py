"""A whole server in this process, with HTTP but without sockets, to count the work of a call without noise.

Its threads and event loop are those of a worker. Counts and measurements cover the time from a request's bytes to those
of its answer.
"""

import asyncio
import contextlib
import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from patience import PATIENCE

from toolpack_server.base.settings import Settings
from toolpack_server.observability.exposition import exposition
from toolpack_server.packs.catalog import Catalog
from toolpack_server.web.app import create_app
from toolpack_server.web.http_server import HttpServer
from toolpack_server.wiring.service import Service

IDLE_SECONDS = 3600  # the server keeps a connection open between two bursts
CHUNKED, LAST_CHUNK = b"\r\ntransfer-encoding: chunked\r\n", b"0\r\n\r\n"
TOKEN = "a-token-for-this-server"
TESTS = str(Path(__file__).parent)


TIMERS = {"deadlines", "leases", "checkpoints"}  # threads that work from time to time, independently of calls


class Frames:
    """Counts the calls of Python functions in the threads of a server that is started while it is `watching`.

    Attributes:
        counted: The number of calls since the last clearing, by file and name of the function. Functions of the tests
            aren't counted.
    """

    def __init__(self) -> None:
        self.counted = Counter[tuple[str, str]]()

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        threading.setprofile(self._note)
        try:
            yield
        finally:
            threading.setprofile(None)

    def _note(self, frame: Any, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and not code.co_filename.startswith(TESTS) and threading.current_thread().name not in TIMERS:
            self.counted[code.co_filename, code.co_qualname] += 1


def _nothing() -> None:
    pass


class Transport:
    """Transport of a connection without a socket. It passes written data to `answered`."""

    def __init__(self, answered: Callable[[bytes], None]) -> None:
        self.answered = answered
        self.protocol: Any = None  # the owner of the connection after it became a WebSocket
        self._closing = False

    def write(self, data: bytes) -> None:
        if data:  # with h11, uvicorn writes an empty piece at the end of each response
            self.answered(data)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return {"peername": ("127.0.0.1", 1), "sockname": ("127.0.0.1", 2)}.get(name, default)

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        self._closing = True

    abort = close

    def set_protocol(self, protocol: Any) -> None:
        self.protocol = protocol

    def pause_reading(self) -> None:
        pass

    resume_reading = pause_reading


class Connection:
    """A client's connection. The server writes a reply in `pieces` pieces.

    Attributes:
        begins: Called on the event loop before each request.
        finish: Called on the event loop when all requests are answered.
    """

    def __init__(self, protocol: Any, pieces: int) -> None:
        self._protocol = protocol
        self._pieces = pieces
        self._left: list[bytes] = []
        self._reply: list[bytes] = []
        self.begins = self.finish = _nothing
        self.replies: list[bytes] = []
        self._transport = Transport(self._answered)
        protocol.connection_made(self._transport)

    def send(self, requests: Sequence[bytes]) -> None:
        """Send these requests, each when the previous request is answered."""
        self._left, self.replies = [*reversed(requests)], []
        self._next()

    def _next(self) -> None:
        self.begins()
        (self._transport.protocol or self._protocol).data_received(self._left.pop())

    def _answered(self, data: bytes) -> None:
        self._reply.append(data)
        is_stream = CHUNKED in self._reply[0]
        if len(self._reply) < self._pieces or (is_stream and not data.endswith(LAST_CHUNK)):
            return
        self.replies.append(b"".join(self._reply))
        self._reply = []
        if self._left:
            asyncio.get_running_loop().call_soon(self._next)
        else:
            self.finish()


class Clients:
    """Clients of a server that runs its event loop in another thread.

    Args:
        protocol: Creates the server's end of a connection.
        pieces: The number of writes that the server uses for a reply.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, protocol: Callable[[], Any], connections: int, pieces: int = 1
    ) -> None:
        async def connect() -> list[Connection]:
            return [Connection(protocol(), pieces) for _ in range(connections)]

        self._loop = loop
        self._connections = asyncio.run_coroutine_threadsafe(connect(), loop).result(PATIENCE)

    def burst(self, requests: Sequence[Sequence[bytes]], begins: Callable[[], None] = _nothing) -> list[list[bytes]]:
        """Send several lists of requests at once, each on a separate connection, and return all replies.

        Args:
            begins: Called on the event loop before each request.
        """
        all_replied, remaining = threading.Event(), [len(requests)]

        def finished() -> None:
            remaining[0] -= 1
            if not remaining[0]:
                all_replied.set()

        def begin() -> None:
            for connection, some in zip(self._connections, requests, strict=False):
                connection.begins, connection.finish = begins, finished
                connection.send(some)

        self._loop.call_soon_threadsafe(begin)
        assert all_replied.wait(PATIENCE), "there was no answer"
        return [connection.replies for connection in self._connections[: len(requests)]]


def request(path: str, body: Mapping[str, Any], headers: Mapping[str, str] | None = None) -> bytes:
    """Return a POST request with a token, as a client sends it."""
    text = json.dumps(body, separators=(",", ":"))
    fields = {
        "Host": "127.0.0.1:8000",
        "Content-Type": "application/json",
        "Content-Length": len(text),
        "Authorization": f"Bearer {TOKEN}",
        **(headers or {}),
    }
    lines = [f"POST {path} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items())]
    return "\r\n".join([*lines, "", text]).encode()


class WholeServer:
    """The server, with the settings of a worker and an owner's token."""

    def __init__(self, catalog: Catalog, connections: int = 8, **settings: Any) -> None:
        patient = {"receive_seconds": 10_800}  # because a burst takes long on a busy machine
        self.settings = Settings(**{"tokens": f"owner:{TOKEN}", "log_calls": "json", **patient, **settings})
        self.service = Service(self.settings, catalog)
        self._app = create_app(self.service)
        self._gateway = self._app.state.gateway
        self._server = HttpServer(self._app, self.settings, self._gateway.connections)
        self._server.config.load()
        self._server.config.timeout_keep_alive = IDLE_SECONDS
        driver = self.service.sessions.queues.threads.drive(self._server.loop_factory())
        self._loop, self._end, self._ready = driver.loop, asyncio.Event(), threading.Event()
        self._thread = threading.Thread(target=driver.run, args=[self._serve()], daemon=True)
        self._thread.start()
        assert self._ready.wait(PATIENCE)
        config, state = self._server.config, self._server.server_state
        make = partial(config.http_protocol_class, config=config, server_state=state, app_state={})
        self.burst = Clients(driver.loop, make, connections).burst

    async def _serve(self) -> None:
        async with self._gateway.lifespan(self._app):
            self._ready.set()
            await self._end.wait()

    def post(self, path: str, body: Mapping[str, Any], headers: Mapping[str, str] | None = None) -> Any:
        """Send one request, and return the JSON of its answer."""
        ((reply,),) = self.burst([[request(path, body, headers)]])
        return json.loads(reply.partition(b"\r\n\r\n")[2])

    def rpc(self, method: str, **params: Any) -> Any:
        return self.post("/rpc", {"jsonrpc": "2.0", "id": 1, "method": method, "params": params})["result"]

    def commits(self) -> float:
        """Return the number of commits to the store so far."""
        text = exposition(self.service.metrics, None).decode()
        return next(float(line.split()[-1]) for line in text.splitlines() if "commit_seconds_count" in line)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join(PATIENCE)
