"""The rights of a session's participants: what each may do at its address.

They are given by name, as `{name: {"functions", "max_calls", "prompt", "answers"}}`, without those that are as by
default.

Pure. Rights are checked wherever they come from, a request, a task or a bundle, with the same sentences. A
session keeps them written out whole, so edited code changes nothing that has begun.
"""

import re
from collections.abc import Mapping
from typing import Any

from toolpack_server.base.errors import InvalidParamsError, shown
from toolpack_server.jsonio.strict import dumps
from toolpack_server.protocol.parameters import MAX_COUNT
from toolpack_server.protocol.senders import AGENT, CLIENT

PARTICIPANTS = "participants"  # what a session keeps of its request by this name: rights, by participant

Participants = Mapping[str, Mapping[str, Any]]
"""Rights by the name of the participant."""

MEMBERS = ("functions", "max_calls", "prompt", "answers")
MOST = 16
MAX_BYTES = 2**16
ROLES = ("system", "user", "assistant")  # of the messages of a prompt

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_KINDS = {dict: "an object", list: "a list", str: "a text", bool: "true or false", type(None): "null"}


def check_rights(given: Mapping[str, Any]) -> None:
    """Check rights as far as that can be seen without the session's functions.

    Raises:
        InvalidParamsError: They aren't rights.
    """
    count = len({AGENT, *given})
    if count > MOST:
        raise InvalidParamsError(f"A session has at most {MOST} participants, its agent included: {count} are given.")
    for name, rights in given.items():
        problem = _problem(name, rights)
        if problem:
            raise InvalidParamsError(f"Participant {shown(str(name))!r}{problem}")
    size = len(dumps({name: {**rights} for name, rights in given.items()}))
    if size > MAX_BYTES:
        raise InvalidParamsError(f"All participants together have {size} bytes; {MAX_BYTES} are allowed.")


def _problem(name: Any, rights: Any) -> str | None:
    members = ", ".join(MEMBERS)
    if not isinstance(name, str) or name == CLIENT or not _NAME.fullmatch(name):
        return f": use 1-64 letters, digits or `_.-` as its name, and not `{CLIENT}`."
    if not isinstance(rights, Mapping):
        return f" is {_KINDS.get(type(rights), 'a number')}: give an object of {members}."
    for member, value in rights.items():
        if member not in MEMBERS:
            return f": there is no {shown(str(member))!r}: choose from {members}."
        if not _fits(member, value):
            return {
                "functions": ": functions is no list of texts.",
                "max_calls": ": max_calls is no number of calls.",
                "prompt": ": prompt is neither a text nor a list of {role, content}.",
                "answers": ": answers is neither true nor false.",
            }[member]
    return None


def _fits(member: str, value: Any) -> bool:
    if member == "answers":
        return isinstance(value, bool)
    if value is None:
        return True
    if member == "max_calls":
        return type(value) is int and 0 <= value <= MAX_COUNT
    if member == "prompt":
        return is_prompt(value)
    return isinstance(value, list | tuple) and all(isinstance(each, str) for each in value)


def is_prompt(value: Any) -> bool:
    """Whether a value is a prompt: a text, or messages."""
    return isinstance(value, str) or (
        isinstance(value, list | tuple)
        and all(
            isinstance(each, Mapping)
            and each.keys() == {"role", "content"}
            and each["role"] in ROLES
            and isinstance(each["content"], str)
            for each in value
        )
    )


def laid_over(below: Participants, above: Participants) -> dict[str, dict[str, Any]]:
    """Get the rights of both, member by member; what is above counts."""
    return {name: {**below.get(name, {}), **above.get(name, {})} for name in {**below, **above}}


def written_out(given: Participants) -> dict[str, dict[str, Any]]:
    """Get rights with all members; the agent comes first, and is there in any case."""
    default: dict[str, Any] = dict.fromkeys(MEMBERS)
    return {name: {**default, "answers": name == AGENT, **given.get(name, {})} for name in {AGENT: None, **given}}


def check_kept(kept: Mapping[str, Any]) -> None:
    """Check the rights that a session of a stranger keeps, if it has participants; raises as `check_rights`."""
    participants = kept.get(PARTICIPANTS)
    if participants is None:
        return
    if not isinstance(participants, dict):
        raise InvalidParamsError("The participants are no object.")
    check_rights(participants)
    if list(participants) != list(written_out(participants)) or any(
        rights.keys() != {*MEMBERS} for rights in participants.values()
    ):
        raise InvalidParamsError("The participants aren't written out as a session keeps them.")
