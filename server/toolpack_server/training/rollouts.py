"""Rollouts: attempts at tasks, in groups and many at the same time.

The server stores all progress, so you can restart a program that died, and it continues. A session with a recorded
verdict is a finished rollout. All other sessions of the run are closed, and their rollouts are played again.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, TypedDict

from toolpack_server.base.errors import ReplyError
from toolpack_server.client.clients import AsyncAgentClient, AsyncClient
from toolpack_server.client.methods import Session
from toolpack_server.client.values import Finish, SessionValues, StepValue, Valuer, check_async, check_counts, closing
from toolpack_server.features.evaluation.tasks.results import Verdict

Play = Callable[[AsyncAgentClient, Session], Awaitable[Any]]
"""A coroutine function that plays the agent in one session. It gets the agent's client and the session."""


class Tree(TypedDict, total=False):
    """Parameters of `rollouts` for estimating the values of steps. `Client.values` describes each parameter."""

    k: int
    finish: Finish | Sequence[Finish]
    keep: bool
    progress: Callable[[StepValue], object] | None


_LABEL = "rollout"  # the label whose value is a rollout's number in its group
_PAGE = 1000


@dataclass(frozen=True, slots=True)
class RolloutResult:
    """The result of a rollout.

    Attributes:
        task: The task of the rollout.
        number: The number of the rollout in its group.
        session: The session's description when it was created. If the rollout was finished before this program started,
            the description at the program's start.
        verdict: The verdict. None: `error` prevented it.
        played: The return value of `play`. None if the rollout was finished before this program started.
        error: The exception that `play`, the evaluation or the estimation of values raised.
        values: The values of the steps, if `tree` was given and the rollout has a verdict.
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
    """Play a group of rollouts for each task, and yield each group when it is complete.

    Each rollout is a session with your labels, and with its number as the label `rollout`. At its end, its verdict is
    recorded. If you call this function again with the same labels, only unfinished rollouts are played. If `play`
    raises, the result contains the exception, and the rollout stays unfinished.

    Args:
        client: A client of the server.
        tasks: The names of the tasks, as `toolpack/name`. Duplicates count once.
        play: A coroutine function that plays the agent in one session. It gets the client of the session's agent, and
            the session.
        labels: The labels of the run. Include a label that no other run uses, such as `{"run": "first"}`.
        group: Number of rollouts of each task.
        concurrency: Maximum number of rollouts played at the same time, and of open forks of a tree.
        tree: Parameters such as `{"k": 8, "finish": play}`. If given, the values of each rollout's steps are also
            estimated; see `Client.values`.
        create: Further parameters of `create_session`, such as `seed`. If `perturbations` contains no seed, the
            rollout's number becomes its seed.

    Raises:
        ValueError: `labels` is empty, or an argument is wrong.
        TypeError: `play`, or `finish` of the tree, isn't a coroutine function.
        ClientError: A session can't be created, or the server doesn't respond.
    """
    if not labels:
        raise ValueError("labels must name the run, for example {'run': 'first'}, so that it can be continued")
    if _LABEL in labels:
        raise ValueError(f"labels can't contain {_LABEL!r}, the number of each rollout: choose another name")
    check_counts(group=group, concurrency=concurrency)
    check_async(play=play)
    valuer = None if tree is None else Valuer(client, client.agent, concurrency=concurrency, **tree)
    run = _Run(client, play, labels, create, valuer)
    await run.load()
    jobs = ((task, number) for task in dict.fromkeys(tasks) for number in range(group))
    groups: dict[str, list[RolloutResult]] = {}
    async for result in _run_jobs(jobs, run.valued, concurrency):
        done = groups.setdefault(result.task, [])
        done.append(result)
        if len(done) == group:
            yield sorted(groups.pop(result.task), key=lambda each: each.number)


async def _run_jobs(
    jobs: Iterator[tuple[str, int]], run: Callable[[str, int], Awaitable[RolloutResult]], limit: int
) -> AsyncIterator[RolloutResult]:
    """Run jobs, at most `limit` at the same time. Yield each result when its job is done.

    If the caller stops the iteration, or if a job raises, the running jobs are cancelled.
    """
    running: set[asyncio.Future[RolloutResult]] = set()
    try:
        while True:
            while len(running) < limit and (job := next(jobs, None)) is not None:
                running.add(asyncio.ensure_future(run(*job)))
            if not running:
                return
            done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            for each in done:  # read each exception, because asyncio logs exceptions that are never read
                _ = each.cancelled() or each.exception()
            for each in done:
                yield each.result()
    finally:
        for each in running:
            each.cancel()
        await asyncio.gather(*running, return_exceptions=True)


class _Run:
    """A run of `rollouts`: looks up its rollouts on the server, and plays those that aren't finished."""

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
        self._started: dict[tuple[str, str], list[Session]] = {}  # all sessions of each rollout, including forks

    async def load(self) -> None:
        """Look up the run's sessions on the server. A rollout is finished if its session has a recorded verdict.

        A fork's verdict doesn't count, because `play` can create forks with the labels of the run.
        """
        finished_ids = {session["session_id"] for passed in (True, False) for session in await self._sessions(passed)}
        for session in await self._sessions():
            key = session.get("task", ""), session["labels"].get(_LABEL, "")
            if session["session_id"] in finished_ids and "parent" not in session:
                self._finished[key] = session
            self._started.setdefault(key, []).append(session)

    async def _sessions(self, passed: bool | None = None) -> list[Session]:
        """Return the run's sessions. If `passed` is given, return only sessions whose recorded verdict equals it."""
        sessions: list[Session] = []
        after = ""
        while page := await self._client.list_sessions(labels=self._labels, after=after, limit=_PAGE, passed=passed):
            sessions += page
            after = page[-1]["session_id"]
        return sessions

    async def valued(self, task: str, number: int) -> RolloutResult:
        """Return a rollout's result, with the values of its steps if `tree` was given.

        If the values can't be estimated, the result contains the error instead.
        """
        result = await self.rollout(task, number)
        if self._valuer is None or result.verdict is None:
            return result
        try:
            return replace(result, values=await self._valuer.values(result.session["session_id"]))
        except Exception as error:  # noqa: BLE001 - the other rollouts continue
            return replace(result, error=error)

    async def rollout(self, task: str, number: int) -> RolloutResult:
        """Return the result of a rollout. If it isn't finished, play it in a new session and record its verdict.

        First, sessions that an earlier program left unfinished are closed, because their agents died with it. An
        exception of `play` or the evaluator goes into the result. An error of `create_session` is raised and ends all
        rollouts, because it would probably hit each of them.
        """
        key = task, str(number)
        finished = self._finished.get(key)
        if finished is not None:
            try:
                verdict = await self._client.evaluate_session(finished["session_id"])
            except ReplyError as error:
                return RolloutResult(task, number, finished, error=error)
            return RolloutResult(task, number, finished, verdict)
        for session in self._started.get(key, ()):
            with suppress(ReplyError):  # the session has expired, or was closed before
                await self._client.send(closing(session["session_id"]))
        labels, create = {**self._labels, _LABEL: str(number)}, {**self._create}
        if create.get("perturbations"):
            create["perturbations"] = {"seed": str(number), **create["perturbations"]}
        session, played = await self._client.create_session(task=task, labels=labels, **create), None
        try:
            async with self._client.agent(session) as agent:
                played = await self._play(agent, session)
            verdict = await self._client.evaluate_session(session["session_id"], record=True)
        except Exception as error:  # noqa: BLE001 - whatever `play` raises, the other rollouts continue
            return RolloutResult(task, number, session, played=played, error=error)
        return RolloutResult(task, number, session, verdict, played)
