"""Rollouts: attempts at tasks, in groups and many at the same time.

What has happened is asked of the server, so that a program that was ended in the middle goes on where it was
when it is started again: finished rollouts are the sessions with a recorded verdict, and half ones begin anew.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Literal, TypedDict

from toolpack_server.base.errors import ReplyError
from toolpack_server.client.clients import AsyncAgentClient, AsyncClient
from toolpack_server.client.methods import Session
from toolpack_server.client.values import SessionValues, StepValue, Valuer, check_async, check_counts, closing
from toolpack_server.features.evaluation.tasks.results import Verdict

Play = Callable[[AsyncAgentClient, Session], Awaitable[Any]]
"""Plays the agent in one session; see `rollouts`."""


class Tree(TypedDict, total=False):
    """How the steps of rollouts are valued: `k`, `finish` and `progress` of `Client.values`."""

    k: int
    finish: Play | Literal["solution"] | None
    progress: Callable[[StepValue], object] | None


_LABEL = "rollout"  # has the number of a rollout in its group
_PAGE = 1000


@dataclass(frozen=True, slots=True)
class RolloutResult:
    """How a rollout has ended.

    Attributes:
        task: Its task.
        number: Its number in its group.
        session: Its session, as it was when it was created or found.
        verdict: The verdict on it; None if it has none, because of `error`.
        played: What `play` has returned; None if the rollout was finished before this program was started.
        error: What `play` or the evaluation has raised, or else what was raised while its steps were valued.
        values: The values of its steps, if `tree` was given and it has a verdict.
    """

    task: str
    number: int
    session: Session
    verdict: Verdict | None = None
    played: Any = None
    error: Exception | None = None
    values: SessionValues | None = None


async def rollouts(
    client: AsyncClient,
    tasks: Iterable[str],
    play: Play,
    *,
    labels: Mapping[str, str],
    group: int = 8,
    concurrency: int = 64,
    tree: Tree | None = None,
    **create: Any,
) -> AsyncIterator[list[RolloutResult]]:
    """Make a group of rollouts for each task, and yield each group when it is complete.

    Each rollout is a session with the labels, its number as the label `rollout`, and a recorded verdict when it has
    ended. Run again with the same labels, all that are finished count as they are, and only the others are played. An
    exception that `play` raises is in the result, and the rollout is played again in the next run.

    Args:
        client: A client of the server.
        tasks: The names of the tasks, as `toolpack/name`; each counts once.
        play: A coroutine function that plays the agent in one session: called with the client of the session's agent,
            and the session.
        labels: The labels of the run; at least one, which no other run has.
        group: How many rollouts of each task.
        concurrency: How many are played at the same time, and how many forks of a tree are open.
        tree: Find the values of the steps of each rollout, too, as `Client.values` does: `{"k": 8, "finish": play}`.
        create: Further parameters of `create_session`, such as `seed`. `perturbations` without a seed of their own get
            the rollout's number as theirs.

    Raises:
        ValueError: There is no label, or an argument is wrong.
        TypeError: `play`, or `finish` of the tree, is no coroutine function.
        ClientError: A session can't be created, or the server doesn't answer.
    """
    if not labels:
        raise ValueError("labels must name the run, for example {'run': 'first'}: by them it is found again")
    if _LABEL in labels:
        raise ValueError(f"labels can't have {_LABEL!r}, which is the number of each rollout: choose another name")
    check_counts(group=group, concurrency=concurrency)
    check_async(play=play)
    valuer = None if tree is None else Valuer(client, client.agent, concurrency=concurrency, **tree)
    run = _Run(client, play, labels, create, valuer)
    await run.look()
    jobs = ((task, number) for task in dict.fromkeys(tasks) for number in range(group))
    complete: dict[str, list[RolloutResult]] = {}
    async for result in _at_once(jobs, run.valued, concurrency):
        done = complete.setdefault(result.task, [])
        done.append(result)
        if len(done) == group:
            yield sorted(complete.pop(result.task), key=lambda each: each.number)


async def _at_once(
    jobs: Iterator[tuple[str, int]], do: Callable[[str, int], Awaitable[RolloutResult]], most: int
) -> AsyncIterator[RolloutResult]:
    """Do jobs, so many at the same time, and yield their results as they come; what still runs at the end ends."""
    running: set[asyncio.Future[RolloutResult]] = set()
    try:
        while True:
            while len(running) < most and (job := next(jobs, None)) is not None:
                running.add(asyncio.ensure_future(do(*job)))
            if not running:
                return
            done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            for each in done:  # asyncio complains of an exception that nobody has looked at
                _ = each.cancelled() or each.exception()
            for each in done:
                yield each.result()
    finally:
        for each in running:
            each.cancel()
        await asyncio.gather(*running, return_exceptions=True)


class _Run:
    """What of a run is there already, and one rollout after the other of what isn't."""

    def __init__(
        self,
        client: AsyncClient,
        play: Play,
        labels: Mapping[str, str],
        create: Mapping[str, Any],
        valuer: Valuer | None = None,
    ) -> None:
        self._client = client
        self._valuer = valuer
        self._play = play
        self._labels = labels
        self._create = create
        self._finished: dict[tuple[str, str], Session] = {}
        self._half: dict[tuple[str, str], list[Session]] = {}

    async def look(self) -> None:
        verdicts = {session["session_id"] for passed in (True, False) for session in await self._listed(passed)}
        for session in await self._listed():
            place = session.get("task", ""), session["labels"].get(_LABEL, "")
            if session["session_id"] in verdicts and "parent" not in session:
                self._finished[place] = session
            self._half.setdefault(place, []).append(session)

    async def _listed(self, passed: bool | None = None) -> list[Session]:
        found: list[Session] = []
        after = ""
        while page := await self._client.list_sessions(labels=self._labels, after=after, limit=_PAGE, passed=passed):
            found += page
            after = page[-1]["session_id"]
        return found

    async def valued(self, task: str, number: int) -> RolloutResult:
        result = await self.rollout(task, number)
        if self._valuer is None or result.verdict is None:
            return result
        try:
            return replace(result, values=await self._valuer.values(result.session["session_id"]))
        except Exception as error:  # noqa: BLE001 - the other rollouts go on
            return replace(result, error=error)

    async def rollout(self, task: str, number: int) -> RolloutResult:
        place = task, str(number)
        finished = self._finished.get(place)
        if finished is not None:
            try:
                verdict = await self._client.evaluate_session(finished["session_id"])
            except ReplyError as error:
                return RolloutResult(task, number, finished, error=error)
            return RolloutResult(task, number, finished, verdict)
        for session in self._half.get(place, ()):  # a fork that `play` has made, too
            with suppress(ReplyError):  # it is gone: expired, or closed by an attempt whose answer was lost
                await self._client.send(closing(session["session_id"]))
        labels, create = {**self._labels, _LABEL: str(number)}, {**self._create}
        if create.get("perturbations"):
            create["perturbations"] = {"seed": str(number), **create["perturbations"]}
        session, played = await self._client.create_session(task=task, labels=labels, **create), None
        try:
            async with self._client.agent(session) as agent:
                played = await self._play(agent, session)
            verdict = await self._client.evaluate_session(session["session_id"], record=True)
        except Exception as error:  # noqa: BLE001 - whatever it is, the other rollouts go on
            return RolloutResult(task, number, session, played=played, error=error)
        return RolloutResult(task, number, session, verdict, played)
