"""Deadline: a call is answered when its time is over, and nobody else waits for it."""

import time
from concurrent.futures import ThreadPoolExecutor

from toolpack_conformance.probes.probe import LATE, probe
from toolpack_conformance.target import Failed, Target, expect

_WAITING = 48
WAITS = (3, 6, 9)  # seconds: a machine that does much else may need the longer ones
_LONG = 5  # seconds: a function that can't be interrupted takes a thread of the server as long
_NEW = [0, [], "", 0]
_WHAT = "the total, the list, the note and the version"


def _deadline_is_kept(target: Target, function: str) -> None:
    session, other = target.create(), target.create()
    session.error(function, {"amount": 1, "seconds": _LONG}, timeout_seconds=0.3)
    expect(other.run("add", {"amount": 1}), 1, "another session's total after a missed deadline")
    expect(session.look(), _NEW, f"{_WHAT} after a missed deadline")
    expect([session.run("add", {"amount": 2}), session.version], [2, 1], "the session's total and version after it")
    expect(session.calls()[0].get("failure"), "deadline", "the failure in the record of the call")


@probe("deadline")
def a_deadline_is_kept(target: Target) -> None:
    """A call is answered when its deadline passes, and changes nothing; the session and others go on."""
    _deadline_is_kept(target, "add_and_wait")


@probe("deadline")
def a_deadline_of_an_async_function_is_kept(target: Target) -> None:
    """The same holds for async functions."""
    _deadline_is_kept(target, "add_and_await")


@probe("deadline")
def what_a_late_function_does_is_lost(target: Target) -> None:
    """A function that ends after its deadline changes nothing any more, and the call's repeat runs nothing."""
    sessions = [target.create(), target.create()]
    for session, function in zip(sessions, ("add_and_wait", "add_and_await"), strict=True):
        kwargs = {"amount": 1, "seconds": 1.2}
        errors = [session.error(function, kwargs, timeout_seconds=0.3, call_id="a") for _ in range(2)]
        expect(errors[1], errors[0], "the error in the answer to the repeat")
        session.run("append", {"number": 5})
    time.sleep(1.5)
    for session in sessions:
        expect(session.look(), [0, [5], "", 1], f"{_WHAT} after the function has ended")
        calls = [record["function"] for record in session.calls()]
        expect(calls.count("add_and_wait") + calls.count("add_and_await"), 1, "how often the trace has the call")
        session.run("append", {"number": 6})
        expect(session.run("second"), [5, 6], "the list after the next call")


@probe("deadline")
def a_missed_deadline_is_an_error_if_asked_for(target: Target) -> None:
    """With raise_on_error, a missed deadline is a JSON-RPC error; a call that is in time has its answer."""
    session = target.create()
    kwargs = {"amount": 1, "seconds": _LONG}
    code = session.refused("add_and_wait", kwargs, timeout_seconds=0.2, raise_on_error=True)
    expect(code, LATE, "the code of a missed deadline")
    in_time = session.run("add_and_wait", {"amount": 1, "seconds": 0.3}, timeout_seconds=25)
    expect([in_time, session.total], [1, 1], "the total of a call in time, and after it")


@probe("deadline")
def waiting_calls_hold_up_no_other_session(target: Target) -> None:
    """While calls of 48 sessions wait, other sessions go on."""
    sessions = [target.create() for _ in range(_WAITING + 1)]
    for seconds in WAITS:
        held_up, total = False, sessions[0].total
        with ThreadPoolExecutor(_WAITING) as pool:
            kwargs = {"amount": 0, "seconds": seconds}
            waiting = [pool.submit(each.envelope, "add_and_wait", kwargs) for each in sessions[1:]]
            time.sleep(1)  # until they have arrived
            totals = [sessions[0].run("add", {"amount": 1}) for _ in range(3)]
            held_up = any(future.done() for future in waiting)  # all of them may wait for longer than is waited for
        expect(totals, [*range(total + 1, total + 4)], "the other session's totals")
        if not held_up:
            return
    raise Failed(f"three quick calls took longer than calls that waited for {WAITS[-1]} s")
