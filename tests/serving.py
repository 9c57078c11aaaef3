"""Shared helpers of the server's tests: the fixture toolpacks, a server without HTTP, and waiting for a condition."""

import asyncio
import atexit
import contextlib
import json
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, Future
from pathlib import Path
from typing import Any, Self
from unittest import mock

import pytest
from patience import PATIENCE

from toolpack_server.base.errors import RequestError
from toolpack_server.base.settings import FeatureSettings, Settings
from toolpack_server.execution.views import thawed
from toolpack_server.packs.catalog import Catalog
from toolpack_server.packs.loading import load_catalog
from toolpack_server.rpc.caller import Caller
from toolpack_server.rpc.codes import describe, error_reply
from toolpack_server.rpc.method import agents_methods, clients_methods
from toolpack_server.stores.base import SessionStore, StoreClock
from toolpack_server.volumes.scratch import Scratch
from toolpack_server.volumes.volume import Limits, VolumeContext
from toolpack_server.wiring import stores
from toolpack_server.wiring.feature import Feature
from toolpack_server.wiring.installed import load_features
from toolpack_server.wiring.service import Service, all_methods

PACKS = Path(__file__).parent / "fixtures" / "packs"
FIXTURES = ("ledger", "vault", "nasty", "halves")
FEATURES = load_features()
CLIENTS_METHODS = clients_methods(all_methods(FEATURES))
AGENTS_METHODS = agents_methods(all_methods(FEATURES))
KEY = b"a key that only the tests know!!"
NO_VOLUMES = VolumeContext({}, Scratch(None, 0), Limits())

CATALOG = load_catalog((PACKS,), FIXTURES)
ledger: Any = sys.modules["toolpacks.ledger"]
nasty: Any = sys.modules["toolpacks.nasty"]


def open_store(url: str, **options: Any) -> SessionStore:
    """Open a store of the loaded features. Searching for installed ones takes longer than most tests."""
    return stores.open_store(url, features=FEATURES, **options)


def http_client(url: Any, **options: Any) -> Any:
    """Return a client of plain HTTP. Reading all TLS certificates takes longer than most tests."""
    import httpx  # noqa: PLC0415 - a test of a user's toolpack doesn't have it

    return httpx.Client(base_url=url, verify=False, **{"timeout": PATIENCE, **options})


def wait_until(condition: Callable[[], Any], description: str = "the condition that the test waits for") -> Any:
    deadline, pause = time.monotonic() + PATIENCE, 0.001
    while not (value := condition()):
        assert time.monotonic() < deadline, f"{description} did not happen"
        time.sleep(pause)
        pause = min(pause * 1.5, 0.02)  # so that polling costs little during a long wait
    return value


def in_parts(ask: Callable[..., Any], **params: Any) -> Iterator[Any]:
    """Yield the parts of an answer, which are requested one after the other."""
    after: str | None = ""
    while after is not None:
        part = ask(after=after, **params)
        yield part
        after = part.get("next")


class Clock:
    """Replacement for the module `time` in modules of the server. Its clocks stand still until a test moves them."""

    def __init__(self, monkeypatch: Any, *modules: Any) -> None:
        # The fraction of a second is exact in binary, so tests can compare sums.
        self._now, self._monotonic = time.time() // 1 + 0.25, time.monotonic()
        for module in modules:
            monkeypatch.setattr(module, "time", self)
        for bench in benches:
            bench.sessions.queues.clock.look(StoreClock(self._now, 0.0))

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)

    def time(self) -> float:
        return self._now

    def monotonic(self) -> float:
        return self._monotonic

    def jump(self, seconds: float) -> None:
        """Set the wall clock, as an administrator may. No time passes."""
        self._now += seconds

    def move(self, seconds: float) -> None:
        self._now += seconds
        self._monotonic += seconds


class RpcError(Exception):
    """A JSON-RPC error in an answer."""

    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(error)
        self.code, self.message, self.data = error["code"], error["message"], error["data"]


def result_of(reply: bytes | None) -> Any:
    assert reply is not None, "a request got no answer"
    response = json.loads(reply)
    assert response["jsonrpc"] == "2.0"
    if "error" in response:
        assert set(response) == {"jsonrpc", "error", "id"}
        raise RpcError(response["error"])
    assert set(response) == {"jsonrpc", "result", "id"}
    return response["result"]


def refused(code: int, call: Callable[..., Any], /, *args: Any, **params: Any) -> RpcError:
    """Check that a call raises a JSON-RPC error of this code, and return the error."""
    with pytest.raises(RpcError) as error:
        call(*args, **params)
    assert error.value.code == code, error.value
    return error.value


ISOLATIONS = ["thread", *([pytest.param("process", marks=pytest.mark.heavy)] if sys.platform == "linux" else [])]
"""The values of `isolation`. Tests with executors are heavy: starting those takes most of the time."""

IN_BOTH = [
    pytest.mark.usefixtures("isolation"),
    pytest.mark.parametrize("isolation", ISOLATIONS, indirect=True),
]
"""The mark of a file whose tests must hold for each isolation."""


def in_both(test: Any) -> Any:
    """Run a single test in both isolations (see `IN_BOTH`)."""
    for mark in IN_BOTH:
        test = mark(test)
    return test


isolation = "thread"
"""The isolation of a `Bench` with the fixture packs; the fixture `isolation` sets it."""


def gate(name: str) -> Any:
    """Create a gate. Functions of the ledger with its name wait until it is set."""
    return ledger.gates.make(name, shared=isolation == "process")


_zygotes: dict[str, Any] = {}
benches: weakref.WeakSet[Any] = weakref.WeakSet()


def _shared_zygote(configuration: Any, expected: object) -> Any:
    """Return the zygote that all tests with an equal configuration share. It ends with the tests."""
    key = repr(configuration)
    if key not in _zygotes:
        from toolpack_server.features.executors.child import Zygote  # noqa: PLC0415 - it imports modules that only Linux has

        zygote = _zygotes[key] = Zygote(configuration, expected)
        atexit.register(zygote.close)
        zygote.close = lambda: None
    return _zygotes[key]


@contextlib.contextmanager
def zygotes_shared(needed: bool) -> Iterator[None]:
    with contextlib.ExitStack() as patched:
        if needed:
            patched.enter_context(mock.patch("toolpack_server.features.executors.runner.Zygote", _shared_zygote))
        yield


class Bench:
    """A complete server except for HTTP. Its event loop runs in a separate thread."""

    def __init__(
        self,
        catalog: Catalog | None = None,
        store: Any = "memory:",
        key: bytes = KEY,
        features: Sequence[type[Feature]] = FEATURES,
        of_features: Sequence[FeatureSettings] = (),
        **settings: Any,
    ):
        self.store = open_store(store) if isinstance(store, str) else store
        self._closes_store = isinstance(store, str)
        # A process loads toolpacks by name.
        shared = isolation == "process" and (catalog is None or "packs" in settings)
        if shared:
            settings = {"isolation": "process", "pack_dir": (PACKS,), "packs": FIXTURES, **settings}
        self.settings = Settings(**{"store": "memory:", "log_calls": "off", **settings}).give(*of_features)
        with zygotes_shared(shared):
            self.service = Service(self.settings, catalog or CATALOG, store=self.store, key=key, features=features)
        self.sessions = self.service.sessions
        benches.add(self)
        driver = self.sessions.queues.threads.drive(None)
        self._loop, self._closed, self._serving = driver.loop, asyncio.Event(), None
        # Named like the thread of `toolpack_server.testing`, so that it isn't a leftover of a call on another bench.
        self._thread = threading.Thread(target=driver.run, args=[self._serve()], name="testing", daemon=True)
        self._thread.start()

    async def _serve(self) -> None:
        self._serving = asyncio.current_task()
        await self._closed.wait()

    def _run(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE)

    def answer(self, body: bytes | str, owner: str = "", agent_key: str | None = None) -> bytes | None:
        return self._run(self._answer(body, owner, agent_key))

    async def _answer(self, body: bytes | str, owner: str, agent_key: str | None) -> bytes | None:
        text = body.encode() if isinstance(body, str) else body
        if agent_key is None:
            return await self.service.rpc.answer(Caller(owner), text)
        try:
            caller = await self.service.agent(agent_key)
        except RequestError as error:
            return error_reply(None, *describe(error))
        return await self.service.agents.answer(caller, text)

    def later(self, method: str, /, *, owner: str = "", agent_key: str | None = None, **params: Any) -> Future[Any]:
        """Send a request without waiting for its answer."""
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params})

        async def send() -> Any:
            return result_of(await self._answer(body, owner, agent_key))

        return asyncio.run_coroutine_threadsafe(send(), self._loop)

    def rpc(self, method: str, /, **params: Any) -> Any:
        """Send a request and return its result. `owner` and `agent_key` identify the sender."""
        return self.later(method, **params).result(PATIENCE)

    def create(self, *toolpacks: str, **params: Any) -> str:
        """Create a session and return its id."""
        return self.rpc("create_session", toolpacks=list(toolpacks or ["ledger"]), **params)["session_id"]

    def later_call(self, session_id: str, function: str, /, _call: Any = None, **kwargs: Any) -> Future[Any]:
        return self.later("run_function", session_id=session_id, function=function, kwargs=kwargs, **(_call or {}))

    def call(self, session_id: str, function: str, /, _call: Any = None, **kwargs: Any) -> Any:
        """Run a function and return its envelope."""
        return self.later_call(session_id, function, _call, **kwargs).result(PATIENCE)

    def result(self, session_id: str, function: str, /, **kwargs: Any) -> Any:
        """Run a function that succeeds, and return its result."""
        envelope = self.call(session_id, function, **kwargs)
        assert envelope["error"] is None, envelope
        return envelope["result"]

    def version(self, session_id: str) -> int:
        return self.rpc("get_session", session_id=session_id)["version"]

    def world(self, session_id: str, version: int) -> dict[str, Any]:
        """Return the restored environments of a version."""
        head = self.store.get(session_id)[1]
        codec = self.service.codec
        return self._run(self.sessions.read(lambda reader: thawed(codec, reader.snapshot(session_id, head, version))))

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Stop the event loop, so that requests sent meanwhile arrive in one turn and are admitted together."""
        gate = threading.Event()
        self.sessions.queues._came_alone = False  # otherwise the first request would be admitted at once
        self._loop.call_soon_threadsafe(gate.wait, PATIENCE)
        try:
            yield
        finally:
            gate.set()

    async def _give_up_waiting(self) -> None:
        """Cancel the requests that will not be answered."""
        waiting = asyncio.all_tasks() - {asyncio.current_task(), self._serving}
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)

    @contextlib.contextmanager
    def sweeping(self) -> Iterator[Callable[[int], None]]:
        """Sweep expired sessions during the block, as a server does. Yield a function that waits for n sweeps."""
        looks: list[Any] = []
        look = self.store.delete_expired
        self.store.delete_expired = lambda *arguments: (look(*arguments), looks.append(arguments))[0]

        def look_again(times: int) -> None:
            count = len(looks) + times
            wait_until(lambda: len(looks) >= count, "the sweep")

        async def end(_: object) -> None:
            raise asyncio.CancelledError

        sweep = asyncio.run_coroutine_threadsafe(self.sessions.sweep(), self._loop)
        try:
            yield look_again
        finally:
            # Stop between two sweeps. A sweep that continued in its thread would see the test move the clock.
            with mock.patch.object(self.sessions, "_do", end), contextlib.suppress(CancelledError):
                sweep.result(PATIENCE)
            self.store.delete_expired = look

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if not self._thread.is_alive():
            return
        self.sessions.queues.stop()
        self.service.runner.close()
        if self._closes_store:
            self.store.close()
        self._run(self._give_up_waiting())
        self._loop.call_soon_threadsafe(self._closed.set)
        self._thread.join(PATIENCE)
        self.service.scratch.close()


class Moving:
    """Several workers with a shared store, used like one bench: each request goes to any of the workers.

    Args:
        choose: A function that returns one of the workers for the next request.
    """

    def __init__(self, benches: Sequence[Bench], choose: Callable[[Sequence[Bench]], Bench]) -> None:
        self._benches = benches
        self._choose = choose

    def __getattr__(self, name: str) -> Any:
        return getattr(self._choose(self._benches), name)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for bench in self._benches:
            bench.close()
        for store in {id(bench.store): bench.store for bench in self._benches}.values():
            store.close()


def moving(choose: Callable[[Sequence[Bench]], Bench], *stores: Any, workers: int = 2, **settings: Any) -> Moving:
    """Create this number of workers on each of these stores. The stores are one store, opened by several servers."""
    return Moving([Bench(store=store, **settings) for store in stores for _ in range(workers)], choose)
