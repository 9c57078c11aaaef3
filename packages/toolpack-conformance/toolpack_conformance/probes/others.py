"""Probes for servers of other protocols.

If a protocol can't express a guarantee, no probe checks it. These probes require no more than the probes of this
server's own protocol.
"""

import json
import time
from collections.abc import Callable
from typing import Any, NamedTuple, cast

from toolpack_conformance.others import CallFailed, McpSession, Open, OpenEnvSession, OrsSession, OtherSession, run
from toolpack_conformance.probes.probe import INVALID, NO_METHOD, PARSE, at_once
from toolpack_conformance.target import TOOLPACK, Failed, Refused, expect, parse_json

_ORS, _OPENENV, _MCP = "ors", "openenv", "mcp"
PROTOCOLS = (_ORS, _OPENENV, _MCP)
_MIB = 1 << 20


class OtherProbe(NamedTuple):
    """A check of one sentence of a guarantee, for servers of some protocols."""

    guarantee: str
    sentence: str
    run: Callable[[Open], None]
    protocols: tuple[str, ...]


OTHERS: list[OtherProbe] = []


def other(guarantee: str, *protocols: str) -> Callable[[Callable[[Open], None]], Callable[[Open], None]]:
    """Register a function as a probe for these protocols. Its docstring is the sentence that the server must keep."""

    def add(probe: Callable[[Open], None]) -> Callable[[Open], None]:
        OTHERS.append(OtherProbe(guarantee, (probe.__doc__ or "").strip(), probe, protocols or PROTOCOLS))
        return probe

    return add


def _contents(session: OtherSession) -> list[Any]:
    """Return the total, the list and the note."""
    return [run(session, function) for function in ("total", "second", "read_note")]


def _error(session: OtherSession, function: str, **kwargs: Any) -> str:
    """Call a function that must fail, and return the error."""
    (result,) = session.together([(function, kwargs)])
    if not isinstance(result, CallFailed):
        raise Failed(f"{function} must fail, but its result is {result!r}")
    return str(result)


@other("isolation")
def sessions_are_isolated(open_session: Open) -> None:
    """A change in one session isn't visible in another."""
    one, second = open_session(), open_session()
    run(one, "add_and_wait", amount=5, seconds=0)
    expect(_contents(second), [0, [], ""], "the other session's total, list and note")
    run(second, "add", amount=2)
    expect([run(one, "total"), run(second, "total")], [5, 2], "the totals of both sessions")


@other("isolation")
def many_sessions_at_once(open_session: Open) -> None:
    """Sixteen sessions that are changed at the same time don't affect each other."""
    sessions = at_once(16, lambda _: open_session())
    at_once(16, lambda n: [run(sessions[n], "add", amount=n) for _ in range(3)])
    totals = [run(session, "total") for session in sessions]
    expect(totals, [3 * n for n in range(16)], "the totals of all sessions")


@other("atomic")
def a_failed_call_changes_nothing(open_session: Open) -> None:
    """A call that raises changes nothing, and the client gets the error."""
    session = open_session()
    run(session, "add", amount=1)
    (answer,) = session.together([("add_and_fail", {"amount": 10})])  # an error, or a result with the message
    expect("failed after adding 10" in str(answer), True, "whether the error says why the call failed")
    expect(_contents(session), [1, [], ""], "the total, the list and the note after a failed call")


@other("atomic")
def wrong_arguments_change_nothing(open_session: Open) -> None:
    """A call of an unknown function or with wrong arguments is an error, and the session stays usable."""
    session = open_session()
    _error(session, "no_such_function")
    _error(session, "add")
    _error(session, "add", amount=1, other=2)
    expect(run(session, "add", amount=1), 1, "the total of the next call")


@other("ordered")
def calls_run_one_at_a_time(open_session: Open) -> None:
    """Calls on one session that are sent at the same time run one after the other, and none is lost."""
    session = open_session()
    answers = session.together([("add_and_wait", {"amount": 1, "seconds": 0.03})] * 12)
    expect(sorted(answers), [*range(1, 13)], "the totals in the results")
    expect(run(session, "total"), 12, "the total")


@other("exactly once", _ORS)
def a_repeated_call_runs_once(open_session: Open) -> None:
    """A call that is sent several times with one task_id, at the same time and later, runs once."""
    session = _ors(open_session)
    call = ("add_and_wait", {"amount": 1, "seconds": 0.1})
    outputs = [*at_once(8, lambda _: session.output(call, "one")), session.output(call, "one")]
    expect(outputs[1:], outputs[:1] * 8, "the responses to the same call")
    expect(_contents(session), [1, [1], "note of 1"], "the total, the list and the note")


@other("exactly once", _ORS)
def a_task_id_is_for_one_call(open_session: Open) -> None:
    """Another call with a used task_id is refused. Task_ids are separate for each episode."""
    sessions = [_ors(open_session) for _ in range(2)]
    for session in sessions:
        session.output(("add", {"amount": 1}), "one")
    try:
        raise Failed(
            f"a used task_id must be refused, but its result is {sessions[0].output(('add', {'amount': 2}), 'one')}"
        )
    except CallFailed:
        expect([run(session, "total") for session in sessions], [1, 1], "the totals of both")


@other("reset", _OPENENV)
def a_reset_restores_the_beginning(open_session: Open) -> None:
    """A reset restores the initial environment of the session, and doesn't affect other sessions."""
    session, second = open_session(), open_session()
    for each in (session, second):
        run(each, "add_and_wait", amount=1, seconds=0)
    session.reset()
    expect(_contents(session), [0, [], ""], "the total, the list and the note after a reset")
    expect(_contents(second), [1, [1], "note of 1"], "the total, the list and the note of another session")
    run(session, "append", number=4)
    expect(run(session, "second"), [4], "the list after the next call")


@other("exact")
def stored_values_are_exact(open_session: Open) -> None:
    """Types, shared objects, private state, large integers and all characters come back unchanged."""
    session = open_session()
    run(session, "keep_types")
    run(session, "append", number=1)
    kept = run(session, "kept_types")
    expect(kept[:4], ["(1, 2)", "{3}", "Decimal('1.10')", "b'four'"], "the stored values")
    expect(run(session, "second"), [1], "the second field")
    expect(run(session, "add", amount=2**53 + 1), 2**53 + 1, "the total")
    run(session, "write_note", text='a\n"b"\\é😀')
    expect(run(session, "read_note"), 'a\n"b"\\é😀', "the note")


@other("deadline")
def waiting_calls_delay_no_other_session(open_session: Open) -> None:
    """While calls in 48 sessions wait, calls in other sessions run."""
    sessions = [open_session() for _ in range(49)]
    for seconds in (3, 6, 9):  # a busy machine may need the longer times
        ended: list[int] = []  # indexes of the sessions, in the order that their calls ended

        def wait(number: int, seconds: int = seconds, ended: list[int] = ended) -> None:
            """Make three quick calls in session 0, or a call that waits in another session."""
            if number:
                run(sessions[number], "add_and_wait", amount=0, seconds=seconds)
            else:
                time.sleep(1)  # until the others have arrived
                for _ in range(3):
                    run(sessions[0], "add", amount=1)
            ended.append(number)

        at_once(49, wait)
        if ended[0] == 0:  # the quick calls ended before all waiting calls
            return
    raise Failed("three quick calls took longer than calls that waited for 9 s")


_ANSWER = "submit_answer"


def _reward(session: OtherSession, function: str, **kwargs: Any) -> float | None:
    """Return the reward of a call, or None if the call fails or has no reward."""
    try:
        reward = session.reward((function, kwargs))
    except CallFailed:
        return None
    return None if reward is None else float(reward)


@other("faults are no rewards", _ORS, _OPENENV)
def tasks_are_evaluated(open_session: Open) -> None:
    """A finished task has the reward 1, an unfinished one 0. A failing evaluator gives no reward."""
    for total, reward in ((0, 0.0), (4, None), (5, 1.0)):
        session = open_session()
        run(session, "add", amount=total)
        expect(_reward(session, _ANSWER, answer=""), reward, f"the reward where the total is {total}, and should be 5")


@other("faults are no rewards", _ORS, _OPENENV)
def a_reward_comes_once(open_session: Open) -> None:
    """The reward comes with the first answer, not with a call before it or a second answer."""
    session = open_session()
    rewards = [_reward(session, "add", amount=5), *(_reward(session, _ANSWER, answer="") for _ in range(2))]
    expect(rewards, [None, 1.0, None], "the rewards of a call and of two answers")


def _refuses(session: OtherSession, open_session: Open, function: str, **kwargs: Any) -> None:
    """Check that a call is refused and that the server keeps working. The server can close the connection."""
    try:
        (result,) = session.together([(function, kwargs)])
    except Refused:
        result = CallFailed()
    if result is None or len(str(result)) > _MIB:  # a short result might be the error message
        raise Failed(f"{function} with 64 MiB must fail, but it succeeds")
    expect(run(open_session(), "add", amount=1), 1, "the total of a new session after it")


@other("limits")
def a_large_result_is_refused(open_session: Open) -> None:
    """A result of 64 MiB is an error, and the server keeps working."""
    _refuses(open_session(), open_session, "repeat", text="x" * 64, times=_MIB)


@other("limits")
def a_large_request_is_refused(open_session: Open) -> None:
    """A request of 64 MiB is refused, and the server keeps working."""
    _refuses(open_session(), open_session, "write_note", text="x" * (64 * _MIB))


@other("limits")
def deep_json_is_refused(open_session: Open) -> None:
    """The server keeps working after JSON that is nested 100,000 levels deep."""
    open_session().send_deep()
    expect(run(open_session(), "add", amount=1), 1, "the total of a new session after it")


def _mcp(open_session: Open) -> Any:
    session = open_session()
    return session.mcp if isinstance(session, McpSession) else None


@other("JSON-RPC 2.0", _MCP)
def invalid_requests_are_refused(open_session: Open) -> None:
    """Invalid JSON, invalid requests and unknown methods are answered with the standard's error codes."""
    mcp = _mcp(open_session)
    expect(mcp.code("nothing"), NO_METHOD, "the code of an unknown method")
    for body, code in ((b"{", PARSE), ({"jsonrpc": "2.0", "id": 1, "method": 1}, INVALID)):
        expect(mcp.post(body).json().get("error", {}).get("code"), code, f"the code for {body!r}")


@other("JSON-RPC 2.0", _MCP)
def ids_are_returned(open_session: Open) -> None:
    """The response has the request's id unchanged, and a notification gets no answer."""
    mcp = _mcp(open_session)
    for request_id in ("a", "1", 0, 10**12):
        mcp.reply("ping", request_id=request_id)
    expect(mcp.notified.content, b"", "the response to a notification")


@other("MCP", _MCP)
def tools_are_listed_and_called(open_session: Open) -> None:
    """A client can initialize, list the tools with their parameters, and call them. A failing tool is isError."""
    mcp = _mcp(open_session)
    expect(mcp.greeting["protocolVersion"], "2025-06-18", "the version in the result of initialize")
    expect(mcp.ask("ping"), {}, "the result of ping")
    tools = {tool["name"]: tool for tool in mcp.ask("tools/list")["tools"]}
    expect([*tools["add"]["inputSchema"]["properties"]], ["amount"], "the parameters of add")
    expect(mcp.call("add", {"amount": 2})["content"][0]["text"], "2", "the content of a response")
    expect(mcp.call("add_and_fail", {"amount": 2}).get("isError"), True, "isError of a tool that fails")


def _ors(open_session: Open) -> OrsSession:
    return cast("OrsSession", open_session())


@other("ORS", _ORS)
def health_is_ok(open_session: Open) -> None:
    """GET /health reports ok, and the toolpack is among the environments."""
    session = _ors(open_session)
    expect(parse_json(session.send("/health")), {"status": "ok"}, "the response of /health")
    expect(TOOLPACK in parse_json(session.send("/list_environments")), True, "whether the toolpack is listed")


@other("ORS", _ORS)
def an_episode_has_prompt_and_tools(open_session: Open) -> None:
    """An episode has the prompt of its task as blocks, and its tools with their parameters."""
    session = _ors(open_session)
    expect([block["text"] for block in parse_json(session.send("/prompt"))], ["Make the total 5."], "the prompt")
    tools = {tool["name"]: tool for tool in parse_json(session.send("/task_tools"))["tools"]}
    expect([*tools["add"]["input_schema"]["properties"]], ["amount"], "the parameters of add")
    expect(_ANSWER in tools, True, "whether the answer is a tool")


@other("ORS", _ORS)
def errors_are_client_errors(open_session: Open) -> None:
    """Wrong requests are refused with a client error and a message in `detail`, never with a server error."""
    session = _ors(open_session)
    wrong: list[tuple[str, Any]] = [("/call", "{"), ("/call", {"name": 1}), ("/call", []), ("/create", {})]
    wrong += [("/nothing/tasks", {}), (f"/{TOOLPACK}/task", {"index": 99}), (f"/{TOOLPACK}/tasks", {"split": "no"})]
    for path, body in wrong:
        response = session.send(path, body)
        expect(response.is_client_error, True, f"whether {path} refuses {json.dumps(body)}")
        expect(type(parse_json(response)["detail"]), str, f"the detail of {path}'s refusal")
    session.close()
    expect(run(_ors(open_session), "add", amount=1), 1, "the total of a new episode after it")


@other("OpenEnv", _OPENENV)
def errors_have_openenv_codes(open_session: Open) -> None:
    """An invalid message is refused with OpenEnv's code, and the WebSocket stays open."""
    session = cast("OpenEnvSession", open_session())
    wrong = {"INVALID_JSON": "{", "UNKNOWN_TYPE": {"type": "nothing"}, "VALIDATION_ERROR": {"type": "step", "data": 1}}
    for code, message in wrong.items():
        expect(session.refusal(message).partition(":")[0], code, f"the code of the error for {message}")
    expect(run(session, "add", amount=1), 1, "the total of the next call")


@other("OpenEnv", _OPENENV)
def health_is_healthy(open_session: Open) -> None:
    """GET /health reports healthy."""
    session = cast("OpenEnvSession", open_session())
    expect(session.get("/health"), {"status": "healthy"}, "the response of /health")
