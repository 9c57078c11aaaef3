"""Fork and reset: a client can return to an older version, in the same session or in a new one."""

from toolpack_conformance.probes.probe import NO_VERSION, PARAMETERS, probe
from toolpack_conformance.target import Failed, Target, expect

_WHAT = "the total, the list, the note and the version"


@probe("fork")
def forks_are_independent(target: Target) -> None:
    """Forks begin with their parent's environment, including private state. Later changes are independent."""
    session = target.create()
    session.run("add_and_wait", {"amount": 5, "seconds": 0}, call_id="a")
    session.run("write_note", {"text": "parent"})
    one, other = session.forks(count=2)
    three = [session, one, other]
    if any(len({getattr(each, name) for each in three}) < len(three) for name in ("id", "agent_path", "mcp_path")):
        raise Failed("a fork has the id or a path of another session")
    expect(session.version, 2, "the parent's version after a fork")
    expect(one.contents(), [5, [5], "parent", 0], f"{_WHAT} of a new fork")
    for each, number in ((session, 10), (one, 1)):
        each.run("add", {"amount": number})
        each.run("append", {"number": number})
        each.run("write_note", {"text": f"wrote {number}"})
    expect(session.contents(), [15, [5, 10], "wrote 10", 5], f"{_WHAT} of the parent")
    expect(one.contents(), [6, [5, 1], "wrote 1", 3], f"{_WHAT} of one fork")
    expect(other.contents(), [5, [5], "parent", 0], f"{_WHAT} of the other fork")


@probe("fork")
def a_fork_is_a_new_session(target: Target) -> None:
    """A new fork has an empty trace, names its parent, and has its own labels and its own agent."""
    session = target.create()
    session.run("add", {"amount": 5})
    (fork,) = session.forks(labels={"conform": target.label, "fork": "yes"})
    expect(fork.ask("get_trace"), [], "the trace of a new fork")
    expect(fork.description.get("parent"), {"session_id": session.id, "version": 1}, "the parent of a fork")
    expect(session.description.get("parent"), None, "the parent of a session that is no fork")
    expect(fork.description["labels"].get("fork"), "yes", "the label that the fork was given")
    listed = target.result("list_sessions", {"labels": {"conform": target.label}, "parent": session.id})
    expect([each["session_id"] for each in listed], [fork.id], "the sessions in list_sessions with this parent")
    expect(fork.run_as_agent("add", {"amount": 1}), 6, "the total for the fork's agent")
    expect([session.total, fork.total], [5, 6], "the totals of the session and of its fork")


@probe("fork")
def all_forks_of_a_request_are_alike(target: Target) -> None:
    """All forks of one request have the requested version and labels."""
    session = target.create()
    session.run_all([("append", {"number": number}) for number in (1, 2)])
    forks = session.forks(version=1, count=3, labels={"conform": target.label, "alike": "yes"})
    expect(len({fork.id for fork in forks}), 3, "the number of forks")
    for number, fork in enumerate(forks, 1):
        actual = [fork.description.get("parent"), fork.description["labels"].get("alike"), fork.run("second")]
        expected = [{"session_id": session.id, "version": 1}, "yes", [1]]
        expect(actual, expected, f"parent, label and list of fork {number} of 3")
        expect(fork.run_as_agent("add", {"amount": number}), number, f"the total for the agent of fork {number} of 3")
    expect([fork.total for fork in forks], [1, 2, 3], "the totals of the forks")


@probe("fork")
def an_older_version_can_be_forked(target: Target) -> None:
    """A fork of an older version always has that version's environment. Unknown versions are refused."""
    session = target.create()
    session.run_all([("append", {"number": number}) for number in (1, 2, 3)])
    for _ in range(2):
        forks = [session.forks(version=version)[0] for version in range(4)]
        for fork in forks:
            expect(
                fork.description.get("parent", {}).get("version"),
                forks.index(fork),
                "the version in the parent of a fork",
            )
            fork.run("append", {"number": 9})
        lists = [fork.run("second") for fork in forks]
        expect(lists, [[9], [1, 9], [1, 2, 9], [1, 2, 3, 9]], "the lists of forks of the versions 0 to 3")
    expect(session.run("second"), [1, 2, 3], "the list of the session after the changes in its forks")
    expect(session.code("fork_session", version=4), NO_VERSION, "the code of a fork of a version that never existed")
    expect(session.code("fork_session", version=-1), PARAMETERS, "the code of a fork of version -1")


@probe("fork")
def a_fork_can_be_forked(target: Target) -> None:
    """A fork of a fork has the fork's environment. Its path begins with the calls of all its ancestors."""
    session = target.create()
    session.run("add", {"amount": 1})
    (fork,) = session.forks()
    fork.run("add", {"amount": 10})
    (last,) = fork.forks()
    (first,) = fork.forks(version=0)
    last.run("add", {"amount": 100})
    path = [record["result"] for record in last.ask("get_trace", path=True)]
    expect(path, [1, 11, 111], "the results on the path of the fork of the fork")
    expect([session.total, fork.total, last.total, first.total], [1, 11, 111, 1], "the totals")


@probe("fork")
def a_fork_outlives_its_parent(target: Target) -> None:
    """A fork stays usable after its parent is closed, and its path still begins with the parent's calls."""
    session = target.create()
    session.run("add", {"amount": 5})
    fork, other = session.forks(count=2)
    session.ask("close_session")
    fork.run("add", {"amount": 1})
    other.ask("close_session")
    path = [record["result"] for record in fork.ask("get_trace", path=True)]
    expect([fork.total, path], [6, [5, 6]], "the total of the fork, and the results on its path")
    fork.ask("reset_session")
    expect([fork.total, fork.forks()[0].total], [5, 5], "the total of the fork after a reset, and of its own fork")


@probe("reset")
def a_reset_restores_a_version(target: Target) -> None:
    """A reset creates a new version with the environment of an older one, including private state."""
    session = target.create()
    session.run("add_and_wait", {"amount": 1, "seconds": 0})
    session.run("append", {"number": 2})
    session.run("write_note", {"text": "later"})
    reset = session.ask("reset_session", version=1)
    actual = [reset.get(name) for name in ("version", "session_id", "agent_path")]
    expect(actual, [4, session.id, session.agent_path], "version, session_id and agent_path in the result of a reset")
    expect(session.contents(), [1, [1], "note of 1", 4], f"{_WHAT} after a reset to version 1")
    session.ask("reset_session")
    expect(session.contents(), [0, [], "", 5], f"{_WHAT} after a reset to version 0")
    expect(session.ask("diff_environment"), [], "the difference to version 0 after a reset to version 0")
    session.ask("reset_session", version=3)
    expect(session.contents(), [1, [1, 2], "later", 6], f"{_WHAT} after a reset to version 3")
    expect(session.run_as_agent("add", {"amount": 1}), 2, "the total for the agent after the reset")


@probe("reset")
def later_changes_keep_old_versions(target: Target) -> None:
    """A version can be restored several times, and isn't affected by changes in between."""
    session = target.create()
    session.run("append", {"number": 1})
    for number in (2, 3):
        session.run("append", {"number": number})
        session.ask("reset_session", version=1)
        expect(session.run("second"), [1], "the list after a reset to version 1")
        session.run("append", {"number": 9})
        session.ask("reset_session")
        expect(session.run("second"), [], "the list after a reset to version 0")


@probe("reset")
def a_reset_affects_one_session(target: Target) -> None:
    """A reset doesn't change other sessions or forks. A reset to an unknown version is refused."""
    session, other = target.create(), target.create()
    for each in (session, other):
        each.run("append", {"number": 1})
    (fork,) = session.forks()
    fork.run("append", {"number": 2})
    session.ask("reset_session")
    expect([each.run("second") for each in (session, other, fork)], [[], [1], [1, 2]], "the lists after a reset")
    fork.ask("reset_session")
    expect([each.run("second") for each in (session, other, fork)], [[], [1], [1]], "the lists after the fork's reset")
    expect(session.code("reset_session", version=9), NO_VERSION, "the code of a reset to a version that never existed")
    expect(session.version, 2, "the version after the refused reset")


@probe("reset")
def a_reset_keeps_the_records(target: Target) -> None:
    """A reset keeps all records and call_ids, and adds a record. The path continues from the old version."""
    session = target.create()
    session.run("add", {"amount": 1}, call_id="a")
    session.ask("reset_session")
    expect(session.run("add", {"amount": 1}, call_id="a"), 1, "the repeated result after a reset")
    session.run("add", {"amount": 5})
    records = session.ask("get_trace")
    kinds = [record["kind"] for record in records]
    expect([session.total, kinds], [5, ["call", "reset", "call"]], "the total, and the kinds of records")
    expect([records[1]["to_version"], records[1]["version"]], [0, 2], "to_version and version of the reset's record")
    path = [record["result"] for record in session.ask("get_trace", path=True) if record["kind"] == "call"]
    expect(path[:1], [5], "the result of the first call on the path")
