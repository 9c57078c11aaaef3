"""Deadline: a call is answered when its deadline passes, and doesn't delay other sessions."""

import time
from concurrent.futures import ThreadPoolExecutor

from toolpack_conformance.probes.probe import LATE, probe
from toolpack_conformance.target import Failed, Target, expect

_WAITING = 48  # number of sessions with a waiting call
WAITS = (3, 6, 9)  # seconds; the longer times are for a busy machine
_LONG = 5  # seconds; a function that can't be interrupted occupies a thread of the server for this time
_NEW = [0, [], "", 0]
_WHAT = "the total, the list, the note and the version"


def _deadline_is_kept(target: Target, function: str) -> None:
    """Check that a late call of a function fails in time, changes nothing, and blocks no later call."""
    session, other = target.create(), target.create()
    session.error(function, {"amount": 1, "seconds": _LONG}, timeout_seconds=0.3)
    expect(other.run("add", {"amount": 1}), 1, "another session's total after a missed deadline")
    expect(session.contents(), _NEW, f"{_WHAT} after a missed deadline")
    expect(
        [session.run("add", {"amount": 2}), session.version],
        [2, 1],
        "the session's total and version after the next call",
    )
    expect(session.calls()[0].get("failure"), "deadline", "the failure in the record of the call")


@probe("deadline")
def a_deadline_is_kept(target: Target) -> None:
    """A call is answered when its deadline passes, and changes nothing. All sessions stay usable."""
    _deadline_is_kept(target, "add_and_wait")


@probe("deadline")
def a_deadline_of_an_async_function_is_kept(target: Target) -> None:
    """A call of an async function is answered when its deadline passes, and changes nothing."""
    _deadline_is_kept(target, "add_and_await")


@probe("deadline")
def late_changes_are_dropped(target: Target) -> None:
    """A function that ends after its deadline changes nothing, and a repeat of the call doesn't run it again."""
    sessions = [target.create(), target.create()]
    for session, function in zip(sessions, ("add_and_wait", "add_and_await"), strict=True):
        kwargs = {"amount": 1, "seconds": 1.2}
        errors = [session.error(function, kwargs, timeout_seconds=0.3, call_id="a") for _ in range(2)]
        expect(errors[1], errors[0], "the error in the response to the repeat")
        session.run("append", {"number": 5})
    time.sleep(1.5)
    for session in sessions:
        expect(session.contents(), [0, [5], "", 1], f"{_WHAT} after the function has ended")
        calls = [record["function"] for record in session.calls()]
        expect(calls.count("add_and_wait") + calls.count("add_and_await"), 1, "how often the trace has the call")
        session.run("append", {"number": 6})
        expect(session.run("second"), [5, 6], "the list after the next call")


@probe("deadline")
def raise_on_error_applies_to_deadlines(target: Target) -> None:
    """With raise_on_error, a missed deadline is a JSON-RPC error. A call in time gets its result."""
    session = target.create()
    kwargs = {"amount": 1, "seconds": _LONG}
    code = session.error_code("add_and_wait", kwargs, timeout_seconds=0.2, raise_on_error=True)
    expect(code, LATE, "the code of a missed deadline")
    in_time = session.run("add_and_wait", {"amount": 1, "seconds": 0.3}, timeout_seconds=25)
    expect([in_time, session.total], [1, 1], "the result of a call in time, and the total after it")


@probe("deadline")
def waiting_calls_delay_no_other_session(target: Target) -> None:
    """While calls in 48 sessions wait, calls in other sessions run."""
    sessions = [target.create() for _ in range(_WAITING + 1)]
    for seconds in WAITS:
        held_up, total = False, sessions[0].total
        with ThreadPoolExecutor(_WAITING) as pool:
            kwargs = {"amount": 0, "seconds": seconds}
            waiting = [pool.submit(each.envelope, "add_and_wait", kwargs) for each in sessions[1:]]
            time.sleep(1)  # until they have arrived
            totals = [sessions[0].run("add", {"amount": 1}) for _ in range(3)]
            held_up = any(future.done() for future in waiting)  # an ended call might have delayed the quick calls
        expect(totals, [*range(total + 1, total + 4)], "the other session's totals")
        if not held_up:
            return
    raise Failed(f"three quick calls took longer than calls that waited for {WAITS[-1]} s")
