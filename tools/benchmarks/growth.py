"""The growth of costs as a server fills: with many sessions, long traces, many versions and large environments.

The cost of a request is the server's processor time. It is measured with little and with much data, in turns, and the
bound limits the ratio of the two costs. Only data that a request uses may make it more expensive.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace

from tools.benchmarks.bounds import Bound
from tools.benchmarks.ours import Server, serving
from tools.benchmarks.wire import jsonrpc
from tools.benchmarks.workshop import Workshop

ONE = {"amount": 1}
FEW, MANY, BATCH = 10, 100_000, 200  # the server limits the size of a batch
TRACE, VERSIONS = 10_000, 100
REPETITIONS, ROUNDS = 200, 3
MAX_GROWTH = 1.5  # the expected ratio is 1; the rest is noise
MAX_FIRST_PAGE_RATIO = 0.1
FORK_DEPTH = 50
SMALL, LARGE = 1024, 10 * 2**20

Action = Callable[[int], object]


def growth(workshop: Workshop) -> Iterator[Bound]:
    """Measure all growth bounds, on SQLite, the default store."""
    yield from _sessions(workshop)
    with serving(workshop) as server:
        yield from _records(server)
    with serving(workshop) as server:
        yield from _touched(server)


def costs(pairs: Sequence[tuple[Server, Action]], times: int = REPETITIONS) -> list[float]:
    """Return the server's processor time of each action in milliseconds: the minimum of several rounds.

    The actions take turns, so that other load on the machine affects all of them.
    """
    times_by_action: list[list[float]] = [[] for _ in pairs]
    for _ in range(ROUNDS):
        for (server, action), costs_of_action in zip(pairs, times_by_action, strict=True):
            before = server.process.cpu_seconds()
            for number in range(times):
                action(number)
            time.sleep(0.05)  # work that the server does after the answer counts, too
            costs_of_action.append((server.process.cpu_seconds() - before) / times * 1000)
    return [min(costs_of_action) for costs_of_action in times_by_action]


def _ratio(name: str, before: float, after: float, limit: float = MAX_GROWTH) -> Bound:
    return Bound(name, after / before, limit, detail=f"CPU {after:.2f} / {before:.2f} ms")


def _sessions(workshop: Workshop) -> Iterator[Bound]:
    """Compare requests on a server with 100,000 sessions with the same requests on a server with 10 sessions."""
    other = replace(workshop, folder=workshop.folder / "few")
    other.folder.mkdir()
    with serving(other) as few, serving(workshop) as many:
        actions = [_beside_others(few), _beside_others(many)]
        for _ in range(MANY // BATCH - 10):
            many.client.post([jsonrpc("create_session", {"toolpacks": ["counter"]}, n) for n in range(BATCH)])
        for name in actions[0]:
            before, after = costs([(few, actions[0][name]), (many, actions[1][name])])
            yield _ratio(f"{name} beside {MANY:,} sessions, compared with {FEW}", before, after)


def _beside_others(server: Server) -> dict[str, Action]:
    """Create some sessions, and return actions on them."""
    first = [server.create("counter") for _ in range(FEW)]
    call = server.client.call
    return {
        "call": lambda n: call("run_function", {"session_id": first[n % FEW], "function": "add", "kwargs": ONE}),
        "create and close": lambda _: call("close_session", {"session_id": server.create("counter")}),
        "fork and close": lambda n: _fork(server, first[n % FEW]),
        "list of 10": lambda _: call("list_sessions", {"limit": 10}),
    }


def _fork(server: Server, session_id: str) -> None:
    (fork,) = server.client.call("fork_session", {"session_id": session_id})
    server.client.call("close_session", {"session_id": fork["session_id"]})


def _records(server: Server) -> Iterator[Bound]:
    """Compare requests in a session with 10,000 records with the same requests in a session with 100 records.

    The first page of a session's path reads all records, so it is measured alone. Later pages read only new records.
    """
    few, many = (_after_records(server, count) for count in (VERSIONS, TRACE))
    deep = _deep(server)
    deep(0)
    started = server.process.cpu_seconds()
    many["page of the path"](0)
    first = (server.process.cpu_seconds() - started) / TRACE * 1000
    for name in few:
        before, after = costs([(server, few[name]), (server, many[name])])
        yield _ratio(f"{name} after {TRACE:,} records, compared with {VERSIONS}", before, after)
        if name == "call":
            yield _ratio(
                f"first page of {TRACE:,} records' path, for each, compared with a call",
                after,
                first,
                MAX_FIRST_PAGE_RATIO,
            )
    before, after = costs([(server, few["page of the path"]), (server, deep)])
    yield _ratio(f"page of a path through {FORK_DEPTH} sessions, compared with one", before, after)


def _deep(server: Server) -> Action:
    """Create a chain of forks with two records each. Return an action that reads a page of the last fork's path."""
    call, session_id = server.client.call, server.create("counter")
    for _ in range(FORK_DEPTH):
        for _ in range(VERSIONS // FORK_DEPTH):
            call("run_function", {"session_id": session_id, "function": "add", "kwargs": ONE})
        (fork,) = call("fork_session", {"session_id": session_id})
        session_id = fork["session_id"]
    return lambda _: call("get_trace", {"session_id": session_id, "after": 50, "limit": 20, "path": True})


def _after_records(server: Server, count: int) -> dict[str, Action]:
    """Create a session with this number of records, and return actions on it."""
    session = {"session_id": server.create("counter")}
    call = server.client.call
    change = {**session, "function": "add", "kwargs": ONE}
    for start in range(0, count, BATCH):
        numbers = range(min(BATCH, count - start))
        server.client.post([jsonrpc("run_function", change, number) for number in numbers])
    page = {**session, "after": 50, "limit": 20}

    def change_and_fork(_: int) -> None:
        call("run_function", change)
        _fork(server, session["session_id"])

    return {
        "call": lambda _: call("run_function", {**session, "function": "get"}),
        "page of the trace": lambda _: call("get_trace", page),
        "page of the path": lambda _: call("get_trace", {**page, "path": True}),
        "fork and close": lambda _: _fork(server, session["session_id"]),
        "change, fork and close": change_and_fork,
    }


def _touched(server: Server) -> Iterator[Bound]:
    """Compare the cost per byte of a call on 10 MB and on 100 KB. The cost of a call on 1 KB is subtracted."""
    cost_by_size = {}
    for size in (SMALL, SMALL * 100, LARGE):
        session = server.create("counter", {"padding": size})
        call = {"session_id": session, "function": "add", "kwargs": ONE}
        times = 5 if size == LARGE else REPETITIONS
        (cost_by_size[size],) = costs([(server, lambda _, call=call: server.client.call("run_function", call))], times)
        with suppress(RuntimeError):
            server.client.call("close_session", {"session_id": session})
    middle, large = ((cost_by_size[size] - cost_by_size[SMALL]) / size for size in (SMALL * 100, LARGE))
    detail = ", ".join(f"{size / 1024:,.0f} KB {cost:.2f} ms" for size, cost in cost_by_size.items())
    yield Bound("CPU of a touched byte at 10 MB, compared with 100 KB", large / middle, 2, detail=detail)
