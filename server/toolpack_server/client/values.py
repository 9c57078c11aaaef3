"""Estimator of the values of a rollout's steps: the mean reward of forks that begin at a step and are finished.

Forks can be finished in several ways, for example by the calls of the task's solution. The best way counts. When a fork
is finished, its reward is cached in a *ledger* and the fork is closed, so the number of open forks is limited. Each way
has one ledger, which is another fork of the rollout. If the program dies, run it again: it uses the cached rewards,
closes the forks that the first run left open, and creates them again.
"""

import asyncio
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from math import hypot, inf, sqrt
from operator import itemgetter
from statistics import fmean, stdev
from typing import Any, Literal, TypeVar, cast

from toolpack_server.base.errors import ClientError, ReplyError
from toolpack_server.client.batches import AsyncBatch
from toolpack_server.client.methods import CallRecord, ClientMethods, Session
from toolpack_server.client.requests import Request
from toolpack_server.features.evaluation.tasks.results import AnswerRecord, Solution, SolutionCall, Verdict
from toolpack_server.protocol.steps import spans_of

T = TypeVar("T")

CONCURRENCY = 64
"""Default maximum number of open forks."""

Finish = Callable[[Any, Session], Any] | Literal["solution", "solution-by-function"] | None
"""A way to finish a fork; see `Client.values`."""

BEST: tuple[Finish, ...] = ("solution", "solution-by-function", None)
"""Default ways to finish forks: all ways that need no function of the caller."""

FULL_REWARD = 1.0
"""When one way of finishing a step has this value, no further way is tried."""

_LABEL = "values"  # label of forks and ledgers; its value is the rollout's session_id
_OWN_LABELS = {_LABEL, "finish", "step", "member"}
_PAGE = 1000
_OVERLOADED = -32006
_NOT_FOUND = -32001
_GROUPS = 8  # max groups of forks that are open at the same time; the forks of a group are created together
_EVALUATED_TOGETHER = 8  # max forks that are evaluated in one batch


@dataclass(frozen=True, slots=True)
class StepValue:
    """The value of a step: the mean reward of the forks that began at the step.

    Attributes:
        session_id: The rollout's session.
        version: The session's version at the fork point.
        rewards: The rewards of the forks.
        invalid: Number of forks whose verdict isn't valid. They don't count.
        errors: Exceptions raised by `finish`. The forks in which it raised don't count either.
        finish: The name of the way of finishing that reached the highest value. `rollout` if the rollout's own reward
            is higher than the value of each way.
        calls: The calls that finished the forks, or None if a function chose the calls.
        fork: With `keep`, the session_id of the fork with the highest reward, which stays open.
    """

    session_id: str
    version: int
    rewards: tuple[float, ...]
    invalid: int = 0
    errors: tuple[Exception, ...] = ()
    finish: str = "nothing"
    calls: tuple[SolutionCall, ...] | None = None
    fork: str | None = None

    @property
    def n(self) -> int:
        """Number of forks that count."""
        return len(self.rewards)

    @property
    def mean(self) -> float | None:
        """The value in units of the reward, or None if no fork counts."""
        return fmean(self.rewards) if self.rewards else None

    @property
    def standard_error(self) -> float | None:
        """The standard error of the mean, or None if fewer than two forks count."""
        return stdev(self.rewards) / sqrt(self.n) if self.n > 1 else None


@dataclass(frozen=True, slots=True)
class CallValue:
    """The value of a call, or of the answer.

    Attributes:
        record: The record. A call's record contains its `function`, its `kwargs`, and the caller as `by`.
        before: The value of the step before the call.
        after: The value of the step after the call. A call that changed nothing has the same step before and after it.
    """

    record: CallRecord | AnswerRecord
    before: StepValue
    after: StepValue

    @property
    def advantage(self) -> float | None:
        """The change of the value in units of the reward, or None if either value is unknown."""
        before, after = self.before.mean, self.after.mean
        return None if before is None or after is None else after - before

    @property
    def standard_error(self) -> float | None:
        """The standard error of the advantage, or None if the standard error of either value is unknown."""
        before, after = self.before.standard_error, self.after.standard_error
        return None if before is None or after is None else hypot(before, after)


@dataclass(frozen=True, slots=True)
class SessionValues:
    """The values of a rollout.

    Attributes:
        session_id: The rollout's session.
        steps: The values of the steps, in order.
        calls: The values of the calls between these steps, in order, including calls that failed or only read.
        answer: The value of the answer. The value after the answer is the rollout's own reward. None if there is no
            answer, or if `steps` lacks the step before the answer.
    """

    session_id: str
    steps: list[StepValue]
    calls: list[CallValue]
    answer: CallValue | None = None


class _Unsent(ClientMethods):
    """Client whose methods return their requests unsent, so that `Valuer.send` can send several requests together."""

    def add(self, request: Request[T]) -> Request[T]:
        return request


_UNSENT: Any = _Unsent()


class Valuer:
    """Estimates the values of rollouts.

    Args:
        client: An `AsyncClient`, or an object with the same `send`.
        agent: A function that returns the client of a session's agent, for `async with`.
        k: Number of forks of each step.
        finish: How to finish a fork, or several ways; see `Client.values`.
        labels: Further labels of the forks.
        progress: Called with the value of each step.
        concurrency: Maximum number of open forks.
        keep: Whether the best fork of each step stays open.

    Raises:
        ValueError: An argument is wrong.
        TypeError: `finish` is a plain function.
    """

    def __init__(
        self,
        client: Any,
        agent: Callable[[Session], Any],
        *,
        k: int = 1,
        finish: Finish | Sequence[Finish] = BEST,
        labels: Mapping[str, str] | None = None,
        progress: Callable[[StepValue], object] | None = None,
        concurrency: int = CONCURRENCY,
        keep: bool = False,
    ) -> None:
        check_counts(k=k, concurrency=concurrency)
        self.finishes = finishes_of(finish)
        for each in self.finishes.values():
            if callable(each):
                check_async(finish=each)
        if reserved := _OWN_LABELS & {*(labels or ())}:
            raise ValueError(
                f"labels can't contain {min(reserved)!r}, which the forks already have: choose another name"
            )
        self.client, self.agent, self.k, self.keep = client, agent, k, keep
        self.labels = {**(labels or {})}
        self.progress = progress or (lambda _value: None)
        self.slots = asyncio.Semaphore(concurrency)
        # One group takes slots at a time. Otherwise two groups could each hold some slots and wait forever for more.
        self.slot_lock = asyncio.Lock()
        self.group_size = max(concurrency // _GROUPS, 1)

    async def values(self, session_id: str, steps: Iterable[int] | None = None) -> SessionValues:
        """Return the values of a rollout; see `Client.values`."""
        session = await self.client.get_session(session_id)
        if "task" not in session:
            raise ValueError(f"session {session_id} has no task, so it has no reward: create the session with a task")
        path = [record async for record in self._pages("get_trace", session_id, key="path_index", path=True)]
        trace = [record async for record in self._pages("get_trace", session_id, key="index")]
        own_path = [each for each in path if each["session_id"] == session_id]  # without records of ancestors
        spans = spans_of(own_path, trace)
        possible = sorted({0, *(version for span in spans for version in (span.before, span.after))})
        chosen = possible if steps is None else sorted(set(steps))
        for version in chosen:
            if version not in possible:
                raise ValueError(
                    f"version {version!r} isn't a step of session {session_id}: use {', '.join(map(str, possible))}"
                )
        end = await self._end(session)
        values = await _Rollout(self, session, await self._usable(session), end).values(chosen)
        call_values = [
            CallValue(cast("CallRecord", span.record), values[span.before], values[span.after])
            for span in spans
            if {span.before, span.after} <= values.keys() and span.record["kind"] == "call"
        ]
        answers = [span for span in spans if span.record["kind"] == "answer" and span.before in values]
        answer = (
            CallValue(cast("AnswerRecord", answers[-1].record), values[answers[-1].before], end) if answers else None
        )
        return SessionValues(session_id, [values[version] for version in chosen], call_values, answer)

    async def _usable(self, session: Session) -> dict[str, Finish]:
        """Return the ways to finish forks by name. If the task has no solution, omit the ways that need one.

        A single way is never omitted.
        """
        if len(self.finishes) == 1 or (await self.client.get_task(session["task"]))["has_solution"]:
            return self.finishes
        return {name: each for name, each in self.finishes.items() if not isinstance(each, str)}

    async def _end(self, session: Session) -> StepValue:
        """Return the rollout's own reward as the value of a step."""
        verdict = await self.client.evaluate_session(session["session_id"], raise_on_error=False)
        reward = _reward(verdict)
        rewards = () if reward is None else (reward,)
        return StepValue(session["session_id"], verdict["version"], rewards, int(reward is None), finish="rollout")

    async def _pages(self, method: str, *args: Any, key: str, **more: Any) -> Any:
        """Yield all results of a method that returns pages.

        Args:
            key: The field of the last result that the next page takes as `after`.
        """
        page = await getattr(self.client, method)(*args, limit=_PAGE, **more)
        while page:
            for each in page:
                yield each
            page = await getattr(self.client, method)(*args, limit=_PAGE, after=page[-1][key], **more)

    async def ledger(self, session_id: str, labels: dict[str, str]) -> "_Ledger":
        """Return a rollout's ledger. Create it if needed. Close the forks that an interrupted run left open.

        Args:
            session_id: The rollout's session.
            labels: The labels of the ledger. The forks also have these labels, plus `step` and `member`.
        """
        ledger_id, forks = "", []
        async for each in self._pages("list_sessions", labels=labels, key="session_id"):
            extra_labels = each["labels"].keys() - labels.keys()
            if not extra_labels:
                ledger_id = each["session_id"]
            elif extra_labels == {"step", "member"}:
                forks.append(each["session_id"])
        if not ledger_id:
            await self.close(forks)
            ((created,),) = await self.send([_UNSENT.fork_session(session_id, version=0, labels=labels)])
            return _Ledger(created["session_id"], labels)
        ledger = _Ledger(ledger_id, labels)
        async for record in self._pages("get_trace", ledger_id, key="index"):
            if note := record.get("metadata", {}).get(_LABEL):
                ledger.rewards[note["step"], note["member"]] = note["reward"]
                if "fork" in note:
                    ledger.keep(note["step"], note["reward"], note["fork"])
        kept = {fork for _, fork in ledger.kept.values()}
        await self.close([fork for fork in forks if fork not in kept])
        return ledger

    async def close(self, sessions: Iterable[str]) -> None:
        """Close sessions. Sessions that are closed already are ignored."""
        await self.send([closing(session_id) for session_id in sessions])

    async def send(self, requests: Sequence[Any]) -> list[Any]:
        """Send requests together, and return their results.

        If the server was overloaded and refused some requests, send these again, one after the other.

        Raises:
            ClientError: A request failed for another reason.
        """
        async with AsyncBatch(self.client.send) as batch:
            replies = [batch.add(request) for request in requests]
        results: list[Any] = []
        for request, reply in zip(requests, replies, strict=True):
            try:
                results.append(reply.result())
            except ReplyError as error:
                if error.code == _OVERLOADED:
                    results.append(await self.client.send(request))
                elif error.code != _NOT_FOUND or request.method != "close_session":
                    raise
        return results


@dataclass(slots=True)
class _Ledger:
    """The rewards of the forks that were finished in one way.

    Attributes:
        session_id: The session that stores the rewards as messages.
        labels: The labels that the ledger shares with the forks.
        rewards: The rewards by step and by the number of the fork (`member`). None if the verdict was invalid.
        kept: The reward and the session_id of the best fork, which stays open, by step.
    """

    session_id: str
    labels: dict[str, str]
    rewards: dict[tuple[int, int], float | None] = field(default_factory=dict)
    kept: dict[int, tuple[float, str]] = field(default_factory=dict)

    def keep(self, version: int, reward: float | None, fork: str) -> str | None:
        """Keep a fork if it is the best of its step. Return the fork to close: this one, or the best one until now."""
        if reward is None:
            return fork
        best = self.kept.get(version)
        if best is not None and best[0] >= reward:
            return fork
        self.kept[version] = reward, fork
        return best and best[1]


class _Rollout:
    """The forks of one rollout, and their rewards.

    Args:
        valuer: The estimator.
        session: The rollout's session.
        finishes: The ways to finish forks, by name.
        end: The rollout's own reward, as the value of a step.
    """

    def __init__(self, valuer: Valuer, session: Session, finishes: Mapping[str, Finish], end: StepValue) -> None:
        self._valuer, self._session, self._finishes, self._end_value = valuer, session, finishes, end
        self._id = session["session_id"]
        self._ledgers: dict[str, asyncio.Task[_Ledger]] = {}
        self._solutions: dict[int, Solution] = {}
        self._open: set[str] = set()
        self._tasks = asyncio.TaskGroup()

    async def values(self, versions: Iterable[int]) -> dict[int, StepValue]:
        """Return the values of the steps at these versions. After an error, close the forks that are still open."""
        try:
            async with self._tasks as tasks:
                steps = [tasks.create_task(self._step(version)) for version in versions]
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None
        finally:
            with suppress(ClientError):
                await self._valuer.close(self._open)
        return {value.version: value for value in (step.result() for step in steps)}

    async def _step(self, version: int) -> StepValue:
        """Return the value of a step: the best of all ways to finish it, and of the rollout itself."""
        is_single = len(self._valuer.finishes) == 1
        values: list[StepValue] = []
        for name, finish in self._finishes.items():
            if name == "solution-by-function" and not is_single and not await self._has_similar(version):
                continue  # this way would make the same calls as `solution`
            values.append(await self._finish_step(version, name, finish))
            if _worth(values[-1]) >= FULL_REWARD:
                break
        value = max(values, key=_worth)
        if not is_single and _worth(self._end_value) > _worth(value):
            value = replace(self._end_value, version=version)
        await self._discard([each.fork for each in values if each.fork and each is not value])
        self._valuer.progress(value)
        return value

    async def _has_similar(self, version: int) -> bool:
        """Return whether the history made a call of the solution with other arguments."""
        return any("similar" in call for call in (await self._solution(version))["rest"])

    async def _discard(self, forks: Sequence[str]) -> None:
        """Close forks that aren't the best of their step."""
        if forks:
            await self._valuer.close(forks)

    async def _ledger(self, name: str) -> _Ledger:
        """Return the ledger of the way with this name. All steps wait for one task that reads or creates it."""
        if name not in self._ledgers:
            labels = {**self._valuer.labels, "finish": name, _LABEL: self._id}
            self._ledgers[name] = self._tasks.create_task(self._valuer.ledger(self._id, labels))
        return await self._ledgers[name]

    async def _solution(self, version: int) -> Solution:
        """Return the task's solution, with the calls that are missing at this version as `rest`."""
        if version not in self._solutions:
            self._solutions[version] = await self._valuer.client.get_solution(self._id, version=version)
        return self._solutions[version]

    async def _finish_step(self, version: int, name: str, finish: Finish) -> StepValue:
        """Create the forks of a step that the ledger lacks, finish them in one way, and return the step's value."""
        ledger, size = await self._ledger(name), self._valuer.group_size
        calls = None if callable(finish) else await self._calls(version, finish)
        missing = [member for member in range(self._valuer.k) if (version, member) not in ledger.rewards]
        groups = [missing[start : start + size] for start in range(0, len(missing), size)]
        playing = [self._tasks.create_task(self._play(ledger, version, finish, group)) for group in groups]
        errors = [error for group in playing for error in await group]
        ended = [reward for (step, _), reward in sorted(ledger.rewards.items(), key=itemgetter(0)) if step == version]
        rewards = tuple(reward for reward in ended if reward is not None)
        fork = ledger.kept[version][1] if self._valuer.keep and version in ledger.kept else None
        return StepValue(self._id, version, rewards, len(ended) - len(rewards), tuple(errors), name, calls, fork)

    async def _calls(self, version: int, finish: Finish) -> tuple[SolutionCall, ...]:
        """Return the calls of the solution that finish a fork of a step."""
        if finish is None:
            return ()
        rest = (await self._solution(version))["rest"]
        return tuple(call for call in rest if finish == "solution" or "similar" not in call)

    async def _play(self, ledger: _Ledger, version: int, finish: Finish, members: Sequence[int]) -> list[Exception]:
        """Create forks and play them to their end. Return the exceptions of forks that failed.

        Forks that end at about the same time are evaluated together.
        """
        slots, held = self._valuer.slots, 0
        running: dict[asyncio.Task[Exception | None], tuple[int, str]] = {}
        errors: list[Exception] = []
        try:
            async with self._valuer.slot_lock:
                while held < len(members):
                    await slots.acquire()
                    held += 1
            for member, fork in zip(members, await self._fork(ledger, version, members), strict=True):
                running[self._tasks.create_task(self._finish(fork, version, finish))] = member, fork["session_id"]
            while running:
                done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                errors += [error for each in done if (error := each.result())]
                await self._end(ledger, version, {running.pop(each): each.result() is None for each in done})
                for _ in done:
                    slots.release()
                    held -= 1
        finally:
            for _ in range(held):
                slots.release()
        return errors

    async def _fork(self, ledger: _Ledger, version: int, members: Sequence[int]) -> list[Session]:
        """Create a fork of a step for each of these numbers, which become the forks' label `member`."""
        requests = []
        for member in members:
            labels = {**ledger.labels, "step": str(version), "member": str(member)}
            seeds = self._seeds(f"{version}/{member}")
            requests.append(_UNSENT.fork_session(self._id, version=version, labels=labels, **seeds))
        forks = [fork for (fork,) in await self._valuer.send(requests)]
        self._open |= {fork["session_id"] for fork in forks}
        return forks

    def _seeds(self, seed: str) -> Any:
        """Return parameters that give a fork its own random numbers and faults, if the rollout has a seed or faults."""
        seeds: dict[str, Any] = {"seed": seed} if "seed" in self._session else {}
        if rules := self._session.get("perturbations", {}).get("rules"):
            seeds["perturbations"] = {"rules": rules, "seed": seed}
        return seeds

    async def _finish(self, fork: Session, version: int, finish: Finish) -> Exception | None:
        """Play a fork to its end. Return the exception if that fails."""
        try:
            if callable(finish):
                async with self._valuer.agent(fork) as agent:
                    await finish(agent, fork)
            elif finish is not None:
                await self._solve(fork, await self._calls(version, finish), (await self._solution(version))["answer"])
        except Exception as error:  # noqa: BLE001 - after any error the other forks continue
            return error
        return None

    async def _end(self, ledger: _Ledger, version: int, forks: Mapping[tuple[int, str], bool]) -> None:
        """Evaluate forks, cache their rewards, and close all forks that aren't kept.

        Args:
            forks: Whether a fork was played to its end, by member and session_id. Other forks aren't evaluated.
        """
        played = [each for each, is_played in forks.items() if is_played]
        size = _EVALUATED_TOGETHER
        groups = [played[start : start + size] for start in range(0, len(played), size)]
        evaluating = [self._valuer.send([_evaluation(fork) for _, fork in group]) for group in groups]
        verdicts = [verdict for group in await asyncio.gather(*evaluating) for verdict in group]
        entries, to_close = [], {fork for _, fork in forks}
        for (member, fork), verdict in zip(played, verdicts, strict=True):
            entries.append(self._entry(ledger, version, member, verdict, fork))
            if self._valuer.keep:
                rejected = ledger.keep(version, _reward(verdict), fork)
                to_close = (to_close - {fork}) | ({rejected} if rejected else set())
        await self._valuer.send([*entries, *map(closing, to_close)])
        self._open -= {fork for _, fork in forks}
        ledger.rewards |= {(version, member): _reward(each) for (member, _), each in zip(played, verdicts, strict=True)}

    def _entry(self, ledger: _Ledger, version: int, member: int, verdict: Verdict, fork: str) -> Any:
        """Return the request that writes a reward into the ledger."""
        reward = _reward(verdict)
        text = f"reward {reward:g}" if reward is not None else f"invalid, {verdict['failure']['message']}"
        note: dict[str, Any] = {"step": version, "member": member, "reward": reward}
        if self._valuer.keep:
            note["fork"] = fork
        content, call_id = f"Fork {member} of version {version}: {text}", f"{version}/{member}"
        return _UNSENT.add_message(ledger.session_id, "system", content, call_id=call_id, metadata={_LABEL: note})

    async def _solve(self, fork: Session, calls: Iterable[SolutionCall], answer: str) -> None:
        """Make calls of the task's solution, and submit its answer."""
        async with self._valuer.agent(fork) as agent:
            for call in calls:
                if call["by"] == "agent":
                    await agent.run_function(call["function"], call["kwargs"])
                else:
                    async with self._valuer.agent({**fork, **fork["participants"][call["by"]]}) as other:
                        await other.run_function(call["function"], call["kwargs"])
            await agent.submit_answer(answer)


def finishes_of(finish: Any) -> dict[str, Finish]:
    """Return the ways to finish a fork, by name.

    Args:
        finish: One way, or a sequence of ways; see `Client.values`.

    Raises:
        ValueError: There is no way, an item isn't a way to finish a fork, or two ways have the same name.
    """
    ways = list(finish) if isinstance(finish, Sequence) and not isinstance(finish, str) else [finish]
    names = []
    for each in ways:
        if not (each is None or each in ("solution", "solution-by-function") or callable(each)):
            raise ValueError(
                f"finish must be a function, 'solution', 'solution-by-function', None or a list of them, not {each!r}"
            )
        own = each if isinstance(each, str) else getattr(each, "__name__", type(each).__name__)
        names.append("nothing" if each is None else own)
    if not ways or len({*names}) < len(names):
        raise ValueError(f"finish must be one or several different ways, not {finish!r}")
    return dict(zip(names, ways, strict=True))


def _worth(value: StepValue) -> float:
    """Return the number for comparing a value with others. An unknown value is the lowest."""
    return -inf if value.mean is None else value.mean


def _reward(verdict: Verdict) -> float | None:
    """Return the reward of a verdict, or None if the verdict isn't valid."""
    return verdict["reward"] if verdict["valid"] else None


class _Evaluation(Request[Verdict]):
    """A request for a verdict. Its batch waits longer for the response, because an evaluator might take long."""

    wait_seconds = 30.0


def _evaluation(session_id: str) -> Any:
    request = _UNSENT.evaluate_session(session_id, raise_on_error=False)
    return _Evaluation(request.method, request.params, fits=request.fits)


def check_counts(**numbers: int) -> None:
    """Raise `ValueError` for the first argument, by name, that isn't a whole number of at least 1."""
    for name, number in numbers.items():
        if not isinstance(number, int) or number < 1:
            raise ValueError(f"{name} must be a whole number, at least 1, not {number!r}")


def check_async(**functions: Any) -> None:
    """Raise `TypeError` for the first argument, by name, that isn't a coroutine function."""
    for name, function in functions.items():
        candidates = inspect.unwrap(function), type(function).__call__
        if not any(map(inspect.iscoroutinefunction, candidates)):
            raise TypeError(f"{name} must be a coroutine function, made with `async def`, not {function!r}")


def closing(session_id: str) -> Any:
    """Return a request that closes a session. The request can be repeated, because its result isn't used."""
    request: Any = _UNSENT.close_session(session_id)
    return replace(request, repeatable=True)
