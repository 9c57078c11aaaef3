"""A complete server in this process: it listens on a port in a thread, or restarts for every request."""

import asyncio
import contextlib
import socket
import threading
from collections.abc import Iterator

import httpx
import uvicorn
from patience import PATIENCE

from toolpack_server.base.settings import Settings
from toolpack_server.packs.catalog import Catalog
from toolpack_server.processes.listen import listen
from toolpack_server.web.app import create_app
from toolpack_server.wiring.service import Service


class Listening(uvicorn.Server):
    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listens = threading.Event()
        self.loop: asyncio.AbstractEventLoop | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.loop = asyncio.get_running_loop()
        self.listens.set()


@contextlib.contextmanager
def running(catalog: Catalog, **settings) -> Iterator[str]:
    """Serve on a free port, and yield the URL."""
    app = create_app(Service(Settings(**settings), catalog))
    config = uvicorn.Config(app, log_level="error", access_log=False, ws="none")
    server, listener = Listening(config), listen("127.0.0.1", 0)
    thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
    thread.start()
    try:
        assert server.listens.wait(PATIENCE), "the server did not start"
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(PATIENCE)
        listener.close()


class RestartingTransport(httpx.BaseTransport):
    """A transport of the client that starts the application for each request and stops it afterwards.

    So only data in the store survives from one request to the next.
    """

    def __init__(self, catalog: Catalog, settings: Settings) -> None:
        self._catalog = catalog
        self._settings = settings
        self.starts = 0

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        return asyncio.run(self._answer(request))

    async def _answer(self, request: httpx.Request) -> httpx.Response:
        self.starts += 1
        app = create_app(Service(self._settings, self._catalog))
        content = request.read()
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=str(request.url)) as http,
        ):
            reply = await http.request(request.method, request.url, headers=request.headers, content=content)
        return httpx.Response(reply.status_code, headers=reply.headers, content=reply.content)
