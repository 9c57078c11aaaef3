"""Isolation: sessions don't affect each other."""

import time
from typing import Any
from uuid import uuid4

from toolpack_conformance.probes.probe import MCP_SESSION_NOT_FOUND, SESSION_NOT_FOUND, at_once, probe
from toolpack_conformance.target import Target, expect

_OF_A_SESSION: dict[str, dict[str, Any]] = {
    "add_message": {"role": "user", "content": "x"},
    "close_session": {},
    "diff_environment": {},
    "evaluate_session": {},
    "export_bundle": {},
    "fork_session": {},
    "get_environment": {},
    "get_session": {},
    "get_solution": {},
    "get_trace": {},
    "list_functions": {},
    "replay_session": {},
    "reset_session": {},
    "run_function": {"function": "total"},
    "submit_answer": {"answer": "x"},
}
"""The methods that have the parameter session_id, with their other required parameters."""


@probe("isolation")
def sessions_are_isolated(target: Target) -> None:
    """A change in one session isn't visible in another session or in a new one."""
    one, other = target.create(), target.create()
    one.run("add", {"amount": 5})
    one.run("append", {"number": 1})
    one.run("write_note", {"text": "one"})
    expect(other.contents(), [0, [], "", 0], "the other session's total, list, note and version")
    expect(len(other.calls()), 3, "the number of calls in the other session's trace")
    expect(target.create().contents(), [0, [], "", 0], "a new session's total, list, note and version")
    other.run("add", {"amount": 2})
    expect([one.total, other.total], [5, 2], "the totals of both sessions")
    expect(one.ask("get_environment")["conform"]["total"], 5, "the total in one session's get_environment")


@probe("isolation")
def many_sessions_at_once(target: Target) -> None:
    """Sixteen sessions that are created and changed at the same time don't affect each other."""
    sessions = at_once(16, lambda _: target.create())
    expect(len({session.id for session in sessions}), 16, "the number of session_ids")
    expect(len({session.agent_path for session in sessions}), 16, "the number of agents' paths")
    at_once(16, lambda n: sessions[n].run_all([("add", {"amount": n}), ("append", {"number": n})] * 3))
    expect([session.total for session in sessions], [3 * n for n in range(16)], "the totals of all sessions")
    expect([session.run("second") for session in sessions], [[n] * 3 for n in range(16)], "the lists of all sessions")


@probe("isolation")
def a_closed_session_is_gone(target: Target) -> None:
    """Requests to a closed session, at all its paths, get the same error as for an unknown session."""
    closed, other = target.create(), target.create()
    closed.run("add", {"amount": 1})
    expect(closed.ask("close_session"), 1, "the result of close_session")
    for session_id, which in ((closed.id, "a closed session"), (uuid4().hex, "an id that never existed")):
        for method, params in _OF_A_SESSION.items():
            code = target.code(method, {"session_id": session_id, **params})
            expect(code, SESSION_NOT_FOUND, f"the code of {method} for {which}")
        code = other.code("diff_environment", to_session_id=session_id)
        expect(code, SESSION_NOT_FOUND, f"the code of diff_environment with {which} as to_session_id")
    code = target.code_without_session("list_functions", closed.agent_path)
    expect(code, SESSION_NOT_FOUND, "the code at the agent's path of a closed session")
    code = target.code_without_session("tools/list", closed.mcp_path)
    expect(code, MCP_SESSION_NOT_FOUND, "the code at the mcp_path of a closed session")
    expect(other.total, 0, "another session's total")


@probe("isolation")
def sessions_expire(target: Target) -> None:
    """A session expires ttl_seconds after its last call. Other sessions don't."""
    unused, used, other = target.create(ttl_seconds=1), target.create(ttl_seconds=6), target.create()
    for _ in range(3):
        used.run("add", {"amount": 1})
        time.sleep(1)
    expect(unused.code("get_session"), SESSION_NOT_FOUND, "the code 3 s after the last call, with ttl_seconds 1")
    expect(
        [used.total, other.total], [3, 0], "the totals of a session that was used, and of an unused one with a long TTL"
    )


@probe("isolation")
def labels_select_sessions(target: Target) -> None:
    """list_sessions and close_session select only sessions that have all the labels."""
    run = uuid4().hex
    labels = [{"run": run, "part": part, "conform": target.label} for part in ("a", "a", "b")]
    one, same, other = (target.create(labels=each) for each in labels)
    listed = target.result("list_sessions", {"labels": {"run": run, "part": "a"}})
    expect(sorted(each["session_id"] for each in listed), sorted([one.id, same.id]), "the sessions with two labels")
    expect(len(target.result("list_sessions", {"labels": {"run": run}})), 3, "the number of sessions with one label")
    expect(
        target.result("close_session", {"labels": {"run": run, "part": "a"}}),
        2,
        "the result of close_session with labels",
    )
    expect(one.code("get_session"), SESSION_NOT_FOUND, "the code of get_session for a session closed by its labels")
    expect(other.total, 0, "the total of a session with another label")
