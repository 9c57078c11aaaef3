"""Trajectories: what was said and called on a session's path, as messages of OpenAI's chat completions.

Pure. A trajectory shows what an agent has seen: the prompt, its own messages, calls and their results.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from toolpack_server.protocol.senders import AGENT
from toolpack_server.sessions.record_kinds import RecordKinds

Message = dict[str, Any]

_SAID = ("reward", "passed", "checks", "metrics", "valid", "failure", "perturbed", "variant")  # of a verdict


def trajectory(
    verdict: Mapping[str, Any], messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Get a session's trajectory, from the verdict on it; the functions are in OpenAI's format."""
    return {
        "task": verdict["task"],
        "session_id": verdict["session_id"],
        "labels": verdict["labels"],
        "messages": messages,
        "tools": tools,
        **said(verdict),
    }


def said(verdict: Mapping[str, Any]) -> dict[str, Any]:
    """Get what a trajectory has of a verdict."""
    return {name: verdict.get(name) for name in _SAID}


class Messages(list[Message]):
    """Messages of a path.

    Attributes:
        records: For each the record that it comes from; None for those of the prompt.
    """

    def __init__(self, prompt: str | Sequence[Message]) -> None:
        super().__init__(_prompt_messages(prompt))
        self.records: list[Mapping[str, Any] | None] = [None] * len(self)

    def add(self, kinds: RecordKinds, record: Mapping[str, Any]) -> None:
        kinds[record["kind"]].add_to_trajectory(self, record)
        self.records += [record] * (len(self) - len(self.records))


def messages(prompt: str | Sequence[Message], path: Sequence[Mapping[str, Any]], kinds: RecordKinds) -> Messages:
    """Get the messages of a path; the prompt comes first, unless the path begins with a message."""
    begins_with_one = path and kinds[path[0]["kind"]].message(path[0]) is not None
    found = Messages([] if begins_with_one else prompt)
    for record in path:
        found.add(kinds, record)
    return found


def participants_messages(told: Mapping[str, Any], path: Sequence[Mapping[str, Any]], kinds: RecordKinds) -> Messages:
    """Get the messages of a path as one of several participants has seen it.

    Its own messages are the assistant's, those of others the user's. What a client has recorded is the agent's.

    Args:
        told: What `get_task` tells at its address.
    """
    name, others = told["name"], told["others"]
    found = Messages(told.get("prompt") or [])
    for record in path:
        kind, by = kinds[record["kind"]], record.get("by")
        if kind.is_message and by is not None:
            if by != name and record.get("to") not in {None, name}:
                continue
            found.add(kinds, {**record, "role": "assistant" if by == name else "user"})
            if by != name and len(others) > 1:
                found[-1]["name"] = by
        elif by == name or (by is None and name == AGENT):
            found.add(kinds, record)
    return found


def _prompt_messages(prompt: str | Sequence[Message]) -> list[Message]:
    return [{"role": "user", "content": prompt}] if isinstance(prompt, str) else [dict(each) for each in prompt]


def offered_tools(tools: Sequence[Mapping[str, Any]], offered: Sequence[str] | None) -> list[Mapping[str, Any]]:
    """Get those of a session's functions that a task's agent has."""
    return [tool for tool in tools if _is_offered(tool["function"]["name"], offered)]


def _is_offered(name: str, offered: Sequence[str] | None) -> bool:
    """Whether a function, in a spelling without dots, is among those of the agent's address."""
    return offered is None or any(
        name in {each.replace(".", "__"), f"{name.partition('__')[0]}__{each}"} for each in offered
    )
