"""Limits of bundles.

The unpacked bytes of an import count against the limit for bytes of requests. A replay stops after `limit` calls, or
when its client disconnects.
"""

import base64
import contextlib
import gc
import json
import lzma
import threading
import weakref
from typing import Annotated, Any

import pytest
from http_endpoint import HEAD, served
from serving import KEY, PATIENCE, refused, wait_until
from test_bundles import START, create_bundle, lines_of, seal_bundle, state_of

from toolpack_server import Depends, TaskEnvironment, Toolpack
from toolpack_server.features.replay import bundle_format
from toolpack_server.features.replay.replays import AT_ONCE, Replays
from toolpack_server.packs.catalog import Catalog
from toolpack_server.snapshots.seal import KeyedHash


class World(TaskEnvironment):
    numbers: list[int] = []  # noqa: RUF012 - pydantic copies it


class Gate:
    """An event that the functions wait for, and the number of their calls."""

    def __init__(self):
        self.calls = 0
        self.open = threading.Event()
        self.open.set()


def catalog_of(gate):
    toolpack = Toolpack("gated", World)

    @toolpack.function
    def add(numbers: Annotated[list[int], Depends("numbers")], amount: int) -> int:
        """Add a number.

        :param amount: The number to add.
        """
        numbers.append(amount)
        return sum(numbers)

    @toolpack.function
    def hold() -> None:
        """Wait until a gate is open."""
        gate.calls += 1
        gate.open.wait(PATIENCE)

    @toolpack.function
    def echo(value: Any) -> Any:
        """Return the value.

        :param value: Anything.
        """
        return value

    return Catalog({"gated": toolpack})


@pytest.fixture
def gate():
    gate = Gate()
    yield gate
    gate.open.set()


@pytest.fixture
def make(make_bench, gate):
    return lambda **settings: make_bench(catalog_of(gate), **settings)


def lines_with(bench, *functions, **kwargs):
    """Return the lines of the bundle of a session in which these functions were called."""
    session_id = bench.create("gated")
    for function in functions:
        bench.call(session_id, function, **kwargs)
    lines = lines_of(base64.b64decode(bench.rpc("export_bundle", session_id=session_id)["bundle"]))
    bench.rpc("close_session", session_id=session_id)
    return lines


def records_in(lines):
    return [line["record"][0] for line in lines if "record" in line]


def import_lines(bench, lines, mode="replay", **params):
    return bench.rpc("import_bundle", bundle=base64.b64encode(create_bundle(lines)).decode(), mode=mode, **params)


def note(lines, **members):
    """Append a record."""
    records = records_in(lines)
    version = records[-1]["version"] if records else 0
    record = {"index": len(records), "version": version, "started_at": "2026-03-02T09:30:00Z", "duration_ms": 1.0}
    lines.append({"record": [{**record, **members}, None]})
    lines[0]["head"]["records"] += 1


# Memory


@pytest.mark.parametrize("mode", ["exact", "replay"])
def test_line_may_be_as_long_as_a_request(make, mode):
    bench = make(max_body_bytes=2**16)
    lines = lines_with(bench, "echo", value="x")
    records_in(lines)[0]["result"] = "x" * 2**17
    error = refused(-32007, import_lines, bench, lines, mode)
    assert "more than 65536 bytes" in error.message
    assert state_of(bench) == []


@pytest.mark.parametrize("mode", ["exact", "replay"])
def test_line_has_one_member_and_nothing_follows_the_last(make, mode):
    bench = make()
    lines = lines_with(bench, "echo", value="x")
    for wrong in ({}, lines[0] | lines[-1]):
        error = refused(-32602, import_lines, bench, [*lines, wrong], mode)
        assert error.data["detail"] == "A line of the bundle must be exactly one of head, blob, version and record."
    compressed = create_bundle(lines).split(b"\n", 2)[2]
    longer = base64.b64encode(seal_bundle(compressed + b"more")).decode()
    error = refused(-32602, bench.rpc, "import_bundle", bundle=longer, mode=mode)
    assert error.data["detail"] == "The bundle can't be unpacked: there is data after its end."
    assert state_of(bench) == []


@pytest.mark.parametrize("mode", ["exact", "replay"])
def test_unpacked_bytes_are_reserved_and_released(make, mode):
    bench = make(max_bytes_in_flight=2**24)
    in_flight = bench.service.in_flight
    lines = lines_with(bench, "add", amount=1)
    reserved = []
    in_flight.reserve = lambda *arguments: (
        reserved.append(arguments[1]),
        type(in_flight).reserve(in_flight, *arguments),
    )
    import_lines(bench, lines, mode)
    assert 2**20 < sum(reserved) < 2**24
    assert in_flight.total == 0
    # Reservations of other requests count, and the error asks for a retry.
    in_flight.add("", 2**23)
    refused(-32006, import_lines, bench, lines, mode)
    assert in_flight.total == 2**23
    in_flight.add("", -(2**23))
    # A bundle beyond the limit of any request is an error without a retry.
    lines[0]["head"]["options"] = {"gated": {"x": [0] * 200_000}}
    assert "the limit of a request" in refused(-32007, import_lines, bench, lines, mode).message
    assert in_flight.total == 0


@pytest.mark.parametrize("mode", ["exact", "replay"])
@pytest.mark.parametrize("how", ["a long line", "too much", "no JSON", "cut off"])
def test_memory_of_a_rejected_bundle_is_freed(make, mode, how, monkeypatch):
    bench = make(max_body_bytes=2**16)
    text = b"".join(json.dumps(line).encode() + b"\n" for line in lines_with(bench, "add", amount=1))
    text += {"a long line": b" " * 2**18, "too much": b'{"blob":' + b"x" * 2**21, "no JSON": b"{\n"}.get(how, b"")
    packed = lzma.compress(text)
    if how == "cut off":
        packed = packed[:-30]
    bundle = base64.b64encode(START + KeyedHash(KEY, "bundle").of(packed).encode() + b"\n" + packed).decode()
    alive = []

    class Watched(bytearray):
        """A buffer for the pieces of a line. Weak references show when it is freed."""

        def __init__(self):
            super().__init__()
            alive.append(weakref.ref(self))

    monkeypatch.setattr(bundle_format, "bytearray", Watched, raising=False)
    bench.create("gated")
    gc.collect()
    gc.disable()
    try:
        refused(
            -32602 if how in {"no JSON", "cut off"} else -32007, bench.rpc, "import_bundle", bundle=bundle, mode=mode
        )
        # A thread may still be leaving the failed function.
        wait_until(lambda: alive and not any(line() is not None for line in alive), "the end of what unpacks")
    finally:
        gc.enable()
    assert bench.service.in_flight.total == 0


def test_replay_keeps_no_blobs(make):
    bench = make(max_body_bytes=2**16, max_bytes_in_flight=2**24)
    lines = lines_with(bench, "add", amount=1)
    # An exact import would keep copies of it.
    next(line for line in lines if "blob" in line)["blob"][2] = "x" * 500_000
    assert import_lines(bench, lines)["complete"] is True


# The content of records


def test_messages_have_a_limit(make):
    bench = make(max_result_bytes=8000)
    lines = lines_with(bench, "add", amount=1)
    note(lines, kind="message", role="user", content="x" * 2000)
    replayed = import_lines(bench, lines)
    assert replayed["complete"] is True
    assert bench.rpc("get_trace", session_id=replayed["session"]["session_id"])[1]["content"] == "x" * 2000
    records_in(lines)[1]["content"] += "x"
    before = state_of(bench)
    assert "The text has 2001 bytes; at most 2000 are allowed" in refused(-32007, import_lines, bench, lines).message
    assert state_of(bench) == before


def test_verdicts_are_copied_within_the_limit_but_do_not_count(make):
    bench = make(max_result_bytes=8000)
    lines = lines_with(bench, "add", amount=1)
    recorded_verdict = {"task": "gated/t", "reward": 1.0, "passed": True, "checks": [], "metrics": {}}
    note(lines, kind="verdict", **recorded_verdict)
    copied = import_lines(bench, lines)["session"]["session_id"]
    assert bench.rpc("get_trace", session_id=copied)[1].items() >= recorded_verdict.items()
    assert bench.rpc("list_sessions", passed=True) == []
    records_in(lines)[1]["metrics"] = {"x": "x" * 2000}
    refused(-32007, import_lines, bench, lines)
    assert [each["session_id"] for each in bench.rpc("list_sessions")] == [copied]


@pytest.mark.parametrize(
    "members",
    [
        {"kind": "audit", "text": "x"},
        {"kind": "verdict", "task": "gated/t", "reward": 1.0, "passed": "yes", "checks": [], "metrics": {}},
        {"kind": "message", "role": "admin", "content": "x"},
        {"kind": "message", "role": "user", "content": 5},
        {"kind": "message", "role": "user"},
        {"kind": "answer", "answer": "42"},  # The session has no task.
        {"kind": "answer"},
        {"kind": "reset", "to_version": 7},
        {"kind": "message", "role": "user", "content": "x", "index": 5},
    ],
    ids=str,
)
def test_records_that_no_method_makes_are_rejected(make, members):
    bench = make()
    lines = lines_with(bench, "add", amount=1)
    note(lines, **members)
    refused(-32602, import_lines, bench, lines)
    assert state_of(bench) == []


@pytest.mark.parametrize("failure", ["deadline", "crashed"])
def test_forged_failure_gets_this_servers_error_text(make, failure, gate):
    bench = make()
    lines = lines_with(bench, "hold", "add", amount=1)
    calls = gate.calls
    forged = {"result": "forged", "error": "TimeoutError: forged" * 10_000, "failure": failure, "duration_ms": 200.0}
    records_in(lines)[0].update(forged, kwargs={"value": "x" * 10_000})
    replayed = import_lines(bench, lines)
    (record, _) = bench.rpc("get_trace", session_id=replayed["session"]["session_id"])
    assert (record.get("failure"), record["result"], gate.calls) == (failure, "", calls)
    forged_record = {
        "deadline": "TimeoutError: `hold` took longer than 0.2 s and was given up; nothing has changed.",
        "crashed": "CrashedError: `hold` ended its process in the original call, so the replay didn't run it; "
        "nothing has changed.",
    }
    assert record["error"] == forged_record[failure]
    records_in(lines)[0]["function"] = "no such function"
    assert import_lines(bench, lines).get("diverged")["index"] == 0


def test_bundle_may_set_only_options_that_features_add(make):
    bench = make()
    lines = lines_with(bench, "add", amount=1)
    mine = bench.rpc("create_session", toolpacks=["gated"], ttl_seconds=86_400, call_id="mine")["session_id"]
    for details in ({"call_id": "mine"}, {"environment": 5}):
        lines[0]["head"]["details"] = details
        assert "which this server doesn't know" in refused(-32602, import_lines, bench, lines).data["detail"]
    lines[0]["head"]["details"] = {"seed": None}
    assert import_lines(bench, lines)["session"]["session_id"] != mine
    assert bench.rpc("get_session", session_id=mine)["version"] == 0


# Shares


def test_replay_of_a_bundle_has_a_limit(make):
    bench = make()
    lines = lines_with(bench, "add", "add", "add", amount=1)
    replayed = import_lines(bench, lines, limit=2)
    assert (replayed["replayed"], replayed["complete"], replayed["session"]["version"]) == (2, False, 2)
    assert import_lines(bench, lines, limit=3)["complete"] is True
    refused(-32602, import_lines, bench, lines, limit=0)


def test_replays_of_an_owner_are_limited(make, gate):
    bench = make()
    lines = lines_with(bench, "hold")
    bundle = base64.b64encode(create_bundle(lines)).decode()
    session_id = bench.create("gated", owner="ann")
    bench.call(session_id, "hold", {"owner": "ann"})
    before = gate.calls
    gate.open.clear()
    running = [bench.later("import_bundle", bundle=bundle, mode="replay", owner="ann") for _ in range(AT_ONCE)]
    wait_until(lambda: gate.calls == before + AT_ONCE, "the calls of as many as may run")
    waiting = [
        bench.later("import_bundle", bundle=bundle, mode="replay", owner="ann"),
        bench.later("replay_session", session_id=session_id, owner="ann"),
    ]
    others = bench.later("import_bundle", bundle=bundle, mode="replay", owner="bob")
    wait_until(lambda: gate.calls == before + AT_ONCE + 1, "the call of another owner")
    assert len(bench.rpc("list_sessions", owner="ann")) == 1 + AT_ONCE
    gate.open.set()
    for future in (*running, *waiting, others):
        assert future.result(PATIENCE)["complete"] is True


def test_replay_that_waits_too_long_is_rejected(make):
    bench = make(queue_timeout_seconds=0.01)
    lines = lines_with(bench, "add", amount=1)
    replays = bench.service.feature(Replays)

    async def occupy():
        stack = contextlib.AsyncExitStack()
        for _ in range(AT_ONCE):
            await stack.enter_async_context(replays.turn(""))
        return stack

    occupied = bench._run(occupy())
    assert "You have 2 running replays on this server" in refused(-32006, import_lines, bench, lines).message
    bench._run(occupied.aclose())
    assert import_lines(bench, lines)["complete"] is True


@pytest.mark.parametrize("http", ["httptools", "h11"])
@pytest.mark.parametrize("half", [False, True], ids=["closed", "half closed"])
@pytest.mark.parametrize("method", ["import_bundle", "replay_session"])
def test_replay_ends_when_its_client_disconnects(gate, http, half, method):
    with served(http, catalog=catalog_of(gate)) as server:
        session_id = server.rpc("create_session", toolpacks=["gated"])["session_id"]
        for _ in range(3):
            server.rpc("run_function", session_id=session_id, function="hold")
        bundle = server.rpc("export_bundle", session_id=session_id)["bundle"]
        params = {"bundle": bundle, "mode": "replay"} if method == "import_bundle" else {"session_id": session_id}
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode()
        gate.open.clear()
        with server.connect(HEAD, b"Content-Length: %d\r\n\r\n" % len(body), body) as connection:
            wait_until(lambda: gate.calls == 4, "its first call")
            if half:
                connection.shutdown(1)
                assert b"closed the connection" in b"".join(iter(lambda: connection.recv(65536), b""))
        wait_until(lambda: len(server.rpc("list_sessions")) == 1, "the end of its session")
        gate.open.set()
        assert server.rpc("replay_session", session_id=session_id)["complete"] is True
        assert gate.calls == 7  # The abandoned replay made no further call.
        wait_until(lambda: server.app.state.gateway.in_flight.total == 0, "the release of its bytes")
