"""The cost of telemetry for a call: a server with tracing and a server without it, in the same process.

The servers take turns, and a turn has many bursts of calls. At the end of a turn, the server sends its spans to a
receiver in another process, so the time of the turn includes all costs of its calls.
"""

import contextlib
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from unittest import mock

from tests.whole_server import Frames, WholeServer, request
from toolpack_server.features.telemetry.tracer import CallTracer
from toolpack_server.packs.loading import load_catalog
from tools.benchmarks.bounds import Bound
from tools.benchmarks.processes import UnavailableError
from tools.benchmarks.workshop import PACKS, Workshop

TURNS, BURSTS, AT_ONCE = 60, 40, 8
LIMIT = 5.0  # maximum processor time of a traced call, divided by the time of a call without tracing
RECEIVER = """
import http.server
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()
    def log_message(self, *_):
        pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(server.server_port, flush=True)
server.serve_forever()
"""


Turn = Callable[[], None]


def tracing(workshop: Workshop) -> Iterator[Bound]:
    """Measure reads and changes, with and without spans and metrics."""
    with contextlib.ExitStack() as stack:
        receiver = stack.enter_context(subprocess.Popen([sys.executable, "-c", RECEIVER], stdout=subprocess.PIPE))
        stack.callback(receiver.kill)
        assert receiver.stdout is not None
        endpoint = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{int(receiver.stdout.readline())}"}
        log = stack.enter_context(open(os.devnull, "w"))  # noqa: PTH123 - not a regular file
        stack.enter_context(contextlib.redirect_stderr(log))
        timed = _start(workshop, stack, "timed", endpoint)
        microseconds = {kind: _time(turns) for kind, turns in timed.items()}
        frames = Frames()
        with frames.watching():
            counted = _start(workshop, stack, "counted", endpoint)
            for kind, turns in counted.items():
                calls = {name: _count(frames, turn) for name, turn in turns.items()}
                texts = (
                    f"{name} {microseconds[kind][name]:.0f} µs, {calls[name]:.0f} function calls" for name in turns
                )
                ratio = microseconds[kind]["traced"] / microseconds[kind]["untraced"]
                yield Bound(f"traced {kind}, by processor", ratio, LIMIT, detail="; ".join(texts))


def _start(
    workshop: Workshop, stack: contextlib.ExitStack, folder: str, endpoint: dict[str, str]
) -> dict[str, dict[str, Turn]]:
    """Start a server with tracing and a server without it. Return their turns, by kind of call and name of server."""
    kinds: dict[str, dict[str, Turn]] = {"read": {}, "change": {}}
    for name, variables in (("untraced", {}), ("traced", endpoint)):
        with mock.patch.dict(os.environ, variables):
            settings = {"data_dir": workshop.folder / folder / name, "pack_dir": (PACKS,), "packs": "counter"}
            server = WholeServer(load_catalog((PACKS,), ("counter",)), **settings)
        stack.callback(server.close)
        session = server.rpc("create_session", toolpacks=["counter"])["session_id"]
        for kind, function, kwargs in (("read", "get", {}), ("change", "add", {"amount": 1})):
            params = {"session_id": session, "function": function, "kwargs": kwargs}
            call = request("/rpc", {"jsonrpc": "2.0", "id": 1, "method": "run_function", "params": params})
            kinds[kind][name] = partial(_turn, server, call)
    return kinds


def _turn(server: WholeServer, call: bytes) -> None:
    """Make the calls of a turn, and wait until their spans are sent."""
    for _ in range(BURSTS):
        replies = server.burst([[call]] * AT_ONCE)
        if b"".join(reply for some in replies for reply in some).count(b'"error":null}') != AT_ONCE:
            raise UnavailableError("a call was answered with an error")
    if isinstance(server.service.sessions.tracer, CallTracer):
        flush = threading.Thread(target=server.service.sessions.tracer.provider.force_flush)
        flush.start()
        flush.join()


def _time(turns: dict[str, Turn]) -> dict[str, float]:
    """Return the median processor time of a call in µs, for each server."""
    seconds_by_server: dict[str, list[float]] = {name: [] for name in turns}
    for _ in range(TURNS):
        for name, turn in turns.items():
            began = time.process_time()
            turn()
            seconds_by_server[name].append(time.process_time() - began)
    return {name: statistics.median(seconds) / BURSTS / AT_ONCE * 1e6 for name, seconds in seconds_by_server.items()}


def _count(frames: Frames, turn: Turn) -> float:
    """Return the number of Python function calls during one call."""
    turn()
    before = frames.counted.total()
    turn()
    return (frames.counted.total() - before) / BURSTS / AT_ONCE
