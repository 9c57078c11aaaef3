"""Blobs in a real S3: moto's server, behind a proxy that injects faults.

S3 names a Python in which `toolpack-server[blobs-s3]` is installed. Without it the tests are skipped.
"""

import contextlib
import http.client
import os
import re
import signal
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import redis
import redis_server
from command_line import run
from patience import PATIENCE
from server_process import served, with_modules
from serving import refused, wait_until

PYTHON = os.environ.get("S3", "")
ALL_OUTSIDE = "from toolpack_server.features.stores.blobs import store\nstore.opened.__defaults__ = (1,)\n"
pytestmark = [pytest.mark.heavy, pytest.mark.skipif(not PYTHON, reason="S3 names no Python with moto[server]")]


class Faults:
    """The faults that the proxy injects into requests for objects.

    Attributes:
        unavailable: The number of next requests that the proxy answers with 503.
        slow: The delay of each answer, in seconds.
        hold: Whether the proxy withholds S3's answers to writes until it is closed. S3 has processed these writes.
    """

    def __init__(self):
        self.unavailable, self.slow, self.hold = 0, 0.0, False
        self.held, self.closed = threading.Event(), threading.Event()
        self.refused = 0
        self.seen = []


class Proxy(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def forward(self):
        faults, body = self.server.faults, self.rfile.read(int(self.headers.get("content-length", 0)))
        faults.seen.append(f"{self.command} {self.path}")
        if faults.unavailable > 0:
            faults.unavailable -= 1
            faults.refused += 1
            self.reply(503, {}, b"")
            return
        connection = http.client.HTTPConnection("127.0.0.1", self.server.behind)
        connection.request(self.command, self.path, body, dict(self.headers))
        answer = connection.getresponse()
        status, headers, text = answer.status, dict(answer.headers), answer.read()
        connection.close()
        time.sleep(faults.slow)
        if faults.hold and self.command == "PUT":
            faults.held.set()
            faults.closed.wait(PATIENCE)
        self.reply(status, headers, text)

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = forward  # noqa: N815 - http.server calls these names

    def reply(self, status, headers, text):
        with contextlib.suppress(OSError):
            self.send_response_only(status)
            for name, value in headers.items():
                if name.lower() not in {"content-length", "transfer-encoding", "connection"}:
                    self.send_header(name, value)
            length = headers.get("Content-Length", "0") if self.command == "HEAD" else str(len(text))
            self.send_header("Content-Length", length)
            self.end_headers()
            self.wfile.write(b"" if self.command == "HEAD" else text)

    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def s3():
    """Start an S3 server, and yield its port."""
    port = redis_server.free_port()
    command = [PYTHON, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def is_there():
        assert process.poll() is None
        connection = http.client.HTTPConnection("127.0.0.1", port)
        with contextlib.suppress(OSError), contextlib.closing(connection):
            connection.request("PUT", "/bucket")
            return connection.getresponse().status == 200
        return False

    wait_until(is_there, "S3")
    yield port
    process.send_signal(signal.SIGKILL)
    process.wait(PATIENCE)


@pytest.fixture
def proxy(s3):
    server = ThreadingHTTPServer(("127.0.0.1", 0), Proxy)
    server.behind, server.faults = s3, Faults()
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.faults.closed.set()
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def variables(proxy, tmp_path):
    return {
        "TOOLPACK_BLOBS_URL": f"s3://bucket/{tmp_path.name}",
        "TOOLPACK_CACHE_BYTES": "0",
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{proxy.server_port}",
        "AWS_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        **with_modules(tmp_path, sitecustomize=ALL_OUTSIDE),
    }


def objects_in(proxy, tmp_path):
    connection = http.client.HTTPConnection("127.0.0.1", proxy.behind)
    connection.request("GET", f"/bucket?list-type=2&prefix={tmp_path.name}/")
    with contextlib.closing(connection):
        return re.findall(r"<Key>([^<]*\.[^<]*)</Key>", connection.getresponse().read().decode())


def test_object_store_faults_cause_rejections_or_delays(proxy, variables, tmp_path):
    with served(tmp_path, **variables) as server:
        session_id = server.rpc("create_session", toolpacks=["ledger"])["session_id"]
        assert server.call(session_id, "add", amount=1)["result"] == 1
        proxy.faults.unavailable = 3  # fewer than the number of retries
        assert server.call(session_id, "add", amount=2)["result"] == 3
        assert proxy.faults.refused == 3
        proxy.faults.slow = 0.5
        assert server.call(session_id, "add", amount=3)["result"] == 6
        proxy.faults.slow = 0.0
        proxy.faults.unavailable = 10**9
        error = refused(-32006, server.call, session_id, "add", {"call_id": "again"}, amount=4)
        assert "object store can't be used now" in error.message
        assert server.call(session_id, "total")["result"] == 6  # This worker has the blobs in its cache.
        proxy.faults.unavailable = 0
        assert server.call(session_id, "add", {"call_id": "again"}, amount=4)["result"] == 10
        assert server.rpc("close_session", session_id=session_id)
        wait_until(lambda: len(objects_in(proxy, tmp_path)) <= 1, "deletion")  # The initial environment may remain.
        # Many deletions in one request.
        assert any(request.startswith("POST") and "delete" in request for request in proxy.faults.seen)


def test_kill_between_upload_and_commit_loses_nothing(proxy, variables, tmp_path):
    with served(tmp_path, **variables) as server:
        session_id = server.rpc("create_session", toolpacks=["ledger"])["session_id"]
        assert server.call(session_id, "add", amount=1)["result"] == 1
        proxy.faults.hold = True
        with ThreadPoolExecutor(1) as thread:
            unanswered = thread.submit(server.call, session_id, "add", {"call_id": "lost"}, amount=2)
            assert proxy.faults.held.wait(PATIENCE)
            server.kill()
            assert unanswered.exception(PATIENCE) is not None
    proxy.faults.hold = False
    proxy.faults.closed.set()
    with served(tmp_path, **variables) as server:
        assert server.call(session_id, "total")["result"] == 1
        assert server.call(session_id, "add", {"call_id": "lost"}, amount=2)["result"] == 3
        assert server.call(session_id, "add", {"call_id": "lost"}, amount=2)["result"] == 3
        server.kill()
    output = run("blobs", "--check", "--data-dir", tmp_path, **variables).stdout
    assert re.fullmatch(r"4 named, 0 missing, 1 unnamed\n", output), output  # 3 versions of a part, 1 of another


def test_two_workers_on_redis_share_one_bucket(variables, tmp_path, redis_url, request):
    url = redis_server.emptied(redis_url)
    request.addfinalizer(lambda: redis_server.emptied(url))  # Other tests expect no blobs outside.
    shared = {**variables, "TOOLPACK_SECRET_KEY": "k" * 32}
    with served(tmp_path, "--workers", "2", "--store", url, **shared) as server:
        sessions = [server.rpc("create_session", toolpacks=["ledger"])["session_id"] for _ in range(8)]
        with ThreadPoolExecutor(8) as threads:
            for amount in range(1, 6):
                added = threads.map(lambda each: server.call(each, "add", amount=1), sessions)
                assert [each["result"] for each in added] == [amount] * 8
        forks = server.rpc("fork_session", session_id=sessions[0], version=2, count=2)
        assert [server.call(each["session_id"], "total")["result"] for each in forks] == [2, 2]
        stored = redis.Redis.from_url(url)
        bodies = [stored.get(key) for key in stored.keys("toolpack:blob:*") if b"recipe" not in key]
        assert len(bodies) == 2 + 8 * 5  # All sessions share their initial blobs.
        assert all(body.startswith(b"\0outside:") for body in bodies)
        stored.close()
        output = run("blobs", "--check", "--store", url, **shared).stdout
        assert re.match(r"42 named, 0 missing, ", output), output
