"""Trajectories: the messages and calls of a session's history, in the format of OpenAI's chat completions.

A trajectory shows the agent's view: the prompt, the agent's messages, its calls and their results. All functions here
are pure.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from toolpack_server.protocol.senders import AGENT
from toolpack_server.sessions.record_kinds import RecordKinds

Message = dict[str, Any]

_VERDICT_MEMBERS = ("reward", "passed", "checks", "metrics", "valid", "failure", "perturbed", "variant")


def trajectory(
    verdict: Mapping[str, Any], messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Return a session's trajectory with its verdict. `tools` lists the functions in OpenAI's format."""
    return {
        "task": verdict["task"],
        "session_id": verdict["session_id"],
        "labels": verdict["labels"],
        "messages": messages,
        "tools": tools,
        **verdict_members(verdict),
    }


def verdict_members(verdict: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a verdict that a trajectory also contains."""
    return {name: verdict.get(name) for name in _VERDICT_MEMBERS}


class Messages(list[Message]):
    """The messages of a trajectory.

    Attributes:
        records: For each message, the record from which it was made. None if the message belongs to the prompt.
    """

    def __init__(self, prompt: str | Sequence[Message]) -> None:
        super().__init__(_prompt_messages(prompt))
        self.records: list[Mapping[str, Any] | None] = [None] * len(self)

    def add(self, kinds: RecordKinds, record: Mapping[str, Any]) -> None:
        """Add the messages of a record. A call adds several messages, and some kinds of records add none."""
        kinds[record["kind"]].add_to_trajectory(self, record)
        self.records += [record] * (len(self) - len(self.records))


def messages(prompt: str | Sequence[Message], path: Sequence[Mapping[str, Any]], kinds: RecordKinds) -> Messages:
    """Return the messages of a history. The prompt comes first, unless the history begins with a message."""
    begins_with_message = path and kinds[path[0]["kind"]].message(path[0]) is not None
    result = Messages([] if begins_with_message else prompt)
    for record in path:
        result.add(kinds, record)
    return result


def participants_messages(
    agent_task: Mapping[str, Any], path: Sequence[Mapping[str, Any]], kinds: RecordKinds
) -> Messages:
    """Return the messages of a history as one of several participants saw them.

    The participant's own messages have the role `assistant`, all other messages `user`. A record that a client added
    without a sender counts as the agent's.

    Args:
        agent_task: The result of `get_task` at the participant's address.
    """
    name, others = agent_task["name"], agent_task["others"]
    result = Messages(agent_task.get("prompt") or [])
    for record in path:
        kind, by = kinds[record["kind"]], record.get("by")
        if kind.is_message and by is not None:
            if by != name and record.get("to") not in {None, name}:
                continue
            result.add(kinds, {**record, "role": "assistant" if by == name else "user"})
            if by != name and len(others) > 1:  # with one other participant, the sender is clear
                result[-1]["name"] = by
        elif by == name or (by is None and name == AGENT):
            result.add(kinds, record)
    return result


def _prompt_messages(prompt: str | Sequence[Message]) -> list[Message]:
    return [{"role": "user", "content": prompt}] if isinstance(prompt, str) else [dict(each) for each in prompt]


def offered_tools(tools: Sequence[Mapping[str, Any]], offered: Sequence[str] | None) -> list[Mapping[str, Any]]:
    """Return the functions of a session that a task offers to its agent.

    Args:
        offered: The task's `functions`. None: the task offers all functions.
    """
    return [tool for tool in tools if _is_offered(tool["function"]["name"], offered)]


def _is_offered(name: str, offered: Sequence[str] | None) -> bool:
    """Return whether a task offers a function.

    Args:
        name: The name in OpenAI's format, with `__` in place of the dot after the namespace.
    """
    return offered is None or any(
        name in {each.replace(".", "__"), f"{name.partition('__')[0]}__{each}"} for each in offered
    )
