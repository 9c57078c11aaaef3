"""Trajectories in the Agent Trajectory Interchange Format (ATIF), version 1.8, which Harbor and other programs read.

A message's metadata goes into fields that ATIF defines, if the types match. All other metadata goes into `extra`, so
the trajectory stays valid and loses no metadata. All functions here are pure.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from toolpack_server.features.evaluation.tasks.trajectories import Message, Messages

VERSION = "ATIF-v1.8"
UNKNOWN = "unknown"
EMPTY = "Nothing has been said or called yet."  # the step of an empty trajectory, because ATIF requires a step
_SOURCES = {"system": "system", "user": "user", "assistant": "agent"}
_COUNTS = ("prompt_tokens", "completion_tokens", "cached_tokens")
_LISTS: dict[str, set[type]] = {"prompt_token_ids": {int}, "completion_token_ids": {int}, "logprobs": {int, float}}
_COST = "cost_usd"


def atif(
    session: Mapping[str, Any],
    messages: Messages,
    tools: Sequence[Mapping[str, Any]],
    extra: Mapping[str, Any],
) -> dict[str, Any]:
    """Return a session's trajectory in ATIF.

    Args:
        session: The result of `get_session`. Its labels `agent`, `agent_version` and `model` name the agent.
        messages: The messages of the session's history.
        tools: The functions, in OpenAI's format.
        extra: Further fields for the trajectory's `extra`.
    """
    steps = _steps(messages, session["session_id"]) or [{"source": "system", "message": EMPTY}]
    labels = session["labels"]
    models = [step["model_name"] for step in steps if "model_name" in step]
    agent = {"name": labels.get("agent", UNKNOWN), "version": labels.get("agent_version", UNKNOWN)}
    model = labels.get("model") or next(iter(models), None)
    if model is not None:
        agent["model_name"] = model
    return {
        "schema_version": VERSION,
        "session_id": session["session_id"],
        "trajectory_id": session["session_id"],
        "agent": {**agent, "tool_definitions": [*tools]},
        "steps": [{"step_id": number, **step} for number, step in enumerate(steps, 1)],
        "final_metrics": _totals(steps),
        "extra": {**extra, "labels": labels, "parent": session.get("parent")},
    }


def _steps(messages: Messages, session_id: str) -> list[dict[str, Any]]:
    """Convert messages to steps. The result of a call is added to the step of the message that made the call."""
    steps: list[dict[str, Any]] = []
    calls: list[Mapping[str, Any]] = []  # the calls in the assistant's last message
    agent_step: dict[str, Any] | None = None  # the step that gets the results of `calls`; None: create a step
    for message, record in zip(messages, messages.records, strict=True):
        if message["role"] == "tool":
            if agent_step is None or _differ(agent_step, record, session_id):
                agent_step = _step("agent", "", record, session_id)
                steps.append(agent_step)
            _add_call(agent_step, calls, message)
            continue
        calls, agent_step = message.get("tool_calls", []), None
        if message["content"] is None:
            continue
        step = _step(_SOURCES[message["role"]], message["content"], record, session_id)
        if "name" in message:
            step["extra"] = {"name": message["name"]}
        _add_metadata(step, message.get("metadata") or {})
        steps.append(step)
        agent_step = step if message["role"] == "assistant" else None
    return steps


def _step(source: str, text: str, record: Mapping[str, Any] | None, session_id: str) -> dict[str, Any]:
    """Return a step. If its record belongs to an ancestor of the session, mark the step as copied context."""
    step: dict[str, Any] = {"source": source, "message": text}
    if record is not None:
        step["timestamp"] = record["started_at"]
        if _is_copied(record, session_id):
            step["is_copied_context"] = True
    return step


def _is_copied(record: Mapping[str, Any] | None, session_id: str) -> bool:
    """Return whether a record belongs to an ancestor of the session."""
    return record is not None and str(record.get("session_id", session_id)) != session_id


def _differ(step: Mapping[str, Any], record: Mapping[str, Any] | None, session_id: str) -> bool:
    """Return whether only one of the two, the step or the record, belongs to an ancestor of the session.

    This happens when a fork calls a function after a message that its parent recorded. The call then gets its own step.
    """
    return ("is_copied_context" in step) is not _is_copied(record, session_id)


def _add_call(step: dict[str, Any], calls: Sequence[Mapping[str, Any]], message: Message) -> None:
    """Add a call and its result to a step. A message contains at most one call, so a step gets at most one call."""
    call_id = message["tool_call_id"]
    function = next(call["function"] for call in calls if call["id"] == call_id)
    arguments = json.loads(function["arguments"])
    step["tool_calls"] = [{"tool_call_id": call_id, "function_name": function["name"], "arguments": arguments}]
    step["observation"] = {"results": [{"source_call_id": call_id, "content": message["content"]}]}


def _add_metadata(step: dict[str, Any], metadata: Mapping[str, Any]) -> None:
    """Add a message's metadata to a step. Metadata that ATIF doesn't define goes into the step's `extra`."""
    rest, metrics = dict(metadata), {}
    if step["source"] == "agent":
        name = next((name for name in ("model_name", "model") if isinstance(rest.get(name), str)), None)
        if name is not None:
            step["model_name"] = rest.pop(name)
        for name in ("reasoning_content", "reasoning_effort"):
            if isinstance(rest.get(name), str):
                step[name] = rest.pop(name)
        for name in [name for name, value in rest.items() if _is_metric(name, value)]:
            metrics[name] = rest.pop(name)
    if metrics:
        step["metrics"] = metrics
    if rest:
        step["extra"] = {**step.get("extra", {}), **rest}


def _is_metric(name: str, value: object) -> bool:
    """Return whether an entry of metadata is one of ATIF's metrics, and its value has the right type."""
    if name in _COUNTS:
        return type(value) is int
    if name == _COST:
        return type(value) in {int, float}
    kinds = _LISTS.get(name, set())
    return bool(kinds) and isinstance(value, list) and {type(each) for each in value} <= kinds


def _totals(steps: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the number of steps and the sums of their metrics."""
    totals: dict[str, Any] = {"total_steps": len(steps)}
    for name in (*_COUNTS, _COST):
        values = [step["metrics"][name] for step in steps if name in step.get("metrics", {})]
        if values:
            totals[f"total_{name}"] = sum(values)
    return totals
