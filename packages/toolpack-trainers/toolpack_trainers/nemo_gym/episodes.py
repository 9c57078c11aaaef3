"""Episodes in NeMo Gym's terms: sessions with a task.

All operations on an episode are methods that its owner or its agent could also call. This module keeps no state. If an
environment server gives an episode an id, the session gets the id as a label, and the `call_id` of its creation
contains the id. Agents send the session's id in a cookie.
"""

import json
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

from pydantic import BaseModel, Field

from toolpack_server.features.api.core import (
    AGENT,
    REFUSALS,
    Address,
    AnsweredError,
    App,
    Caller,
    CallIdReusedError,
    HttpRefusedError,
    InvalidParamsError,
    SessionNotFoundError,
    TooLargeError,
    sentence,
)
from toolpack_trainers.task_episodes import (
    PAGE,
    failure_text,
    reason_of,
)

LABEL = "nemo_gym"
MAX_SHOWN = 200
TOOL_MEMBERS = ("description", "parameters")  # copied from a function's description to a tool


class GymRow(BaseModel):
    """The fields of a dataset's row that specify an episode. Other fields are ignored."""

    task: str = Field(description="The task, as toolpack/name.")
    seed: str | None = None
    perturbations: dict[str, Any] | None = None


class GymCall(BaseModel):
    """A call in a model's response."""

    name: str
    arguments: Any = Field(description="The arguments, as the model wrote them.")
    call_id: str


class GymEpisodes:
    """NeMo Gym's operations on episodes and tasks."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def rows(self, caller: Caller, toolpack: str) -> AsyncIterator[dict[str, Any]]:
        """Yield a dataset's row for each of a toolpack's tasks, with the prompt, and the functions as tools.

        A tool's name is the name of the function in the task's sessions.
        """
        catalog = self._app.context.catalog
        functions = (await self._app.invoke(caller, "list_functions", {}))["result"]
        by_name = {(function["toolpack"], function["name"]): function for function in functions}
        after = -1
        while True:
            params = {"toolpack": toolpack, "after": after, "limit": PAGE}
            page = (await self._app.invoke(caller, "list_tasks", params))["tasks"]
            for task in page:
                agent = Address(AGENT, frozenset(task["functions"]) if "functions" in task else None)
                tools = [
                    {
                        "type": "function",
                        "strict": False,
                        "name": function.name.replace(".", "__"),
                        **{name: by_name[function.toolpack, function.registered_name][name] for name in TOOL_MEMBERS},
                    }
                    for function in agent.listed(catalog.listed(task["toolpacks"]))
                ]
                yield {"task": task["task"], "responses_create_params": {"input": task["prompt"], "tools": tools}}
            if not page:
                return
            after = page[-1]["index"]

    async def seed(self, caller: Caller, row: GymRow, name: str | None) -> dict[str, Any]:
        """Create the session of an episode. If an episode with this name is running, return its session.

        Raises:
            HttpRefusedError: The episode with this name has ended, or has another task.
        """
        params: dict[str, Any] = {
            "labels": {LABEL: name or ""},
            "call_id": name and f"{LABEL}-{name}",  # without a name, each request creates a new session
            **row.model_dump(include={"task", "seed", "perturbations"}, exclude_none=True),
        }
        try:
            session: dict[str, Any] = await self._app.invoke(caller, "create_session", params)
        except CallIdReusedError:
            raise HttpRefusedError(409, _over_message(name)) from None
        if name is not None and await self._has_ended(caller, session["session_id"]):
            raise HttpRefusedError(409, _over_message(name))
        return session

    async def call(
        self, caller: Caller, session_id: str, function: str, kwargs: Any, call_id: str | None = None
    ) -> str:
        """Call a function and return the text for the model: a string unchanged, other values as JSON, or an error.

        Args:
            call_id: An id that makes the call safe to repeat.
        """
        params = {"function": function, "kwargs": kwargs, "call_id": call_id, "raise_on_error": True}
        try:
            envelope = await self._as_agent(caller, session_id, "run_function", **params)
        except REFUSALS as error:
            text = None if reason_of(error) else failure_text(error)
            if text is None:
                raise
            return text
        result = envelope["result"]
        return result if isinstance(result, str) else json.dumps(result, ensure_ascii=False)

    async def step(
        self, caller: Caller, session_id: str, calls: list[GymCall], answer: str | None, request_id: str | None
    ) -> dict[str, Any]:
        """Play a model's response, and return the result of the step. A response without calls ends the episode.

        Args:
            answer: The model's last message, or None without one.
            request_id: An id that makes the step safe to repeat.

        Raises:
            HttpRefusedError: The episode has ended without a valid verdict, so the step has no reward.
        """
        outputs = []
        for number, call in enumerate(calls):
            call_id = request_id and f"{LABEL}-{request_id}-{number}"
            try:
                text = await self.call(caller, session_id, call.name, call.arguments, call_id)
            except REFUSALS as error:
                if reason_of(error) is None:
                    raise
                text = sentence(error)
            outputs.append({"call_id": call.call_id, "output": text})
        # A step with calls ends the episode only if they have used up `max_calls`. Gymnasium calls this "truncated".
        if calls and not (await self._as_agent(caller, session_id, "get_task"))["done"]:
            return _step(0.0, {"tool_outputs": outputs})
        verification = await self.verify(caller, session_id, None if calls else answer)
        if verification["mask_sample"]:
            raise HttpRefusedError(
                422, f"The episode has no valid verdict, and so no reward: {verification['failure_reason']}"
            )
        info = {**verification, "tool_outputs": outputs}
        return _step(info.pop("reward"), info, terminated=not calls, truncated=bool(calls))

    async def verify(self, caller: Caller, session_id: str, answer: str | None) -> dict[str, Any]:
        """End an episode and return the result of its verification.

        The episode ends in any case, because a model can also request this path, and must not learn the verdict on an
        episode that continues.

        Args:
            answer: The model's last message, or None without one.
        """
        try:
            if answer is not None:
                await self._submit(caller, session_id, answer)
            verdict = await self._verdict(caller, session_id)
            if not verdict["valid"]:  # an invalid verdict might not be recorded, so an answer ends the episode
                await self._submit(caller, session_id, "")
        except SessionNotFoundError as error:
            return _masked("session_lost", str(error))
        details = {"session_id": session_id, **{key: verdict[key] for key in ("task", "version", "passed", "checks")}}
        if verdict["valid"]:
            return {"reward": verdict["reward"], "mask_sample": False, **details}
        failure = verdict.get("failure", {})
        return {**_masked("verifier_error", str(failure.get("message", "")), str(failure.get("kind", ""))), **details}

    async def end(self, caller: Caller, name: str, session_id: str | None) -> None:
        """End an episode, and evaluate it if it wasn't verified. If no episode has the name, reserve the name.

        Args:
            session_id: The session in the request's cookie, or None if the caller sent the token without a cookie.

        Raises:
            HttpRefusedError: The request has the cookie of another episode.
        """
        sessions = await self._app.invoke(caller, "list_sessions", {"labels": {LABEL: name}, "limit": PAGE})
        episodes = [session for session in sessions if "parent" not in session and "task" in session]
        if session_id is not None and session_id not in {episode["session_id"] for episode in episodes}:
            raise HttpRefusedError(403, "An episode can't close another one: send the request without the cookie.")
        if not episodes:  # an empty session uses the `call_id`, so that no episode with this name can begin later
            params = {"toolpacks": [], "labels": {LABEL: name}, "call_id": f"{LABEL}-{name}"}
            try:
                await self._app.invoke(caller, "create_session", params)
            except CallIdReusedError:
                raise HttpRefusedError(503, "The episode is being created at this moment: close it again.") from None
        for episode in episodes:
            if not await self._has_ended(caller, episode["session_id"]):
                await self._verdict(caller, episode["session_id"])

    async def _has_ended(self, caller: Caller, session_id: str) -> bool:
        """Return whether a verdict is recorded."""
        after = -1
        while True:
            params = {"session_id": session_id, "after": after, "limit": PAGE}
            records = await self._app.invoke(caller, "get_trace", params)
            if not records or any(record["kind"] == "verdict" for record in records):
                return bool(records)
            after += len(records)

    async def _submit(self, caller: Caller, session_id: str, answer: str) -> None:
        # If an earlier answer exists, it counts, and this answer is ignored. An invalid answer is also ignored.
        with suppress(AnsweredError, TooLargeError, InvalidParamsError):
            await self._as_agent(caller, session_id, "submit_answer", answer=answer)

    async def _verdict(self, caller: Caller, session_id: str) -> dict[str, Any]:
        """Record the verdict on an episode, which ends it."""
        params = {"session_id": session_id, "record": True, "ends": True, "raise_on_error": False}
        verdict: dict[str, Any] = await self._app.invoke(caller, "evaluate_session", params)
        return verdict

    async def _as_agent(self, caller: Caller, session_id: str, method: str, **params: Any) -> Any:
        return await self._app.invoke(Caller(caller.owner, session_id), method, params)


def _step(reward: float, info: dict[str, Any], *, terminated: bool = False, truncated: bool = False) -> dict[str, Any]:
    """Return the result of a step in Gymnasium's form."""
    return {"observation": None, "reward": reward, "terminated": terminated, "truncated": truncated, "info": info}


def _over_message(name: str | None) -> str:
    return f"The episode {(name or '')[:MAX_SHOWN]!r} has ended, or has another task: use another name."


def _masked(kind: str, reason: str, detail: str = "") -> dict[str, Any]:
    """Return a masked verification, which excludes an episode without a valid verdict from the metrics.

    The reward is 0, because the protocol requires a reward.
    """
    reason = f"{detail}: {reason}" if detail else reason
    return {"reward": 0.0, "mask_sample": True, "failure_kind": kind, "failure_reason": reason}
