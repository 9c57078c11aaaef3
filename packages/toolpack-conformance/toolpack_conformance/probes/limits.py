"""Limits: a server refuses requests, results and environments that are too large, and keeps working."""

import json
from typing import Any

from toolpack_conformance.probes.atomic import nested
from toolpack_conformance.probes.probe import PARAMETERS, TOO_LARGE, probe
from toolpack_conformance.target import Failed, Session, Target, expect, parse_json

_MIB = 1 << 20
_DEEPEST = 16  # max depth of nested calls
_SHOWN = 250  # an error must not contain this many characters of a name; 200 are allowed


def _check_alive(session: Session) -> None:
    expect(session.run("add", {"amount": 1}), 1, "the total of the next call")


@probe("limits")
def a_large_result_is_refused(target: Target) -> None:
    """A result of 64 MiB is an error, for clients and agents, and the server keeps working."""
    session = target.create()
    call = {"text": "x" * 64, "times": _MIB}
    session.error("repeat", call)
    code = session.error_code("repeat", call, raise_on_error=True)
    expect(code, TOO_LARGE, "the code of a result that is too large")
    envelope = target.result("run_function", {"function": "repeat", "kwargs": call}, session.agent_path)
    expect(isinstance(envelope["error"], str), True, "whether the agent's envelope has an error")
    _check_alive(session)


@probe("limits")
def a_large_environment_is_refused(target: Target) -> None:
    """An environment of 64 MiB is an error, and changes nothing."""
    session = target.create()
    session.run("write_note", {"text": "small"})
    session.error("write_note", {"text": nested("repeat", text="x" * 64, times=_MIB)})
    expect([session.run("read_note"), session.version], ["small", 1], "the note and the version after the refused call")
    _check_alive(session)


@probe("limits")
def a_large_request_is_refused(target: Target) -> None:
    """A request of 64 MiB is refused, and the server keeps working."""
    session = target.create()
    call = {"session_id": session.id, "function": "write_note", "kwargs": {"text": "x" * (64 * _MIB)}}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "run_function", "params": call}).encode()
    try:
        answer = target.post(body)
    except Failed:
        pass  # a server is allowed to close the connection before the body has arrived
    else:
        reply = parse_json(answer)
        if not (isinstance(reply, dict) and "error" in reply):
            raise Failed("a request of 64 MiB isn't answered with an error")
    expect(session.run("read_note"), "", "the note after the refused request")
    _check_alive(session)


@probe("limits")
def deep_json_is_refused(target: Target) -> None:
    """JSON that is nested 100,000 levels deep is refused, and the server keeps working."""
    session = target.create()
    deep = b"[" * 100_000 + b"]" * 100_000
    call = b'{"jsonrpc":"2.0","id":1,"method":"list_toolpacks","params":' + deep + b"}"
    for path in ("/rpc", session.agent_path):
        for body in (deep, call):
            reply = parse_json(target.post(body, path))
            members = reply if isinstance(reply, list) else [reply]
            if not all(isinstance(member, dict) and "error" in member for member in members):
                raise Failed("deeply nested JSON isn't answered with an error")
    _check_alive(session)


@probe("limits")
def nested_calls_have_a_limit(target: Target) -> None:
    """Nested calls are limited to a depth of 16, and to 100 in one call."""
    session = target.create()

    def chain(depth: int) -> Any:
        value: Any = 0
        for _ in range(depth):
            value = nested("add", amount=value)
        return value

    def tree(depth: int) -> dict[str, Any]:
        """Return arguments with 2 ** depth - 2 nested calls."""
        inner = nested("add_and_wait", **tree(depth - 1)) if depth > 1 else 0
        return {"amount": inner, "seconds": inner}

    expect(session.run("add_and_wait", tree(6)), 0, "the total with 62 nested calls")
    expect(session.run("add", {"amount": chain(_DEEPEST)}), 0, "the total with a depth of 16")
    session.error("add", {"amount": chain(_DEEPEST + 1)})
    session.error("add_and_wait", tree(7))
    expect(session.version, 2, "the version after these calls")
    _check_alive(session)


@probe("limits")
def numbers_out_of_range_are_refused(target: Target) -> None:
    """Out-of-range numbers of forks, seconds and records are refused, and nothing is created."""
    session = target.create()
    for count in (10**9, 0, -1):
        code = session.code("fork_session", count=count)
        expect(code in {PARAMETERS, TOO_LARGE}, True, f"whether a fork_session with the count {count} is refused")
    listed = target.result("list_sessions", {"labels": {"conform": target.label}, "parent": session.id})
    expect(listed, [], "the forks after the refused requests")
    expect(session.code("get_trace", limit=-1), PARAMETERS, "the code of get_trace with limit -1")
    params = {"toolpacks": ["conform"], "labels": {"conform": target.label}, "ttl_seconds": -1}
    expect(target.code("create_session", params), PARAMETERS, "the code of create_session with ttl_seconds -1")
    _check_alive(session)


@probe("limits")
def labels_have_a_limit(target: Target) -> None:
    """Labels of more than 16 KB are refused."""
    labels = {"conform": target.label, **{f"label{number}": "x" * 1000 for number in range(20)}}
    error = target.error("create_session", {"toolpacks": ["conform"], "labels": labels})
    expect(error["code"] in {PARAMETERS, TOO_LARGE}, True, "whether the code is that of wrong or too large parameters")
    listed = target.result("list_sessions", {"labels": {"conform": target.label, "label0": "x" * 1000}})
    expect(listed, [], "the sessions with such labels")


@probe("limits")
def errors_are_short(target: Target) -> None:
    """An error contains at most 200 characters of a name that the client sent."""
    session, name = target.create(), "n" * 100_000
    unknown = {"session_id": session.id, "function": name}
    for reply in (
        target.reply("run_function", unknown),
        target.reply("run_function", {**unknown, "raise_on_error": True}),
        target.reply(name),
        target.reply("create_session", {"toolpacks": [name]}),
    ):
        if name[:_SHOWN] in json.dumps(reply):
            raise Failed(f"an error contains {_SHOWN} characters of a name, or more")
    _check_alive(session)
