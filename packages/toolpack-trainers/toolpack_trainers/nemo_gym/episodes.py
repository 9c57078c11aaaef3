"""Episodes: sessions with a task, as the agents of NeMo Gym know them.

An episode is a session, and everything that is done with it is a method that its owner or its agent could
call. Nothing is kept here: the id that an environment server gives to an episode is a label of the session,
and the `call_id` of its creation; agents bring the session's id in a cookie.
"""

import json
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

from pydantic import BaseModel, Field, JsonValue

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
)
from toolpack_trainers.task_episodes import (
    PAGE,
    failure_text,
    reason_of,
)

LABEL = "nemo_gym"
MAX_SHOWN = 200
SHOWN = ("description", "parameters")


class GymRow(BaseModel):
    """What a row of a dataset says of an episode; what else it has isn't looked at."""

    task: str = Field(description="The task, as toolpack/name.")
    seed: str | None = None
    perturbations: dict[str, JsonValue] | None = None


class GymEpisodes:
    def __init__(self, app: App) -> None:
        self._app = app

    async def rows(self, caller: Caller, toolpack: str) -> AsyncIterator[dict[str, Any]]:
        """Get a row for each task of a toolpack: its prompt, and its functions as tools, as they are called there."""
        catalog = self._app.context.catalog
        listed = (await self._app.invoke(caller, "list_functions", {}))["result"]
        described = {(each["toolpack"], each["name"]): each for each in listed}
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
                        "name": each.name.replace(".", "__"),
                        **{name: described[each.toolpack, each.registered_name][name] for name in SHOWN},
                    }
                    for each in agent.listed(catalog.listed(task["toolpacks"]))
                ]
                yield {"task": task["task"], "responses_create_params": {"input": task["prompt"], "tools": tools}}
            if not page:
                return
            after = page[-1]["index"]

    async def seed(self, caller: Caller, row: GymRow, name: str | None) -> dict[str, Any]:
        """Create the session of an episode, or get the one of this name.

        Raises:
            HttpRefusedError: The episode of this name has ended, or has another task.
        """
        params: dict[str, Any] = {
            "labels": {LABEL: name or ""},
            "call_id": name and f"{LABEL}-{name}",
            **row.model_dump(include={"task", "seed", "perturbations"}, exclude_none=True),
        }
        try:
            session: dict[str, Any] = await self._app.invoke(caller, "create_session", params)
        except CallIdReusedError:
            raise HttpRefusedError(409, _over(name)) from None
        if name is not None and await self._has_ended(caller, session["session_id"]):
            raise HttpRefusedError(409, _over(name))
        return session

    async def call(self, caller: Caller, session_id: str, function: str, kwargs: Any) -> str:
        """Call a function, and get what the model reads: a text as it is, all else as JSON, and what failed."""
        try:
            envelope = await self._as_agent(
                caller, session_id, "run_function", function=function, kwargs=kwargs, raise_on_error=True
            )
        except REFUSALS as error:
            text = None if reason_of(error) else failure_text(error)
            if text is None:
                raise
            return text
        result = envelope["result"]
        return result if isinstance(result, str) else json.dumps(result, ensure_ascii=False)

    async def verify(self, caller: Caller, session_id: str, answer: str | None) -> dict[str, Any]:
        """End an episode with what the model said last, if it did, and get what a verification says besides.

        A model may ask for it, too, as it names the path that its agent posts to: so nothing is said of an episode that
        goes on.
        """
        try:
            if answer is not None:
                await self._submit(caller, session_id, answer)
            verdict = await self._verdict(caller, session_id)
            if not verdict["valid"]:  # which may be recorded nowhere
                await self._submit(caller, session_id, "")
        except SessionNotFoundError as error:
            return _masked("session_lost", str(error))
        shown = {name: verdict[name] for name in ("task", "version", "passed", "checks")}
        about = {"session_id": session_id, **shown}
        if verdict["valid"]:
            return {"reward": verdict["reward"], "mask_sample": False, **about}
        failure = verdict.get("failure", {})
        return {**_masked("verifier_error", str(failure.get("message", "")), str(failure.get("kind", ""))), **about}

    async def end(self, caller: Caller, name: str, session_id: str | None) -> None:
        """End an episode: one that wasn't verified is evaluated. Of one that isn't there none can be made any more.

        Args:
            session_id: The session of the episode that asks for it; None: whoever has the token does.

        Raises:
            HttpRefusedError: An episode asks for the end of another one.
        """
        found = await self._app.invoke(caller, "list_sessions", {"labels": {LABEL: name}, "limit": PAGE})
        episodes = [each for each in found if "parent" not in each and "task" in each]
        if session_id is not None and session_id not in {each["session_id"] for each in episodes}:
            raise HttpRefusedError(403, "An episode closes no other one: send it without the cookie.")
        if not episodes:
            params = {"toolpacks": [], "labels": {LABEL: name}, "call_id": f"{LABEL}-{name}"}
            try:
                await self._app.invoke(caller, "create_session", params)
            except CallIdReusedError:
                raise HttpRefusedError(503, "The episode is just being created: close it again.") from None
        for episode in episodes:
            if not await self._has_ended(caller, episode["session_id"]):
                await self._verdict(caller, episode["session_id"])

    async def _has_ended(self, caller: Caller, session_id: str) -> bool:
        """Whether a verdict is recorded."""
        after = -1
        while True:
            params = {"session_id": session_id, "after": after, "limit": PAGE}
            records = await self._app.invoke(caller, "get_trace", params)
            if not records or any(record["kind"] == "verdict" for record in records):
                return bool(records)
            after += len(records)

    async def _submit(self, caller: Caller, session_id: str, answer: str) -> None:
        # The answer that was there first counts, or none.
        with suppress(AnsweredError, TooLargeError, InvalidParamsError):
            await self._as_agent(caller, session_id, "submit_answer", answer=answer)

    async def _verdict(self, caller: Caller, session_id: str) -> dict[str, Any]:
        """Record the verdict on an episode, which ends it."""
        params = {"session_id": session_id, "record": True, "ends": True, "raise_on_error": False}
        verdict: dict[str, Any] = await self._app.invoke(caller, "evaluate_session", params)
        return verdict

    async def _as_agent(self, caller: Caller, session_id: str, method: str, **params: Any) -> Any:
        return await self._app.invoke(Caller(caller.owner, session_id), method, params)


def _over(name: str | None) -> str:
    return f"The episode {(name or '')[:MAX_SHOWN]!r} has ended, or has another task: begin one of another name."


def _masked(kind: str, reason: str, detail: str = "") -> dict[str, Any]:
    """Get a verification that says nothing of the policy; the protocol has no reward that is none."""
    reason = f"{detail}: {reason}" if detail else reason
    return {"reward": 0.0, "mask_sample": True, "failure_kind": kind, "failure_reason": reason}
