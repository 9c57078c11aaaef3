"""Whether costs stay flat as a server fills: with many sessions, long traces, many versions and large environments.

The rule: each cost is measured in one server before and after it has grown, as processor time of the server for one
request, and the bound is on their ratio. Only what a call touches may cost in proportion to its size.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import suppress

from tests.benchmarks.bounds import Bound
from tests.benchmarks.ours import Server, serving
from tests.benchmarks.wire import jsonrpc
from tests.benchmarks.workshop import Workshop

ONE = {"amount": 1}
FEW, MANY, BATCH = 10, 100_000, 200
TRACE, VERSIONS = 10_000, 100
MEASURED, ROUNDS = 200, 3
FLAT = 1.5  # what noise can make of 1
FIRST_FORK = 0.1
SMALL, LARGE = 1024, 10 * 2**20


def growth(workshop: Workshop) -> Iterator[Bound]:
    """Measure all of it, on SQLite, the default store."""
    with serving(workshop) as server:
        yield from _sessions(server)
    with serving(workshop) as server:
        yield from _records(server)
    with serving(workshop) as server:
        yield from _touched(server)


def _cost(server: Server, action: Callable[[int], object], times: int = MEASURED) -> float:
    """Get the server's processor time of an action in milliseconds: the least of several rounds."""
    found = []
    for _ in range(ROUNDS):
        before = server.process.cpu_seconds()
        for number in range(times):
            action(number)
        time.sleep(0.05)  # what follows an answer counts too
        found.append((server.process.cpu_seconds() - before) / times * 1000)
    return min(found)


def _ratio(name: str, before: float, after: float, limit: float = FLAT) -> Bound:
    return Bound(name, after / before, limit, detail=f"CPU {after:.2f} / {before:.2f} ms")


def _sessions(server: Server) -> Iterator[Bound]:
    """With 100,000 sessions each request costs what it did with 10."""
    first = [server.create("counter") for _ in range(FEW)]
    call = server.client.call
    actions: dict[str, Callable[[int], object]] = {
        "call": lambda n: call("run_function", {"session_id": first[n % FEW], "function": "add", "kwargs": ONE}),
        "create and close": lambda _: call("close_session", {"session_id": server.create("counter")}),
        "fork and close": lambda n: call(
            "close_session", {"session_id": call("fork_session", {"session_id": first[n % FEW]})[0]["session_id"]}
        ),
        "list of 10": lambda _: call("list_sessions", {"limit": 10}),
    }
    before = {name: _cost(server, action) for name, action in actions.items()}
    for _ in range(MANY // BATCH - 10):  # the server allows as many, and counts every second
        server.client.post([jsonrpc("create_session", {"toolpacks": ["counter"]}, n) for n in range(BATCH)])
    for name, action in actions.items():
        yield _ratio(f"{name} beside {MANY:,} sessions, compared with {FEW}", before[name], _cost(server, action))


def _records(server: Server) -> Iterator[Bound]:
    """After 10,000 records, of which 100 versions are kept, each request costs what it did after 100.

    The first fork of all these records is measured alone, because it reads them. The next ones read only what is new.
    """
    session = {"session_id": server.create("counter")}
    call = server.client.call

    def run(count: int) -> None:
        requests = [
            jsonrpc("run_function", {**session, "function": "add", "kwargs": ONE}, n) for n in range(min(BATCH, count))
        ]
        for _ in range(max(1, count // BATCH)):
            server.client.post(requests)

    def fork(_: int) -> None:
        call("close_session", {"session_id": call("fork_session", session)[0]["session_id"]})

    actions: dict[str, Callable[[int], object]] = {
        "call": lambda _: call("run_function", {**session, "function": "get"}),
        "page of the trace": lambda _: call("get_trace", {**session, "after": 50, "limit": 20}),
        "page of the path": lambda _: call("get_trace", {**session, "after": 50, "limit": 20, "path": True}),
        "fork and close": fork,
        "change, fork and close": lambda n: (
            call("run_function", {**session, "function": "add", "kwargs": ONE}),
            fork(n),
        ),
    }
    run(VERSIONS)
    before = {name: _cost(server, action) for name, action in actions.items()}
    run(TRACE)
    started = server.process.cpu_seconds()
    fork(0)
    first = (server.process.cpu_seconds() - started) / TRACE * 1000
    yield _ratio(f"first fork of {TRACE:,} records, for each, compared with a call", before["call"], first, FIRST_FORK)
    for name, action in actions.items():
        yield _ratio(f"{name} after {TRACE:,} records, compared with {VERSIONS}", before[name], _cost(server, action))


def _touched(server: Server) -> Iterator[Bound]:
    """A call on 10 MB costs no more for each byte than one on 1 KB, whose fixed cost is larger than that."""
    costs = {}
    for size in (SMALL, SMALL * 100, LARGE):
        session = server.create("counter", {"padding": size})
        call = {"session_id": session, "function": "add", "kwargs": ONE}
        times = 5 if size == LARGE else MEASURED
        costs[size] = _cost(server, lambda _, call=call: server.client.call("run_function", call), times)
        with suppress(RuntimeError):
            server.client.call("close_session", {"session_id": session})
    middle, large = ((costs[size] - costs[SMALL]) / size for size in (SMALL * 100, LARGE))
    detail = ", ".join(f"{size / 1024:,.0f} KB {cost:.2f} ms" for size, cost in costs.items())
    yield Bound("CPU of a touched byte at 10 MB, compared with 100 KB", large / middle, 2, detail=detail)
