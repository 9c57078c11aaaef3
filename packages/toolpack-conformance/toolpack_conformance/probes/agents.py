"""Secrecy: an agent can call its functions, but can't control its session or read secrets."""

import json
from itertools import combinations, zip_longest
from typing import Any

from toolpack_conformance.probes.probe import MCP_SESSION_NOT_FOUND, NO_METHOD, SESSION_NOT_FOUND, probe
from toolpack_conformance.target import Failed, Session, Target, expect

_NOT_FOR_AGENTS = (
    "add_message",
    "close_session",
    "create_session",
    "diff_environment",
    "evaluate_session",
    "export_bundle",
    "fork_session",
    "get_environment",
    "get_session",
    "get_solution",
    "get_trace",
    "import_bundle",
    "list_sessions",
    "list_tasks",
    "list_toolpacks",
    "replay_session",
    "reset_session",
    "summarize_sessions",
)
_UNAUTHORIZED = 401
_KEY = 20  # min characters of a key or an id; 15 random bytes in base64, and a UUID, have at least this length
_DIFFERENT = 8  # min number of positions in which two keys differ
_DIFFERENT_IDS = 12  # the same for ids; UUIDs of version 1 differ less, because they contain the time


def _reply(target: Target, session: Session, method: str, params: Any) -> dict[str, Any]:
    return target.reply(method, params, session.agent_path)


@probe("secrecy")
def an_agent_controls_nothing(target: Target) -> None:
    """An agent path offers list_functions and run_function, but no method that reads or controls a session."""
    session = target.create()
    session.run("add", {"amount": 1})
    names = [function["name"] for function in _agents_functions(target, session)]
    expect("add" in names, True, "whether an agent's list of functions has add")
    expect(session.run_as_agent("add", {"amount": 1}), 2, "the total for the agent")
    for method in _NOT_FOR_AGENTS:
        for params in ({}, {"session_id": session.id}, [session.id]):
            code = target.code(method, params, session.agent_path)
            expect(code, NO_METHOD, f"the code of {method} at an agent's path")
    batch = [{"jsonrpc": "2.0", "id": 1, "method": "reset_session", "params": {}}]
    target.post(json.dumps(batch).encode(), session.agent_path)
    target.post(json.dumps({**batch[0], "params": {"session_id": session.id}}).encode(), session.agent_path)
    expect([session.total, session.version], [2, 2], "the total and the version after all these requests")


def _agents_functions(target: Target, session: Session) -> Any:
    envelope = _reply(target, session, "list_functions", {})["result"]
    return envelope["result"] if isinstance(envelope, dict) else envelope


@probe("secrecy")
def an_agent_stays_in_its_session(target: Target) -> None:
    """An agent path belongs to one session. An agent can't reach another session by its id."""
    one, other = target.create(), target.create()
    call = {"session_id": other.id, "function": "add", "kwargs": {"amount": 1}}
    target.reply("run_function", call, one.agent_path)
    expect(other.total, 0, "the total of another session, after an agent has sent its id")
    before = one.total
    expect(one.run_as_agent("add", {"amount": 1}), before + 1, "the total for the agent")
    expect([one.total, other.total], [before + 1, 0], "the totals of the agent's session and of the other session")


@probe("secrecy")
def an_agents_path_is_a_secret(target: Target) -> None:
    """An agent path can't be guessed from the session's id, from another path, or from a part of it."""
    one, other = target.create(), target.create()
    keys = [session.agent_path.rpartition("/")[2] for session in (one, other)]
    for session, key in zip((one, other), keys, strict=True):
        if len(key) < _KEY:
            raise Failed(f"the key in an agent's path has {len(key)} characters, too few to hold 128 bits")
        if session.id in key or key in session.id:
            raise Failed("the key in an agent's path contains the session's id, or the id contains the key")
    if len(keys[0]) == len(keys[1]) and sum(a != b for a, b in zip(*keys, strict=True)) < _DIFFERENT:
        raise Failed(f"the keys of two agents' paths differ in fewer than {_DIFFERENT} places")
    key = keys[0]
    for wrong in (key[:-1] + _other(key[-1]), _other(key[0]) + key[1:], key[:-1], key + "0", key[:16], one.id, "0"):
        code = target.code_without_session("list_functions", f"/agents/{wrong}")
        expect(code, SESSION_NOT_FOUND, "the code for an agent's path that was changed a little")
    mcp_key = one.mcp_path.rpartition("/")[2]
    for wrong in (mcp_key[:-1] + _other(mcp_key[-1]), one.id):
        code = target.code_without_session("tools/list", f"/mcp/{wrong}")
        expect(code, MCP_SESSION_NOT_FOUND, "the code for an mcp_path that was changed a little")


def _other(character: str) -> str:
    return "1" if character == "0" else "0"


@probe("secrecy")
def a_sessions_id_cant_be_guessed(target: Target) -> None:
    """The ids of sessions and forks can't be guessed from earlier ids."""
    sessions = [target.create() for _ in range(6)]
    ids = [each.id for each in (*sessions, *sessions[0].forks(count=2))]
    for one, other in combinations(ids, 2):
        if min(len(one), len(other)) < _KEY:
            raise Failed(f"the id of a session has {min(len(one), len(other))} characters, too few to hold 128 bits")
        if sum(a != b for a, b in zip_longest(one, other)) < _DIFFERENT_IDS:
            raise Failed(f"the ids of two sessions differ in fewer than {_DIFFERENT_IDS} places")


@probe("secrecy")
def an_agent_learns_no_id(target: Target) -> None:
    """No answer at an agent path contains the session's id, its task's name, or the task's solution."""
    session = target.create(task="conform/three")
    session.run("add", {"amount": 1})
    task = _reply(target, session, "get_task", {})
    expect(task["result"]["prompt"], "Make the total 3.", "the prompt in the result of get_task")
    replies = [
        task,
        _reply(target, session, "list_functions", {}),
        _reply(target, session, "run_function", {"function": "add", "kwargs": {"amount": 1}}),
        _reply(target, session, "run_function", {"function": "add_and_fail", "kwargs": {"amount": 1}}),
        _reply(target, session, "run_function", {"function": "add", "kwargs": {"amount": "many"}}),
        _reply(target, session, "run_function", {"function": "add", "kwargs": {}, "expected_version": 77}),
        _reply(target, session, "run_function", {"function": "nothing", "raise_on_error": True}),
        _reply(target, session, "run_function", {}),
        _reply(target, session, "get_task", {"task": "no such task"}),
        *[_reply(target, session, method, {}) for method in _NOT_FOR_AGENTS],
    ]
    text = json.dumps(replies)
    for secret, name in (
        (session.id, "the session's id"),
        ("conform/three", "the name of the task"),
        ("solved", "a part of the solution"),
    ):
        if secret in text:
            raise Failed(f"a response to an agent contains {name}")


@probe("secrecy")
def agent_keys_are_only_in_descriptions(target: Target) -> None:
    """An agent's key isn't in results, errors, environments or traces, or in answers to other sessions' agents."""
    session, other = target.create(task="conform/three"), target.create()
    session.run_as_agent("add", {"amount": 3})
    session.run("add", {"amount": 1}, expected_version=1)
    replies = [
        session.envelope("add_and_fail", {"amount": 1}),
        session.envelope("nothing"),
        session.target.reply("run_function", {"session_id": session.id, "function": "add", "expected_version": 99}),
        session.ask("list_functions"),
        session.ask("get_environment"),
        session.ask("get_trace"),
        session.ask("diff_environment"),
        session.ask("evaluate_session"),
        session.ask("get_solution"),
        target.result("list_toolpacks"),
        target.result("list_tasks"),
        target.reply("get_session", {"session_id": "unknown"}),
        other.ask("get_session"),
        _reply(target, other, "list_functions", {}),
        _reply(target, other, "run_function", {"function": "nothing"}),
        _reply(target, other, "get_task", {}),
        _reply(target, other, "list_sessions", {}),
    ]
    text = json.dumps(replies)
    for path in (session.agent_path, session.mcp_path):
        if path.rpartition("/")[2] in text:
            raise Failed("a response other than the session's description contains the key of its agent")


@probe("secrecy")
def tokens_are_required(target: Target) -> None:
    """A server with tokens refuses clients without a token or with a wrong one. Agents need no token."""
    session = target.create()
    request = b'{"jsonrpc":"2.0","id":1,"method":"list_sessions","params":{}}'
    if target.has_token:
        for headers in ({}, {"Authorization": "Bearer of-another-token"}):
            status = target.post(request, headers=headers, token=False).status_code
            expect(status, _UNAUTHORIZED, "the HTTP status for a client without the token")
    expect(session.run_as_agent("add", {"amount": 1}), 1, "the total for the agent, who has no token")
