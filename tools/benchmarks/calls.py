"""The processor time of a call without sockets, compared with bare Starlette in the same process.

Everything but the system's sockets is measured. The servers take turns, and a turn has many bursts of calls. The result
is the 5th percentile of all bursts. Most bursts are slower, because of other load on the machine. Bursts below the 5th
percentile may come from errors of the system's CPU clock.
"""

import asyncio
import contextlib
import gc
import importlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from unittest import mock

import uvicorn
from uvicorn.server import ServerState
from whole_server import IDLE_SECONDS, Clients, WholeServer, request

from toolpack_server.packs.loading import load_catalog
from tools.benchmarks.bounds import Bound
from tools.benchmarks.processes import UnavailableError
from tools.benchmarks.workshop import APPS, PACKS, Workshop

BURSTS = 600
AT_ONCE = 8  # calls of a burst
TURN_BURSTS = 50
# Limits relative to bare Starlette on h11: the minimum call rate with 8 connections, and the maximum processor time
# with one connection.
MIN_RATES = {"read": 0.8, "change": 0.6}
MAX_RATIO = 2.0
BARES = {"h11": ("asyncio", "h11"), "uvloop and httptools": ("uvloop", "httptools")}

Burst = Callable[[], list[list[bytes]]]


def calls(workshop: Workshop) -> Iterator[Bound]:
    """Measure reads and changes that arrive at once, and one after the other on one connection."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)  # the thresholds of a worker
    with contextlib.ExitStack() as stack:
        bursts: dict[tuple[str, str], Burst] = {}
        log = stack.enter_context(open(os.devnull, "w"))  # noqa: PTH123 - not a regular file
        stack.enter_context(contextlib.redirect_stderr(log))
        for name, (loop, http) in BARES.items():
            clients = _bare(loop, http)
            bursts |= _two_bursts(f"bare on {name}", "bare", clients.burst, _call("0" * 32, "add", amount=1))
        server = WholeServer(
            load_catalog((PACKS,), ("counter",)), data_dir=workshop.folder / "calls", pack_dir=(PACKS,), packs="counter"
        )
        stack.callback(server.close)
        session = server.rpc("create_session", toolpacks=["counter"])["session_id"]
        bursts |= _two_bursts("ours", "read", server.burst, _call(session, "get"))
        bursts |= _two_bursts("ours", "change", server.burst, _call(session, "add", amount=1))
        microseconds = _measure(bursts)
    for arrival in ("at once", "alone"):
        bares = {name: microseconds[f"bare on {name}", f"bare {arrival}"] for name in BARES}
        for kind, at_least in MIN_RATES.items():
            ours = microseconds["ours", f"{kind} {arrival}"]
            detail = f"{ours:.0f} µs; bare " + ", ".join(f"{value:.0f} on {name}" for name, value in bares.items())
            if arrival == "alone":
                name = f"processor of a {kind}, one connection"
                yield Bound(name, ours / bares["h11"], MAX_RATIO, detail=detail)
            else:
                name = f"{AT_ONCE} connections, {kind}, by processor"
                yield Bound(name, bares["h11"] / ours, at_least, at_least=True, detail=detail)


def _call(session: str, function: str, **kwargs: Any) -> bytes:
    params = {"session_id": session, "function": function, "kwargs": kwargs}
    return request("/rpc", {"jsonrpc": "2.0", "id": 1, "method": "run_function", "params": params})


def _two_bursts(
    server: str, kind: str, burst: Callable[..., list[list[bytes]]], call: bytes
) -> dict[tuple[str, str], Burst]:
    """Return two bursts of the same calls: all calls at once on several connections, and one call after another."""
    return {
        (server, f"{kind} at once"): partial(burst, [[call]] * AT_ONCE),
        (server, f"{kind} alone"): partial(burst, [[call] * AT_ONCE]),
    }


def _measure(bursts: dict[tuple[str, str], Burst]) -> dict[tuple[str, str], float]:
    """Return the processor time of a call in µs, for each kind of burst."""
    seconds_by_burst: dict[tuple[str, str], list[float]] = {name: [] for name in bursts}
    for _ in range(BURSTS // TURN_BURSTS):
        for name, burst in bursts.items():
            for _ in range(TURN_BURSTS):  # many bursts, because the first ones find other data in the CPU caches
                began = time.process_time()
                replies = burst()
                seconds_by_burst[name].append(time.process_time() - began)
                correct = b"".join(reply for some in replies for reply in some).count(b'"error":null}')
                if correct != AT_ONCE:
                    raise UnavailableError(f"{name}: only {correct} of {AT_ONCE} calls were answered without an error")
    return {name: sorted(seconds)[len(seconds) // 20] / AT_ONCE * 1e6 for name, seconds in seconds_by_burst.items()}


def _bare(loop_name: str, http: str) -> Clients:
    """Start bare Starlette in a thread, and return its clients."""
    with mock.patch.dict(sys.modules, serving=mock.Mock()), mock.patch.object(sys, "path", [str(APPS), *sys.path]):
        sys.modules.pop("serve_bare", None)
        module = importlib.import_module("serve_bare")
        app = sys.modules["serving"].serve.call_args.args[0]
    del module
    headers = {"server_header": False, "date_header": False, "proxy_headers": False}
    others = {"timeout_keep_alive": IDLE_SECONDS, "access_log": False, "log_config": None, "lifespan": "off"}
    config = uvicorn.Config(app, http=http, loop=loop_name, ws="none", **headers, **others)
    config.load()
    loop = config.get_loop_factory()()
    asyncio.set_event_loop(None)
    threading.Thread(target=loop.run_forever, name=f"bare {http}", daemon=True).start()
    make = partial(config.http_protocol_class, config=config, server_state=ServerState(), app_state={})
    return Clients(loop, make, AT_ONCE, pieces=2)
