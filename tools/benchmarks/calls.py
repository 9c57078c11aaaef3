"""The processor time of a call without sockets, compared with bare Starlette in the same process.

Only the system's sockets are left out. Each server gets bursts of calls in turn. Of hundreds of bursts, the one at the
5th percentile counts: other load on the machine only slows the others, and the system's CPU clock errs now and then.
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
AT_ONCE = 8
WARM = 50
# The limits relative to bare Starlette on h11: a lower limit of the call rate with 8 connections, and an upper limit of
# the processor time with one.
LIMITS = {"read": 0.8, "change": 0.6}
ALONE = 2.0
BARES = {"h11": ("asyncio", "h11"), "uvloop and httptools": ("uvloop", "httptools")}

Burst = Callable[[], list[list[bytes]]]


def calls(workshop: Workshop) -> Iterator[Bound]:
    """Measure reads and changes that arrive at once, and one after the other on one connection."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)  # as in a worker
    with contextlib.ExitStack() as closing:
        bursts: dict[tuple[str, str], Burst] = {}
        log = closing.enter_context(open(os.devnull, "w"))  # noqa: PTH123 - not a regular file
        closing.enter_context(contextlib.redirect_stderr(log))
        for name, (loop, http) in BARES.items():
            clients = _bare(loop, http)
            bursts |= _both(f"bare on {name}", "bare", clients.burst, _call("0" * 32, "add", amount=1))
        server = WholeServer(
            load_catalog((PACKS,), ("counter",)), data_dir=workshop.folder / "calls", pack_dir=(PACKS,), packs="counter"
        )
        closing.callback(server.close)
        session = server.rpc("create_session", toolpacks=["counter"])["session_id"]
        bursts |= _both("ours", "read", server.burst, _call(session, "get"))
        bursts |= _both("ours", "change", server.burst, _call(session, "add", amount=1))
        took = _least(bursts)
    for how in ("at once", "alone"):
        bares = {name: took[f"bare on {name}", f"bare {how}"] for name in BARES}
        for kind, at_least in LIMITS.items():
            ours = took["ours", f"{kind} {how}"]
            detail = f"{ours:.0f} µs; bare " + ", ".join(f"{value:.0f} on {name}" for name, value in bares.items())
            if how == "alone":
                name = f"processor of a {kind}, one connection"
                yield Bound(name, ours / bares["h11"], ALONE, detail=detail)
            else:
                name = f"{AT_ONCE} connections, {kind}, by processor"
                yield Bound(name, bares["h11"] / ours, at_least, at_least=True, detail=detail)


def _call(session: str, function: str, **kwargs: Any) -> bytes:
    params = {"session_id": session, "function": function, "kwargs": kwargs}
    return request("/rpc", {"jsonrpc": "2.0", "id": 1, "method": "run_function", "params": params})


def _both(server: str, kind: str, burst: Callable[..., list[list[bytes]]], call: bytes) -> dict[tuple[str, str], Burst]:
    """Return two bursts with the same number of calls: at once, and one after the other."""
    return {
        (server, f"{kind} at once"): partial(burst, [[call]] * AT_ONCE),
        (server, f"{kind} alone"): partial(burst, [[call] * AT_ONCE]),
    }


def _least(bursts: dict[tuple[str, str], Burst]) -> dict[tuple[str, str], float]:
    """Return about the least processor time of a call, in µs, for each burst. The bursts take turns."""
    took: dict[tuple[str, str], list[float]] = {name: [] for name in bursts}
    for _ in range(BURSTS // WARM):
        for name, burst in bursts.items():
            for _ in range(WARM):  # the first bursts find another server's data in the CPU caches
                began = time.process_time()
                replies = burst()
                took[name].append(time.process_time() - began)
                right = b"".join(reply for some in replies for reply in some).count(b'"error":null}')
                if right != AT_ONCE:
                    raise UnavailableError(f"{name}: of {AT_ONCE} calls {right} were answered without an error")
    return {name: sorted(seconds)[len(seconds) // 20] / AT_ONCE * 1e6 for name, seconds in took.items()}


def _bare(loop_name: str, http: str) -> Clients:
    """Return clients of bare Starlette."""
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
