"""Test of many waiting calls: none may be lost if their worker is killed, and they mustn't delay quick calls.

    python -m tools.faults.waits killed --calls 10000       kill the worker while calls wait
    python -m tools.faults.waits sleepers --rounds 20       pause the worker while calls sleep, and measure quick calls

Exit status 1 means that a guarantee was violated; the details are printed.
"""

import asyncio
import contextlib
import json
import os
import random
import resource
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import click

from tools.faults.world import Server, wait_until

PACKS = Path(__file__).parents[1] / "benchmarks" / "packs"
MAX_OPENING, MAX_CHECKING = 500, 2000  # maximum number of connections that are opened at once, and of checks at once
ACKNOWLEDGED = 0.3  # share of the calls that are acknowledged before the kill
PAUSE_SECONDS, PAUSES_PER_ROUND = 0.06, 3
QUICK_PAUSE_SECONDS = 0.01  # pause between two calls of the quick function
P99_FACTOR, P99_MARGIN_SECONDS = 3.0, 0.05  # maximum p99 beside sleepers: the p99 without them, times 3, plus 50 ms


class Connection:
    """A connection with one request at a time. Implements only a little of HTTP, to use little processor time."""

    def __init__(self, port):
        self.port = port

    async def __aenter__(self):
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.port)
        return self

    async def __aexit__(self, *_):
        self.writer.close()

    async def rpc(self, method, **params):
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode()
        head = f"POST /rpc HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
        self.writer.write(head.encode() + b"\r\n\r\n" + body)
        head = (await self.reader.readuntil(b"\r\n\r\n")).lower()
        length = int(head.partition(b"content-length: ")[2].split(b"\r\n")[0])
        reply = json.loads(await self.reader.readexactly(length))
        if "error" in reply:
            raise RuntimeError(reply["error"]["message"])
        return reply["result"]

    async def call(self, session_id, function, call_id=None, **kwargs):
        envelope = await self.rpc(
            "run_function", session_id=session_id, function=function, kwargs=kwargs, call_id=call_id
        )
        if envelope["error"] is not None:
            raise RuntimeError(envelope["error"])
        return envelope["result"]


async def create(port, count):
    """Create sessions on 50 connections, and return their ids."""

    async def create_share(number):
        async with Connection(port) as connection:
            created = [await connection.rpc("create_session", toolpacks=["waiter"]) for _ in range(number)]
        return [session["session_id"] for session in created]

    share = -(-count // 50)
    batches = await asyncio.gather(*(create_share(share) for _ in range(50)))
    return [session_id for batch in batches for session_id in batch][:count]


async def kill_amid_waits(server, count):
    """Kill the worker while calls wait. Return the violations, and the number of calls acknowledged before the kill.

    A repeated call with the same `call_id` must then return the result of the only run.
    """
    sessions = await create(server.port, count)
    acknowledged, opening = {}, asyncio.Semaphore(MAX_OPENING)
    seconds = {session_id: random.uniform(1, 10) for session_id in sessions}
    kill_now = asyncio.Event()

    async def wait(session_id):
        connection = Connection(server.port)
        with contextlib.suppress(OSError, EOFError, RuntimeError):
            async with opening:
                await connection.__aenter__()
            acknowledged[session_id] = await connection.call(session_id, "wait", "one", seconds=seconds[session_id])
            connection.writer.close()
            if len(acknowledged) >= ACKNOWLEDGED * count:
                kill_now.set()

    waiting = [asyncio.create_task(wait(session_id)) for session_id in sessions]
    worker = server.workers()[0]
    async with asyncio.timeout(300):
        await kill_now.wait()
    os.kill(worker, signal.SIGKILL)
    await asyncio.gather(*waiting)
    await asyncio.to_thread(wait_until, lambda: worker not in server.workers() and server.is_up(), 60, "a new worker")
    problems, checking = [], asyncio.Semaphore(MAX_CHECKING)

    async def check(session_id):
        async with checking, Connection(server.port) as connection:
            try:
                trace = await connection.rpc("get_trace", session_id=session_id)
                if session_id in acknowledged and [record["result"] for record in trace] != [1]:
                    problems.append(f"{session_id}: the call was acknowledged, but the trace is {trace}")
                if len(trace) > 1:
                    problems.append(f"{session_id}: one call was sent, but the trace is {trace}")
                repeated = await connection.call(session_id, "wait", "one", seconds=seconds[session_id])
                next_result = await connection.call(session_id, "quick")
                if (repeated, next_result) != (1, 2):
                    problems.append(f"{session_id}: the repeated call gives {repeated}, the next one {next_result}")
            except (OSError, EOFError, RuntimeError) as error:
                problems.append(f"{session_id}: {error!r}")

    await asyncio.gather(*map(check, sessions))
    return problems, len(acknowledged)


async def measure_quick_calls(server, sessions, seconds, stop):
    """Call a quick function while other calls sleep. Return the durations of the quick calls, sorted."""
    process = server.workers()[0]
    durations, finished = [], asyncio.Event()

    async def sleep(session_id):
        async with Connection(server.port) as connection:
            with contextlib.suppress(RuntimeError):  # executors run only a few calls at once, and refuse the last calls
                await connection.call(session_id, "sleep", seconds=seconds)

    async def pause_worker():
        for _ in range(PAUSES_PER_ROUND if stop else 0):
            await asyncio.sleep(random.uniform(0, seconds / PAUSES_PER_ROUND))
            os.kill(process, signal.SIGSTOP)
            await asyncio.sleep(PAUSE_SECONDS)
            os.kill(process, signal.SIGCONT)

    async def quick():
        async with Connection(server.port) as connection:
            while not finished.is_set():
                began = time.perf_counter()
                await connection.call(sessions[0], "quick")
                durations.append(time.perf_counter() - began)
                await asyncio.sleep(QUICK_PAUSE_SECONDS)

    quick_calls = asyncio.create_task(quick())
    sleepers = [asyncio.create_task(sleep(session_id)) for session_id in sessions[1:]]
    stops = asyncio.create_task(pause_worker())
    await asyncio.sleep(seconds)
    await stops
    finished.set()
    await quick_calls
    await asyncio.gather(*sleepers)
    return sorted(durations)


def p99(times):
    return times[len(times) * 99 // 100]


def serve(folder, **settings):
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    server = Server(folder, None, 1, pack_dir=PACKS, packs="waiter", log_calls="off", **settings)
    server.start()
    return server


def stop(server):
    server.process.terminate()
    server.process.wait()


@click.group()
def main():
    """Check that waiting calls aren't lost, and don't delay other calls."""


@main.command()
@click.option("--calls", default=10_000, show_default=True, help="Number of waiting calls, each in a separate session.")
def killed(calls):
    """Kill the worker (SIGKILL) while calls wait. No acknowledged call may be lost, and no call may run twice."""
    with tempfile.TemporaryDirectory(prefix="toolpack-waits-") as folder:
        server = serve(folder, max_connections=2 * calls, max_waiting=2 * calls, max_sessions=2 * calls)
        try:
            problems, acknowledged = asyncio.run(kill_amid_waits(server, calls))
        finally:
            stop(server)
    click.echo(f"{calls} calls waited, {acknowledged} were acknowledged before the kill; {len(problems)} violations")
    for problem in problems[:10]:
        click.echo(f"VIOLATION: {problem}")
    sys.exit(bool(problems))


@main.command()
@click.option("--rounds", default=20, show_default=True, help="Number of rounds for each isolation.")
@click.option("--sleepers", default=400, show_default=True, help="Number of sleeping calls in each round.")
@click.option("--seconds", default=8.0, show_default=True, help="Duration of their sleep.")
@click.option(
    "--isolation",
    "isolations",
    multiple=True,
    type=click.Choice(["thread", "process"]),
    help="Isolation to test.  [default: both]",
)
def sleepers(rounds, sleepers, seconds, isolations):
    """Pause the worker for 60 ms at times while calls sleep. A quick function must never wait behind these calls."""
    late = Counter()
    for isolation in isolations or ("thread", "process"):
        with tempfile.TemporaryDirectory(prefix="toolpack-waits-") as folder:
            server = serve(folder, isolation=isolation, timeout_seconds=2 * seconds, queue_timeout_seconds=1)
            try:
                sessions = asyncio.run(create(server.port, sleepers + 1))
                asyncio.run(measure_quick_calls(server, sessions[:1], 1, stop=False))
                for number in range(rounds):
                    quiet = p99(asyncio.run(measure_quick_calls(server, sessions[:1], 2, stop=True)))
                    beside = p99(asyncio.run(measure_quick_calls(server, sessions, seconds, stop=True)))
                    allowed = P99_FACTOR * quiet + P99_MARGIN_SECONDS
                    late[isolation] += beside > allowed
                    times = f"p99 {beside * 1000:.0f} ms, quiet {quiet * 1000:.0f} ms, allowed {allowed * 1000:.0f} ms"
                    click.echo(f"{isolation} {number + 1}: {times}{' LATE' if beside > allowed else ''}")
            finally:
                stop(server)
    click.echo(", ".join(f"{isolation}: {count} of {rounds} rounds late" for isolation, count in late.items()))
    sys.exit(late.total() > 0)


if __name__ == "__main__":
    main()
