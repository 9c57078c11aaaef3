"""Rights of a session's participants: their functions, number of calls, prompt, and whether they can answer.

A request has the form `{name: {"functions", "max_calls", "prompt", "answers"}}` and can omit rights, which then get
their defaults. A session stores all rights, so that a later change to the task's code doesn't affect the session.

Rights come from a request, a task or a bundle. All three are checked by this module, so their error messages are the
same. All functions here are pure.
"""

import re
from collections.abc import Mapping
from typing import Any

from toolpack_server.base.errors import InvalidParamsError, shown
from toolpack_server.jsonio.strict import dumps
from toolpack_server.protocol.parameters import MAX_COUNT
from toolpack_server.protocol.senders import AGENT, CLIENT, WORLD

PARTICIPANTS = "participants"  # name of the request's parameter, and key of the rights in a session's recipe

Participants = Mapping[str, Mapping[str, Any]]
"""Rights, by participant."""

MEMBERS = ("functions", "max_calls", "prompt", "answers")
MAX_PARTICIPANTS = 16  # max participants of a session, including the agent
MAX_BYTES = 2**16  # max size of all rights as JSON
ROLES = ("system", "user", "assistant")  # roles of messages in a prompt

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_KINDS = {dict: "an object", list: "a list", str: "a string", bool: "a boolean", type(None): "null"}


def check_rights(participants: Mapping[str, Any]) -> None:
    """Check the form of rights, but not that the named functions exist.

    Raises:
        InvalidParamsError: The rights are invalid.
    """
    count = len({AGENT, *participants})
    if count > MAX_PARTICIPANTS:
        raise InvalidParamsError(
            f"A session has at most {MAX_PARTICIPANTS} participants including its agent; the request has {count}."
        )
    for name, rights in participants.items():
        problem = _problem(name, rights)
        if problem:
            raise InvalidParamsError(f"Participant {shown(str(name))!r}{problem}")
    size = len(dumps({name: {**rights} for name, rights in participants.items()}))
    if size > MAX_BYTES:
        raise InvalidParamsError(f"All participants together have {size} bytes; at most {MAX_BYTES} are allowed.")


def _problem(name: Any, rights: Any) -> str | None:
    """Return the error message for invalid rights, without its beginning, `Participant NAME`. None: they are valid."""
    members = ", ".join(MEMBERS)
    if not isinstance(name, str) or name in {CLIENT, WORLD} or not _NAME.fullmatch(name):
        return f": use 1-64 letters, digits or `_.-` as its name, and not `{CLIENT}` or `{WORLD}`."
    if not isinstance(rights, Mapping):
        return f" is {_KINDS.get(type(rights), 'a number')}: give an object of {members}."
    for member, value in rights.items():
        if member not in MEMBERS:
            return f": unknown field {shown(str(member))!r}: choose from {members}."
        if not _fits(member, value):
            return {
                "functions": ": functions must be a list of strings.",
                "max_calls": ": max_calls must be a non-negative integer.",
                "prompt": ": prompt must be a string or a list of {role, content}.",
                "answers": ": answers must be true or false.",
            }[member]
    return None


def _fits(member: str, value: Any) -> bool:
    """Return whether the value of a right is valid."""
    if member == "answers":
        return isinstance(value, bool)
    if value is None:
        return True
    if member == "max_calls":
        return type(value) is int and 0 <= value <= MAX_COUNT
    if member == "prompt":
        return is_prompt(value)
    return isinstance(value, list | tuple) and all(isinstance(name, str) for name in value)


def is_prompt(value: Any) -> bool:
    """Return whether a value is a prompt: a string, or a list of messages."""
    return isinstance(value, str) or (
        isinstance(value, list | tuple)
        and all(
            isinstance(message, Mapping)
            and message.keys() == {"role", "content"}
            and message["role"] in ROLES
            and isinstance(message["content"], str)
            for message in value
        )
    )


def merge_rights(base: Participants, overrides: Participants) -> dict[str, dict[str, Any]]:
    """Merge the rights of each participant. Rights in `overrides` take precedence over rights in `base`."""
    return {name: {**base.get(name, {}), **overrides.get(name, {})} for name in {**base, **overrides}}


def fill_defaults(participants: Participants) -> dict[str, dict[str, Any]]:
    """Return the participants with all their rights, where missing rights have defaults. The agent comes first."""
    default: dict[str, Any] = dict.fromkeys(MEMBERS)
    return {
        name: {**default, "answers": name == AGENT, **participants.get(name, {})}
        for name in {AGENT: None, **participants}
    }


def check_stored_rights(feature_options: Mapping[str, Any]) -> None:
    """Check the rights in the recipe of an imported session. Without participants, nothing is checked.

    Raises:
        InvalidParamsError: The rights are invalid, or don't have the form that a session stores.
    """
    participants = feature_options.get(PARTICIPANTS)
    if participants is None:
        return
    if not isinstance(participants, dict):
        raise InvalidParamsError("The participants must be an object.")
    check_rights(participants)
    if list(participants) != list(fill_defaults(participants)) or any(
        rights.keys() != {*MEMBERS} for rights in participants.values()
    ):
        raise InvalidParamsError("The participants aren't in the stored form: agent first, each with all members.")
