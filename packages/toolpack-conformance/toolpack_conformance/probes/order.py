"""Ordered: calls on one session run one at a time. Expected version: a call runs only at the expected version."""

import time
from concurrent.futures import ThreadPoolExecutor
from itertools import combinations

from toolpack_conformance.probes.probe import CONFLICT, at_once, probe
from toolpack_conformance.target import Call, Failed, Session, Target, expect

_SHORT = 0.03  # seconds; long enough for another call to interfere
_MAX_INVERSIONS = (
    5  # of 10 pairs can run in the wrong order, because calls at different workers can overtake each other
)
TRIES = 3  # because the network can reorder two requests


@probe("ordered")
def calls_run_one_at_a_time(target: Target) -> None:
    """Calls on one session that are sent at the same time run one after the other, and none is lost."""
    session = target.create()
    kwargs = {"amount": 1, "seconds": _SHORT}
    answers = at_once(12, lambda _: session.run("add_and_wait", kwargs))
    expect([sorted(answers), session.version], [[*range(1, 13)], 12], "the totals in the results and the version")
    records = session.calls()
    expect([record["result"] for record in records], [*range(1, 13)], "the results in the trace")
    expect([record["version"] for record in records], [*range(1, 13)], "the versions in the trace")
    expect(session.run("second"), [1] * 12, "the list")


@probe("ordered")
def agents_and_clients_share_one_order(target: Target) -> None:
    """Calls at the agent path and at /rpc share one order, whether functions are async or not."""
    session = target.create()
    kwargs = {"amount": 1, "seconds": _SHORT}

    def call(number: int) -> int:
        run = session.run_as_agent if number % 2 else session.run
        result: int = run("add_and_await" if number % 3 else "add_and_wait", kwargs)
        return result

    expect(sorted(at_once(12, call)), [*range(1, 13)], "the totals in the results")
    expect([session.total, session.version], [12, 12], "the total and the version")
    by = [record["by"] for record in session.calls()][:12]
    expect([by.count("agent"), by.count("client")], [6, 6], "how many calls are by the agent, and by the client")


@probe("ordered")
def calls_run_in_order_of_arrival(target: Target) -> None:
    """Calls that wait for their session run in order of arrival, except for a few if there are several workers."""
    for tries_left in reversed(range(TRIES)):
        session = target.create()
        with ThreadPoolExecutor(6) as pool:
            waiting = [pool.submit(session.run, "add_and_wait", {"amount": 0, "seconds": 1})]
            for number in range(1, 6):
                time.sleep(0.1)
                waiting.append(pool.submit(session.run, "append", {"number": number}))
            for future in waiting:
                future.result()
        order = session.run("second")
        inversions = sum(earlier > later for earlier, later in combinations(order, 2))
        if inversions <= _MAX_INVERSIONS:
            return
        if not tries_left:
            raise Failed(f"calls that were sent in the order 0, 1, 2, 3, 4, 5 have run in the order {order}")


@probe("ordered")
def a_batch_runs_in_order(target: Target) -> None:
    """The calls of a batch run in the batch's order, also if one takes long."""
    session = target.create()
    slow: Call = ("add_and_wait", {"amount": 1, "seconds": 0.2})
    calls: list[Call] = [slow, ("append", {"number": 5}), ("add", {"amount": 10}), slow, ("second", {}), ("total", {})]
    expect(session.run_all(calls), [1, None, 11, 12, [1, 5, 1], 12], "the results of a batch")


@probe("ordered")
def the_trace_has_every_call(target: Target) -> None:
    """The trace has every call, in order, with its arguments, its outcome and the version after it."""
    session = target.create()
    session.run("add", {"amount": 1})
    session.error("add_and_fail", {"amount": 2})
    session.error("nothing")
    session.error("add", {"amount": "many"})
    session.run_as_agent("total")
    failing = {"function": "add_and_fail", "kwargs": {"amount": 3}}
    target.result("run_function", failing, session.agent_path)
    trace = session.ask("get_trace")
    records = [
        [record.get(name) for name in ("kind", "function", "kwargs", "result", "failure", "version", "by")]
        for record in trace
    ]
    expected = [
        ["call", "add", {"amount": 1}, 1, None, 1, "client"],
        ["call", "add_and_fail", {"amount": 2}, "", "raised", 1, "client"],
        ["call", "nothing", {}, "", "not_found", 1, "client"],
        ["call", "add", {"amount": "many"}, "", "arguments", 1, "client"],
        ["call", "total", {}, 1, None, 1, "agent"],
        ["call", "add_and_fail", {"amount": 3}, "", "raised", 1, "agent"],
    ]
    expect(records, expected, "kind, function, kwargs, result, failure, version and by of the records")
    expect([trace[0]["error"], trace[1]["error"]], [None, "ValueError: failed after adding 2"], "errors in the trace")
    _is_read_in_pages(session, [record["index"] for record in trace])


def _is_read_in_pages(session: Session, indexes: list[int]) -> None:
    pages = [session.ask("get_trace", limit=2)]
    pages += [session.ask("get_trace", after=indexes[last], limit=2) for last in (1, 3, 5)]
    positions = [[indexes.index(record["index"]) for record in page] for page in pages]
    expect(positions, [[0, 1], [2, 3], [4, 5], []], "the records in the trace, two at a time")


@probe("expected version")
def a_call_at_another_version_is_refused(target: Target) -> None:
    """A call with another expected_version than the session's is refused, changes nothing and isn't recorded."""
    session = target.create()
    expect(session.run("add", {"amount": 1}, expected_version=0), 1, "the result at the expected version")
    for function, kwargs, version in (("add", {"amount": 1}, 0), ("add", {"amount": 1}, 2), ("total", {}, 0)):
        request = {"session_id": session.id, "function": function, "kwargs": kwargs, "expected_version": version}
        error = target.error("run_function", request)
        version_in_error = error.get("data", {}).get("version")
        expect(
            [error["code"], version_in_error],
            [CONFLICT, 1],
            f"the code and the version for {function} at version {version}",
        )
    expect(len(session.calls()), 1, "the number of calls in the trace")
    expect(session.total, 1, "the total after the refused calls")
    expect(session.run("add", {"amount": 1}, expected_version=1), 2, "the result at the expected version")


@probe("expected version")
def versions_are_compared_as_numbers(target: Target) -> None:
    """Expected versions are compared as numbers, also at the versions 10 and 100."""
    session = target.create()
    for version, others in ((10, (0, 1, 9, 11, 100)), (100, (0, 1, 9, 10, 99, 101, 110))):
        session.run_all([("add", {"amount": 1})] * (version - session.version))
        for other in others:
            code = session.error_code("add", {"amount": 1}, expected_version=other)
            expect(code, CONFLICT, f"the code at version {version} where {other} is expected")
        result = session.run("total", expected_version=version)
        expect([result, session.version], [version, version], f"the total and the version where {version} is expected")


@probe("expected version")
def one_of_several_wins(target: Target) -> None:
    """Of eight calls that expect the same version, one runs."""
    session = target.create()
    kwargs = {"amount": 1, "seconds": 0.3}
    codes = at_once(8, lambda _: session.error_code("add_and_wait", kwargs, expected_version=0))
    actual = [codes.count(None), codes.count(CONFLICT), session.total, session.version]
    expect(actual, [1, 7, 1, 1], "calls that ran, conflicts, the total and the version")


@probe("expected version")
def resets_change_the_version_failures_do_not(target: Target) -> None:
    """A failed call doesn't change the version. A reset does."""
    session = target.create()
    session.error("add_and_fail", {"amount": 1})
    expect(session.run("add", {"amount": 1}, expected_version=0), 1, "the result at version 0 after a failed call")
    session.ask("reset_session")
    expect(
        session.error_code("add", {"amount": 1}, expected_version=1), CONFLICT, "the code at version 1 after a reset"
    )
    expect(session.run("add", {"amount": 1}, expected_version=2), 1, "the result at version 2 after a reset")
