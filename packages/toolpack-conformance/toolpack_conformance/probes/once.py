"""Exactly once: a repeated request with the same call_id gets the first answer and runs nothing again."""

from uuid import uuid4

from toolpack_conformance.probes.probe import CONFLICT, PARAMETERS, REUSED, at_once, probe
from toolpack_conformance.target import Target, expect

_LONGEST = 128  # max characters of a call_id
_MANY = 500  # number of calls with a call_id
_TOGETHER = 50  # number of these calls in a batch


@probe("exactly once")
def a_repeat_runs_nothing(target: Target) -> None:
    """A repeated call with the same call_id gets the same answer, runs once, and is recorded once."""
    session = target.create()
    answers = [session.run("add", {"amount": 3}, call_id="a") for _ in range(3)]
    session.run("add", {"amount": 1}, call_id="b")
    answers.append(session.run("add", {"amount": 3}, call_id="a"))
    expect([*answers, session.total, session.version], [3, 3, 3, 3, 4, 2], "the results, the total and the version")
    call_ids = [record.get("call_id") for record in session.calls()]
    expect(call_ids, ["a", "b", None], "the call_ids in the trace")


@probe("exactly once")
def a_failure_is_repeated_too(target: Target) -> None:
    """A repeated call with the same call_id gets the same error if it failed."""
    session = target.create()
    errors = [session.error("add_and_fail", {"amount": 1}, call_id="a") for _ in range(2)]
    expect(errors[1], errors[0], "the second error")
    expect(len(session.calls()), 1, "the number of calls in the trace")


@probe("exactly once")
def repeats_at_the_same_time(target: Target) -> None:
    """A call that is sent eight times at the same time with one call_id runs once."""
    session = target.create()
    kwargs = {"amount": 2, "seconds": 0.3}
    answers = at_once(8, lambda _: session.run("add_and_wait", kwargs, call_id="a"))
    expect([answers, session.total, session.version], [[2] * 8, 2, 1], "the results, the total and the version")


@probe("exactly once")
def another_call_with_the_same_id(target: Target) -> None:
    """A request with a call_id that another request has used is refused and runs nothing."""
    session = target.create()
    session.run("add", {"amount": 2}, call_id="a")
    expect(session.error_code("add", {"amount": 3}, call_id="a"), REUSED, "the code with another argument")
    expect(session.error_code("append", {"number": 2}, call_id="a"), REUSED, "the code with another function")
    expect(session.code("reset_session", call_id="a"), REUSED, "the code of reset_session")
    expect(session.contents(), [2, [], "", 1], "the total, the list, the note and the version")


@probe("exactly once")
def a_repeat_ignores_expected_version(target: Target) -> None:
    """A repeated call with the same call_id and expected_version gets the same answer, not a conflict."""
    session = target.create()
    answers = [session.run("add", {"amount": 2}, call_id="a", expected_version=0) for _ in range(2)]
    expect([*answers, session.total], [2, 2, 2], "the results and the total")


@probe("exactly once")
def call_ids_are_separate_per_session(target: Target) -> None:
    """Call_ids are separate for each session, for each fork, and for a session's agent and its client."""
    one, other = target.create(), target.create()
    one.run("add", {"amount": 1}, call_id="a")
    expect(other.run("add", {"amount": 2}, call_id="a"), 2, "the result in another session")
    (fork,) = one.forks()
    expect(fork.run("add", {"amount": 4}, call_id="a"), 5, "the result in a fork")
    expect(one.run_as_agent("add", {"amount": 8}, call_id="a"), 9, "the result for the session's agent")
    expect(one.run_as_agent("add", {"amount": 8}, call_id="a"), 9, "the result for the agent's repeat")
    expect(one.run("add", {"amount": 1}, call_id="a"), 1, "the result for the client's repeat")
    expect([one.total, other.total, fork.total], [9, 2, 5], "the totals")


@probe("exactly once")
def call_ids_are_compared_as_a_whole(target: Target) -> None:
    """A call_id has 1 to 128 characters, and all of them are compared."""
    session = target.create()
    ids = ["a", "A", "a ", "1", "é", "x" * (_LONGEST - 1) + "y", "x" * _LONGEST]
    totals = [session.run("add", {"amount": 1}, call_id=call_id) for call_id in ids]
    expect(totals, [*range(1, len(ids) + 1)], "the results of calls whose call_ids differ a little")
    for call_id in ("", "x" * (_LONGEST + 1)):
        code = session.error_code("add", {"amount": 1}, call_id=call_id)
        expect(code, PARAMETERS, f"the code with a call_id of {len(call_id)} characters")


@probe("exactly once")
def call_ids_are_not_forgotten(target: Target) -> None:
    """A session remembers its call_ids as long as it exists, also after 500 other calls and a reset."""
    session = target.create()
    first = session.run("add", {"amount": 7}, call_id="first")
    for start in range(0, _MANY, _TOGETHER):
        calls = [("add", {"amount": 1})] * _TOGETHER
        requests = [
            {"session_id": session.id, "function": function, "kwargs": kwargs, "call_id": f"{start + number}"}
            for number, (function, kwargs) in enumerate(calls)
        ]
        target.batch("run_function", requests)
    session.ask("reset_session", call_id="reset")
    expect(session.run("add", {"amount": 7}, call_id="first"), first, "the result for the repeat")
    expect(session.run("add", {"amount": 1}, call_id="0"), 8, "the result for the repeat of another call")
    expect([session.total, session.version], [0, _MANY + 2], "the total and the version")


@probe("exactly once")
def refused_calls_use_no_call_id(target: Target) -> None:
    """A call that was refused with a JSON-RPC error doesn't use up its call_id."""
    session = target.create()
    code = session.error_code("add", {"amount": 1}, call_id="a", expected_version=9)
    expect(code, CONFLICT, "the code at another version than the expected version")
    expect(session.run("add", {"amount": 1}, call_id="a"), 1, "the result for the same call without expected_version")


@probe("exactly once")
def sessions_are_created_once(target: Target) -> None:
    """Repeated create_session and fork_session with the same call_id create nothing again."""
    call_id = uuid4().hex
    sessions = at_once(4, lambda _: target.create(call_id=call_id))
    expect(len({session.id for session in sessions}), 1, "the number of sessions that create_session has created")
    one = sessions[0]
    expect(target.create(call_id=call_id).agent_path, one.agent_path, "the agent's path in the response to a repeat")
    forks = [one.ask("fork_session", count=2, call_id=f"{call_id}-f") for _ in range(2)]
    expect([f["session_id"] for f in forks[1]], [f["session_id"] for f in forks[0]], "the sessions of the second fork")
    code = target.code("create_session", {"toolpacks": ["conform"], "ttl_seconds": 60, "call_id": call_id})
    expect(code, REUSED, "the code of create_session with other parameters")
    code = one.code("fork_session", count=1, call_id=f"{call_id}-f")
    expect(code, REUSED, "the code of fork_session with other parameters")


@probe("exactly once")
def a_session_is_reset_once(target: Target) -> None:
    """A repeated reset_session with the same call_id gets the first answer and resets nothing again."""
    session = target.create()
    session.run("add", {"amount": 1})
    first = session.ask("reset_session", call_id="a")
    session.run("add", {"amount": 2})
    again = session.ask("reset_session", call_id="a")
    expect([first["version"], again["version"]], [2, 2], "the versions in the responses")
    expect([session.total, session.version], [2, 3], "the total and the version")
    expect(session.code("reset_session", version=1, call_id="a"), REUSED, "the code with another version")
