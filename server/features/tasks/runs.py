"""Runs: all rollouts that have the same labels, evaluated with one question.

The rule: an answer takes about as long as one call may; a run that takes longer is answered in parts. Sessions that the
console has made to look at another one are no rollouts.
"""

import time
from collections.abc import AsyncIterator, Mapping
from functools import partial

from server.base.errors import OverloadedError, RequestError, SessionNotFoundError
from server.features.tasks.pass_rates import rates
from server.features.tasks.service import Tasks
from server.features.tasks.validity import evaluation_failure
from server.jsonio.strict import dumps
from server.protocol.omission import if_set
from server.protocol.results import Evaluations, Session
from server.rpc.method import App
from server.sessions.reader import SessionQuery, SessionReader

OWN_RULES = "rules"  # stands for the variant of sessions that have rules of their own only
CONSOLE_LABEL = "console"  # which the console's forks have
_AT_ONCE = 100  # sessions that are read


def variant_of(session: Session) -> str | None:
    """Get the variant of its task that a session has; `rules` if it has rules of its own only."""
    perturbations = session["perturbations"]
    return None if perturbations is None else perturbations.get("variant") or OWN_RULES


class Runs:
    def __init__(self, app: App) -> None:
        self._tasks = app.feature(Tasks)
        self._sessions = app.sessions
        self._settings = app.settings

    async def evaluate(
        self, owner: str | None, labels: Mapping[str, str], after: str, limit: int, *, record: bool
    ) -> Evaluations:
        """Evaluate sessions; see `methods.EvaluateSessions`.

        Raises:
            OverloadedError: None could be evaluated for now.
        """
        found: Evaluations = {"rates": [], "verdicts": [], "failed": [], "forks": 0, "left_out": 0}
        ends, room = time.monotonic() + self._settings.timeout_seconds, self._settings.max_list_bytes
        async for session in self._listed(owner, labels, after):
            if CONSOLE_LABEL in session["labels"] and CONSOLE_LABEL not in labels:
                found["left_out"] += 1
            elif len(found["verdicts"]) + len(found["failed"]) == limit or time.monotonic() > ends or room < 0:
                found["next"] = after
                break
            else:
                try:
                    room -= await self._add(found, session, owner, labels, record=record)
                except OverloadedError:
                    if not found["verdicts"]:
                        raise
                    found["next"] = after
                    break
            after = session["session_id"]
        found["rates"] = [
            {
                "task": rate.task,
                "variant": if_set(rate.variant),
                "rollouts": rate.rollouts,
                "passed": rate.passed,
                "mean_reward": rate.mean_reward,
            }
            for rate in rates(found["verdicts"])
        ]
        return found

    async def _listed(self, owner: str | None, labels: Mapping[str, str], after: str) -> AsyncIterator[Session]:
        """Get the sessions with a task, in order."""
        while True:
            page = await self._sessions.read(partial(self._page, owner, labels, after))
            for session in page:
                if session["task"] is not None:
                    yield session
            if not page:
                return
            after = page[-1]["session_id"]

    @staticmethod
    def _page(owner: str | None, labels: Mapping[str, str], after: str, reader: SessionReader) -> list[Session]:
        return reader.list_sessions(SessionQuery(owner, labels, after, _AT_ONCE))

    async def _add(
        self, found: Evaluations, session: Session, owner: str | None, labels: Mapping[str, str], *, record: bool
    ) -> int:
        """Evaluate a session, and get about how many bytes that adds to the answer."""
        session_id, task = session["session_id"], session["task"] or ""
        try:
            verdict = await self._tasks.evaluate(session_id, owner, record=record)
        except SessionNotFoundError:  # closed meanwhile
            return 0
        except OverloadedError:
            raise
        except RequestError as error:
            failure = evaluation_failure(error)
            found["failed"].append(
                {
                    "session_id": session_id,
                    "labels": session["labels"],
                    "variant": if_set(variant_of(session)),
                    "task": task,
                    "error": str(error),
                    "failure": if_set(failure),
                }
            )
            return len(dumps(found["failed"][-1]))
        found["verdicts"].append(
            {"session_id": session_id, "labels": session["labels"], "variant": if_set(variant_of(session)), **verdict}
        )
        found["forks"] += await self._is_fork_of_one(session, owner, labels)
        return len(dumps(found["verdicts"][-1]))

    async def _is_fork_of_one(self, session: Session, owner: str | None, labels: Mapping[str, str]) -> bool:
        """Whether a session is a fork of another one in the run."""
        parent = session["parent"]
        if parent is None:
            return False
        try:
            of = await self._sessions.read(lambda reader: reader.describe(parent["session_id"], owner))
        except RequestError:  # it is closed, or can't be read
            return False
        return labels.items() <= of["labels"].items()
