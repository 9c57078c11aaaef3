"""The cost of databases and files in a world, from 100 KB to 50 MB, compared with an environment of 110 KB of objects.

The unit "A" is the cost of a change in AgentDojo's workspace, which has 110 KB. A cost is the server's processor time.
It is measured by turns with A, so that other load on the machine affects both. Bounds are ratios to A, except the
bounds of reads from outside a call, which are in milliseconds.
"""

import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from functools import partial
from itertools import count

from tools.benchmarks.bounds import Bound
from tools.benchmarks.growth import Action, costs
from tools.benchmarks.ours import AGENTDOJO, Server, serving
from tools.benchmarks.workshop import Workshop

SIZES = {"100 KB": 10**5, "1 MB": 10**6, "10 MB": 10**7, "50 MB": 5 * 10**7}
FIRST_CHANGE = {"100 KB": 2.5, "1 MB": 2.5, "10 MB": 6, "50 MB": 25}
READERS_MS = {"100 KB": 15, "1 MB": 20, "10 MB": 150, "50 MB": 500}
REPETITIONS, FEW_REPETITIONS, FORKED = 200, 5, 5
VERSIONS, OLD_CHANGES = 60, 300
LAZY_BYTES = 2**18
LAZY_READERS_MS = 20
LAZY = {"read": 2.5, "change": 0.1, "fork": 0.2}
FORKS = 1000
PAPERS = 1000

SUITE, FUNCTION, KWARGS = AGENTDOJO["110 KB"]


def worlds(workshop: Workshop) -> Iterator[Bound]:
    """Measure the bounds of databases, files and objects on SQLite, the default store."""
    with serving(workshop) as server:
        objects = _Session(server, server.create(f"agentdojo-{SUITE}"), FUNCTION, KWARGS)
        for name, size in SIZES.items():
            yield from _database(server, objects, name, size)
        yield from _files(server, objects)
    yield from _objects(workshop)


class _Session:
    """A session, and a change to make in it."""

    def __init__(self, server: Server, session_id: str, function: str, kwargs: dict[str, object]) -> None:
        self.server = server
        self.id = session_id
        self._change = {"function": function, "kwargs": kwargs}

    def change(self, _: int = 0) -> None:
        self.server.client.call("run_function", {"session_id": self.id, **self._change})

    def call(self, function: str, _: int = 0, **kwargs: object) -> None:
        self.server.client.call("run_function", {"session_id": self.id, "function": function, "kwargs": kwargs})

    def forks(self, number: int) -> list[str]:
        forks = self.server.client.call("fork_session", {"session_id": self.id, "count": number})
        return [fork["session_id"] for fork in forks]

    def close(self, session_ids: list[str]) -> None:
        for session_id in session_ids:
            self.server.client.call("close_session", {"session_id": session_id})


def _compare(name: str, objects: _Session, action: Action, limit: float, times: int = REPETITIONS) -> Bound:
    one, other = costs([(objects.server, objects.change), (objects.server, action)], times)
    return Bound(name, other / one, limit, unit=" A", detail=f"CPU {other:.2f} / {one:.2f} ms")


def _database(server: Server, objects: _Session, name: str, size: int) -> Iterator[Bound]:
    books = _Session(server, server.create("books", {"size": size}), "order", {"product": 7})
    yield _new_forks(f"{FORKS:,} forks of {name}, new", objects, books, 1.8)
    yield _bytes(f"bytes of a new fork of {name}", server, partial(books.forks, 50), 50, 1.6)
    changes = partial(_repeat, books.change, VERSIONS)
    yield _bytes(f"bytes of a version of {name}", server, changes, VERSIONS, 12)
    yield _bytes(f"bytes of a fork of {name} after {VERSIONS} changes", server, partial(books.forks, 50), 50, 2.7)
    yield _compare(f"change of two rows in {name}", objects, books.change, 1.25)
    yield _compare(f"read in {name}", objects, partial(books.call, "stock", product=7), 0.7)
    yield _compare(f"failed call in {name}", objects, partial(books.call, "order", product=7, fails=True), 1)
    yield _first_changes(f"first change in a fork of {name}", objects, books, FIRST_CHANGE[name])
    _repeat(books.change, OLD_CHANGES)
    _repeat(objects.change, OLD_CHANGES)
    yield _new_forks(f"{FORKS:,} forks of {name}, after {OLD_CHANGES} changes", objects, books, 2.6)
    yield from _readers(name, books, "/books/db/orders/17", READERS_MS[name])
    books.close([books.id])


def _repeat(action: Action, times: int, _: int = 0) -> None:
    for number in range(times):
        action(number)


def _new_forks(name: str, objects: _Session, books: _Session, limit: float) -> Bound:
    """Measure the creation of many forks. They are closed after the measurement."""

    def create_forks(session: _Session, _: int) -> None:
        forks[session].append(session.forks(FORKS // FEW_REPETITIONS))

    forks: dict[_Session, list[list[str]]] = {objects: [], books: []}
    one, other = costs([(books.server, partial(create_forks, session)) for session in forks], FEW_REPETITIONS)
    for session, new_forks in forks.items():
        for session_ids in new_forks:
            session.close(session_ids)
    detail = f"CPU {other * FEW_REPETITIONS:.0f} / {one * FEW_REPETITIONS:.0f} ms, A's / its session"
    return Bound(name, other / one, limit, detail=detail)


def _first_changes(name: str, objects: _Session, books: _Session, limit: float) -> Bound:
    """Measure the first change in a fork, after a read of the data that all forks share."""
    forks = [_Session(books.server, fork, "order", {"product": 7}) for fork in books.forks(3 * FORKED)]
    forks[0].call("stock", product=7)
    waiting = iter(forks)
    actions = [partial(_repeat, objects.change, 20), lambda _: next(waiting).change()]
    one, other = costs([(books.server, action) for action in actions], FORKED)
    books.close([fork.id for fork in forks])
    return Bound(name, other / (one / 20), limit, unit=" A", detail=f"CPU {other:.2f} / {one / 20:.2f} ms")


def _bytes(name: str, server: Server, action: Callable[[], object], number: int, limit: float) -> Bound:
    """Measure the bytes that each version or fork adds to the store. `action` adds `number` of them."""
    before = _stored_bytes(server)
    new_ids = action()
    added = (_stored_bytes(server) - before) / number / 1000
    if isinstance(new_ids, list):
        for session_id in new_ids:
            server.client.call("close_session", {"session_id": session_id})
    return Bound(name, added, limit, unit=" KB")


def _stored_bytes(server: Server) -> int:
    """Return the number of bytes of the store's pages in use."""
    with closing(sqlite3.connect(f"{(server.data / 'sessions.db').as_uri()}?mode=ro", uri=True)) as store:
        pages, free, size = (
            store.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "freelist_count", "page_size")
        )
    return (pages - free) * size


def _readers(name: str, world: _Session, pointer: str, limit_ms: float) -> Iterator[Bound]:
    call = world.server.client.call
    session = call("get_session", {"session_id": world.id})
    versions = {"session_id": world.id, "from_version": session["version"] - 1}
    row = {"session_id": world.id, "pointer": pointer}
    for label, method, params in (("diff of one row", "diff_environment", versions), ("row", "get_environment", row)):
        call(method, params)
        read = partial(_call_method, world, method, params)
        (cost,) = costs([(world.server, read)], FEW_REPETITIONS * 4)
        yield Bound(f"{label} in {name}", cost, limit_ms, unit=" ms")


def _call_method(world: _Session, method: str, params: Mapping[str, object], _: int) -> None:
    world.server.client.call(method, params)


def _files(server: Server, objects: _Session) -> Iterator[Bound]:
    papers = _Session(server, server.create("books", {"papers": PAPERS}), "note", {})
    texts = map(str, count())
    papers.call("note", number=1, text="")
    yield _compare(
        f"write of one of {PAPERS:,} files",
        objects,
        lambda n: papers.call("note", number=n, text=next(texts)),
        0.8,
    )
    papers.call("run")
    plain, inside = costs(
        [(server, partial(papers.call, "run_elsewhere")), (server, partial(papers.call, "run"))], REPETITIONS // 4
    )
    name = f"command in the directory of {PAPERS:,} files, beside its own time"
    yield Bound(name, inside - plain, 9, unit=" ms", detail=f"CPU {inside:.2f} - {plain:.2f} ms")


def _objects(workshop: Workshop) -> Iterator[Bound]:
    """Compare calls on 5,000 objects that are stored in pieces with the same calls on objects that are stored whole."""
    other = replace(workshop, folder=workshop.folder / "whole")
    other.folder.mkdir()
    with (
        serving(workshop, settings={"TOOLPACK_LAZY_MIN_BYTES": str(LAZY_BYTES)}) as lazy,
        serving(other, settings={"TOOLPACK_LAZY_MIN_BYTES": "0"}) as whole,
    ):
        sessions = [_Session(server, server.create("register", {}), "", {}) for server in (lazy, whole)]
        for name, function, kwargs in (("read", "look", {}), ("change", "move", {"town": "Rome"})):
            actions = [(each.server, partial(_call_number, each, function, kwargs)) for each in sessions]
            pieces, whole_cost = costs(actions, FEW_REPETITIONS * 4)
            detail = f"CPU {pieces:.2f} / {whole_cost:.2f} ms"
            yield Bound(f"{name} of one of 5,000 objects, in pieces", pieces / whole_cost, LAZY[name], detail=detail)
            actions = [(each.server, partial(_call_in_fork, each, function, kwargs)) for each in sessions]
            pieces, whole_cost = costs(actions, FEW_REPETITIONS * 4)
            detail = f"CPU {pieces:.2f} / {whole_cost:.2f} ms, with the fork"
            yield Bound(f"first {name} in a fork, in pieces", pieces / whole_cost, LAZY["fork"], detail=detail)
        changes = partial(_repeat, partial(_call_number, sessions[0], "move", {"town": "Oslo"}), VERSIONS)
        yield _bytes("bytes of a version of 5,000 objects in pieces", lazy, changes, VERSIONS, 12)
        yield from _readers("5,000 objects in pieces", sessions[0], "/register/people/p17", LAZY_READERS_MS)


def _call_number(session: _Session, function: str, kwargs: Mapping[str, object], number: int) -> None:
    session.call(function, key=f"p{number}", **kwargs)


def _call_in_fork(session: _Session, function: str, kwargs: Mapping[str, object], number: int) -> None:
    (fork,) = session.forks(1)
    _call_number(_Session(session.server, fork, "", {}), function, kwargs, number)
    session.close([fork])
