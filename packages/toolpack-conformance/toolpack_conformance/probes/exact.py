"""Exact: stored values come back unchanged."""

import json

from toolpack_conformance.probes.probe import probe
from toolpack_conformance.target import Failed, Session, Target, expect

_STORED = ["(1, 2)", "{3}", "Decimal('1.10')", "b'four'", "Colored(name='five!', color=<Color.RED: 'red'>)"]
_NOT_IN_A_DOUBLE = 2**53 + 1
_TEXT = 'a\n"b"\\\tc\u0000\u2028é😀'


@probe("exact")
def shared_objects_stay_shared(target: Target) -> None:
    """Two fields that refer to the same object still do so after calls, failed calls, forks and resets."""
    session = target.create()
    for number in (1, 2):
        session.run("append", {"number": number})
    session.error("add_and_fail", {"amount": 8})
    session.run("append", {"number": 3})
    expect(session.run("second"), [1, 2, 3], "the second field")
    (fork,) = session.forks()
    fork.run("append", {"number": 4})
    expect(fork.run("second"), [1, 2, 3, 4], "the second field of a fork")
    session.ask("reset_session", version=1)
    session.run("append", {"number": 5})
    expect(session.run("second"), [1, 5], "the second field after a reset")
    session.ask("reset_session")
    session.run("append", {"number": 6})
    expect(session.run("second"), [6], "the second field after a reset to version 0")


@probe("exact")
def private_state_is_kept(target: Target) -> None:
    """Private attributes are stored, and hidden from clients."""
    session = target.create()
    session.run("write_note", {"text": "a private note"})
    session.run("add", {"amount": 1})
    expect(session.run("read_note"), "a private note", "the private attribute")
    expect(session.forks()[0].run("read_note"), "a private note", "the private attribute of a fork")
    for method in ("get_environment", "diff_environment"):
        if "a private note" in json.dumps(session.ask(method)):
            raise Failed(f"{method} shows a private attribute")


@probe("exact")
def types_are_kept(target: Target) -> None:
    """Tuples, sets, decimals, bytes, enums and subclasses keep their types, and no validator runs again."""
    session = target.create()
    session.run("keep_types")
    _keeps_types(session, "after a call")
    session.run("add", {"amount": 1})
    _keeps_types(session, "after another call")
    _keeps_types(session.forks(version=1)[0], "in a fork")
    session.ask("reset_session")
    expect(session.run("kept_types"), ["None"], "the stored values after a reset to version 0")
    session.ask("reset_session", version=2)
    _keeps_types(session, "after a reset")


def _keeps_types(session: Session, when: str) -> None:
    expect(session.run("kept_types"), _STORED, f"the stored values {when}")


@probe("exact")
def numbers_and_texts_are_exact(target: Target) -> None:
    """Large integers and all characters come back unchanged."""
    session = target.create()
    results = [session.run("add", {"amount": amount}) for amount in (_NOT_IN_A_DOUBLE, 1)]
    expect([*results, session.total], [_NOT_IN_A_DOUBLE, *[_NOT_IN_A_DOUBLE + 1] * 2], "the totals")
    session.run("write_note", {"text": _TEXT})
    expect(session.run("read_note"), _TEXT, "the text")
    session.run("write_note", {"text": ""})
    expect(session.run("read_note"), "", "the empty text")
