"""Atomic: a call that fails changes nothing."""

import json
import re
from typing import Any

import jsonpatch

from toolpack_conformance.probes.probe import ARGUMENTS, NO_FUNCTION, RAISED, probe
from toolpack_conformance.target import Failed, Session, Target, expect

_AMOUNT_IS_A_TEXT = {"amount": "many"}
_NEW = [0, [], "", 0]
_WHAT = "the total, the list, the note and the version"


def nested(function: str, **args: Any) -> dict[str, Any]:
    """Return a call in the form in which it can be an argument of another call, which then receives its result."""
    return {"$call": {"function": function, "args": args}}


@probe("atomic")
def a_failed_call_changes_nothing(target: Target) -> None:
    """A call that raises changes nothing, not even private state. Its envelope names the exception."""
    session = target.create()
    session.run("add_and_wait", {"amount": 1, "seconds": 0})
    before = session.contents()
    expect(before, [1, [1], "note of 1", 1], f"{_WHAT} after a call")
    error = session.error("add_and_fail", {"amount": 10})
    expect(error, "ValueError: failed after adding 10", "the error in the envelope")
    expect(session.contents(), before, f"{_WHAT} after a failed call")
    expect(session.run("add", {"amount": 1}), 2, "the total of the next call")
    expect(session.contents(), [2, [1], "note of 1", 2], f"{_WHAT} after the next call")


@probe("atomic")
def agent_errors_are_in_the_envelope(target: Target) -> None:
    """Unknown functions and wrong arguments are errors in the envelope, as `Type: message`, not JSON-RPC errors."""
    session = target.create()
    for function, kwargs in (
        ("no_such_function", {}),
        ("add", _AMOUNT_IS_A_TEXT),
        ("add", {"amount": None}),
        ("add", {"amount": 1, "other": 2}),
        ("add", {}),
    ):
        error = session.error(function, kwargs)
        if not re.match(r"[\w.]+: ", error):
            raise Failed(f"an error in an envelope has the form `ErrorType: message`, not {error[:100]!r}")
    expect(session.contents(), _NEW, f"{_WHAT} after calls that couldn't run")


@probe("atomic")
def raise_on_error_gives_jsonrpc_errors(target: Target) -> None:
    """With raise_on_error, a failure is a JSON-RPC error. It also changes nothing."""
    session = target.create()
    for function, kwargs, code in (
        ("add_and_fail", {"amount": 10}, RAISED),
        ("ad", {"amount": 1}, NO_FUNCTION),
        ("add", _AMOUNT_IS_A_TEXT, ARGUMENTS),
        ("add", {"amount": 1, "other": 2}, ARGUMENTS),
        ("add", {}, ARGUMENTS),
    ):
        actual = session.error_code(function, kwargs, raise_on_error=True)
        expect(actual, code, f"the code for {function} with {json.dumps(kwargs)}")
    expect(session.contents(), _NEW, f"{_WHAT} after failed calls")
    expect(session.run("add", {"amount": 1}, raise_on_error=True), 1, "the result of a call that succeeds")


@probe("atomic")
def a_failed_nested_call_changes_nothing(target: Target) -> None:
    """If a call or one of its nested calls fails, none of them changes anything."""
    session = target.create()
    inner = nested("add_and_wait", amount=4, seconds=0)
    session.error("add_and_fail", {"amount": inner})
    expect(session.contents(), _NEW, f"{_WHAT} after a failed call with a nested call")
    session.error("add_and_wait", {"amount": inner, "seconds": nested("add_and_fail", amount=1)})
    expect(session.contents(), _NEW, f"{_WHAT} after a failed nested call")
    expect(session.run("add", {"amount": nested("add", amount=4)}), 8, "the result of a nested call that succeeds")
    expect(session.version, 1, "the version after this call")


@probe("atomic")
def a_failed_call_of_an_agent_changes_nothing(target: Target) -> None:
    """A call that fails at the agent path changes nothing."""
    session = target.create()
    failing = {"function": "add_and_fail", "kwargs": {"amount": 10}}
    envelope = target.result("run_function", failing, session.agent_path)
    expect(envelope["error"], "ValueError: failed after adding 10", "the error at the agent's path")
    expect(session.contents(), _NEW, f"{_WHAT} after a failed call of the agent's")


@probe("atomic")
def unstorable_state_fails(target: Target) -> None:
    """A call that leaves an object that can't be stored exactly fails, and changes nothing."""
    session = target.create()
    session.run("keep_types")
    types = session.run("kept_types")
    session.error("keep_unstorable")
    expect(
        [session.run("kept_types"), session.version],
        [types, 1],
        "the stored values and the version after the failed call",
    )


@probe("atomic")
def versions_count_changes(target: Target) -> None:
    """A successful call creates one version, a read-only or failed call none. Each version can be read."""
    session = target.create()
    expect(session.description["version"], 0, "the version of a new session")
    session.run("add", {"amount": 1})
    session.run("total")
    session.error("add_and_fail", {"amount": 1})
    expect([session.total, session.version], [1, 1], "the total and the version after a change, a read and a failure")
    session.run("append", {"number": 1})
    expect(session.version, 2, "the version after two changes")
    _sees_old_versions(session)


def _sees_old_versions(session: Session) -> None:
    """Check that a client can read the versions 0 to 2, and that patches between them are correct."""
    for version, total, numbers in ((0, 0, []), (1, 1, []), (2, 1, [1])):
        environment = session.ask("get_environment", version=version)["conform"]
        expect(
            [environment["total"], environment["first"]],
            [total, numbers],
            f"total and list in get_environment at {version}",
        )
    environment = {version: session.ask("get_environment", version=version) for version in (0, 2)}
    for start, end in ((0, 2), (2, 0)):  # forwards for additions, backwards for removals
        steps = session.ask("diff_environment", from_version=start, to_version=end)
        what = f"the environment of version {start} after the patch of diff_environment to version {end}"
        expect(jsonpatch.apply_patch(environment[start], steps), environment[end], what)
