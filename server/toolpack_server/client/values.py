"""Values of a rollout's steps: the mean reward of forks that begin at a step and are played to their end.

The reward of a finished fork is cached in the rollout's ledger, a session of its own, and the fork is closed. So the
number of open forks is bounded, and a program that died can continue: cached rewards count, and forks that are still
open were cut off, so they are closed and created again.
"""

import asyncio
import inspect
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from decimal import Decimal
from math import hypot, sqrt
from operator import itemgetter
from statistics import fmean, stdev
from typing import Any, Literal, TypeVar

from toolpack_server.base.errors import ClientError, ReplyError
from toolpack_server.client.batches import AsyncBatch
from toolpack_server.client.methods import CallRecord, ClientMethods, Session
from toolpack_server.client.requests import Request
from toolpack_server.features.evaluation.tasks.results import Solution, Verdict

T = TypeVar("T")

CONCURRENCY = 64
"""Default maximum number of open forks."""

_LABEL = "values"  # its value is the rollout's session_id
_OWN_LABELS = {_LABEL, "finish", "step", "member"}
_PAGE = 1000
_OVERLOADED = -32006
_NOT_FOUND = -32001
_GROUPS = 8  # of forks that are created together and open at the same time
_EVALUATED_TOGETHER = 8  # forks in one batch


@dataclass(frozen=True, slots=True)
class StepValue:
    """The value of a step: the mean reward of the forks that began there.

    Attributes:
        session_id: The rollout's session.
        version: The session's version at the fork point.
        rewards: The rewards of the forks.
        invalid: Number of forks whose verdict isn't valid. They don't count.
        errors: Exceptions raised by `finish`. Their forks don't count either.
    """

    session_id: str
    version: int
    rewards: tuple[float, ...]
    invalid: int = 0
    errors: tuple[Exception, ...] = ()

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
    """The value of a call.

    Attributes:
        record: The call's record: its `function`, its `kwargs`, and the caller as `by`.
        before: The value of the step before the call.
        after: The value of the step after the call.
    """

    record: CallRecord
    before: StepValue
    after: StepValue

    @property
    def advantage(self) -> float | None:
        """The change of the value in units of the reward, or None if either value is unknown."""
        before, after = self.before.mean, self.after.mean
        return None if before is None or after is None else after - before

    @property
    def standard_error(self) -> float | None:
        """The standard error of the advantage, or None if that of either value is unknown."""
        before, after = self.before.standard_error, self.after.standard_error
        return None if before is None or after is None else hypot(before, after)


@dataclass(frozen=True, slots=True)
class SessionValues:
    """The values of a rollout.

    Attributes:
        session_id: The rollout's session.
        steps: The values of the steps, in order.
        calls: The values of the calls that changed something and lie between two of the steps, in order.
    """

    session_id: str
    steps: list[StepValue]
    calls: list[CallValue]


class _Unsent(ClientMethods):
    """Builds requests without sending them."""

    def add(self, request: Request[T]) -> Request[T]:
        return request


_UNSENT: Any = _Unsent()


class Valuer:
    """Estimates the values of rollouts.

    Args:
        client: An `AsyncClient`, or an object with the same `send`.
        agent: A function that returns the client of a session's agent, for `async with`.
        k: Number of forks of each step.
        finish: How to finish a fork; see `Client.values`.
        labels: Further labels of the forks.
        progress: Called with the value of each step.
        concurrency: Maximum number of open forks.

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
        finish: Callable[[Any, Session], Awaitable[object]] | Literal["solution"] | None = None,
        labels: Mapping[str, str] | None = None,
        progress: Callable[[StepValue], object] | None = None,
        concurrency: int = CONCURRENCY,
    ) -> None:
        check_counts(k=k, concurrency=concurrency)
        if not (finish is None or finish == "solution" or callable(finish)):
            raise ValueError(f"finish must be a function, 'solution' or None, not {finish!r}")
        if callable(finish):
            check_async(finish=finish)
        if wrong := _OWN_LABELS & {*(labels or ())}:
            raise ValueError(f"labels can't contain {min(wrong)!r}, which the forks already have: choose another name")
        name = finish if isinstance(finish, str) else getattr(finish, "__name__", type(finish).__name__)
        self.client, self.agent, self.k, self.finish = client, agent, k, finish
        self.labels = {**(labels or {}), "finish": "nothing" if finish is None else name}
        self.progress = progress or (lambda _value: None)
        self.slots = asyncio.Semaphore(concurrency)
        self.slot_lock = asyncio.Lock()  # one group takes slots at a time, so it gets enough for all of its forks
        self.group_size = max(concurrency // _GROUPS, 1)

    async def values(self, session_id: str, steps: Iterable[int] | None = None) -> SessionValues:
        """Return the values of a rollout; see `Client.values`."""
        session = await self.client.get_session(session_id)
        if "task" not in session:
            raise ValueError(f"session {session_id} has no task, so it has no reward: create the session with a task")
        path = [record async for record in self._pages("get_trace", session_id, key="place", path=True)]
        trace = [record async for record in self._pages("get_trace", session_id, key="index")]
        calls = _calls_of([each for each in path if each["session_id"] == session_id], trace)
        possible = sorted({0, *(version for each in calls for version in (each["version"] - 1, each["version"]))})
        chosen = possible if steps is None else sorted(set(steps))
        for version in chosen:
            if version not in possible:
                raise ValueError(
                    f"version {version!r} isn't a step of session {session_id}: use {', '.join(map(str, possible))}"
                )
        solution = await self.client.get_solution(session_id) if self.finish == "solution" else None
        values = await _Rollout(self, session, path, solution).values(chosen)
        call_values = [
            CallValue(call, values[call["version"] - 1], values[call["version"]])
            for call in calls
            if {call["version"] - 1, call["version"]} <= values.keys()
        ]
        return SessionValues(session_id, [values[version] for version in chosen], call_values)

    async def _pages(self, method: str, *args: Any, key: str, **more: Any) -> Any:
        page = await getattr(self.client, method)(*args, limit=_PAGE, **more)
        while page:
            for each in page:
                yield each
            page = await getattr(self.client, method)(*args, limit=_PAGE, after=page[-1][key], **more)

    async def ledger(self, session_id: str, labels: dict[str, str]) -> tuple[str, dict[tuple[int, int], float | None]]:
        """Return the id of a rollout's ledger, and the rewards in it by step and member. Create the ledger if needed.

        A reward is None if its verdict was invalid. Close the forks that an interrupted run left open.

        Args:
            session_id: The rollout's session.
            labels: The labels that the ledger and the forks share.
        """
        found, cut, noted = "", [], {}
        async for each in self._pages("list_sessions", labels=labels, key="session_id"):
            more = each["labels"].keys() - labels.keys()
            if not more:
                found = each["session_id"]
            elif more == {"step", "member"}:
                cut.append(each["session_id"])
        await self.close(cut)
        if not found:
            ((ledger,),) = await self.send([_UNSENT.fork_session(session_id, version=0, labels=labels)])
            return ledger["session_id"], {}
        async for record in self._pages("get_trace", found, key="index"):
            if note := record.get("metadata", {}).get(_LABEL):
                noted[note["step"], note["member"]] = note["reward"]
        return found, noted

    async def close(self, sessions: Iterable[str]) -> None:
        await self.send([closing(session_id) for session_id in sessions])

    async def send(self, asked: Sequence[Any]) -> list[Any]:
        """Send requests together. Then send those that the server refused for lack of room again, one by one."""
        async with AsyncBatch(self.client.send) as batch:
            replies = [batch.add(request) for request in asked]
        results: list[Any] = []
        for request, reply in zip(asked, replies, strict=True):
            try:
                results.append(reply.result())
            except ReplyError as error:
                if error.code == _OVERLOADED:
                    results.append(await self.client.send(request))
                elif error.code != _NOT_FOUND or request.method != "close_session":
                    raise
        return results


class _Rollout:
    """The forks of one rollout, and their rewards."""

    def __init__(
        self, valuer: Valuer, session: Session, path: Sequence[Mapping[str, Any]], solution: Solution | None
    ) -> None:
        self._valuer, self._session, self._path, self._solution = valuer, session, path, solution
        self._id = session["session_id"]
        self._labels = {**valuer.labels, _LABEL: self._id}
        self._ledger = ""
        self._noted: dict[tuple[int, int], float | None] = {}
        self._open: set[str] = set()
        self._tasks = asyncio.TaskGroup()

    async def values(self, versions: Iterable[int]) -> dict[int, StepValue]:
        self._ledger, self._noted = await self._valuer.ledger(self._id, self._labels)
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
        """Create and play the missing forks of a step, and return its value."""
        size = self._valuer.group_size
        missing = [member for member in range(self._valuer.k) if (version, member) not in self._noted]
        groups = [missing[start : start + size] for start in range(0, len(missing), size)]
        playing = [self._tasks.create_task(self._play(version, group)) for group in groups]
        errors = [error for group in playing for error in await group]
        ended = [reward for (step, _), reward in sorted(self._noted.items(), key=itemgetter(0)) if step == version]
        rewards = tuple(reward for reward in ended if reward is not None)
        value = StepValue(self._id, version, rewards, len(ended) - len(rewards), tuple(errors))
        self._valuer.progress(value)
        return value

    async def _play(self, version: int, members: Sequence[int]) -> list[Exception]:
        """Create forks and play them to their end. Forks that end at about the same time are evaluated together."""
        slots, held = self._valuer.slots, 0
        running: dict[asyncio.Task[Exception | None], tuple[int, str]] = {}
        errors: list[Exception] = []
        try:
            async with self._valuer.slot_lock:
                while held < len(members):
                    await slots.acquire()
                    held += 1
            for member, fork in zip(members, await self._fork(version, members), strict=True):
                running[self._tasks.create_task(self._finish(fork, version))] = member, fork["session_id"]
            while running:
                done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                errors += [error for each in done if (error := each.result())]
                await self._end(version, {running.pop(each): each.result() is None for each in done})
                for _ in done:
                    slots.release()
                    held -= 1
        finally:
            for _ in range(held):
                slots.release()
        return errors

    async def _fork(self, version: int, members: Sequence[int]) -> list[Session]:
        requests = []
        for member in members:
            labels = {**self._labels, "step": str(version), "member": str(member)}
            seeds = self._seeds(f"{version}/{member}")
            requests.append(_UNSENT.fork_session(self._id, version=version, labels=labels, **seeds))
        forks = [fork for (fork,) in await self._valuer.send(requests)]
        self._open |= {fork["session_id"] for fork in forks}
        return forks

    def _seeds(self, seed: str) -> Any:
        """Return parameters that give a fork random numbers of its own, if the rollout's come from a seed."""
        seeds: dict[str, Any] = {"seed": seed} if "seed" in self._session else {}
        if rules := self._session.get("perturbations", {}).get("rules"):
            seeds["perturbations"] = {"rules": rules, "seed": seed}
        return seeds

    async def _finish(self, fork: Session, version: int) -> Exception | None:
        """Play a fork to its end. Return the exception that this raised, if any."""
        try:
            if self._solution:
                await self._solve(fork, version, self._solution)
            elif callable(self._valuer.finish):
                async with self._valuer.agent(fork) as agent:
                    await self._valuer.finish(agent, fork)
        except Exception as error:  # noqa: BLE001 - any error: the other forks go on
            return error
        return None

    async def _end(self, version: int, forks: Mapping[tuple[int, str], bool]) -> None:
        """Evaluate the forks that were played to their end, cache their rewards, and close all forks."""
        played = [each for each, is_played in forks.items() if is_played]
        size = _EVALUATED_TOGETHER
        groups = [played[start : start + size] for start in range(0, len(played), size)]
        evaluating = [self._valuer.send([_evaluation(fork) for _, fork in group]) for group in groups]
        verdicts = [verdict for group in await asyncio.gather(*evaluating) for verdict in group]
        entries = [self._entry(version, member, each) for (member, _), each in zip(played, verdicts, strict=True)]
        await self._valuer.send([*entries, *(closing(fork) for _, fork in forks)])
        self._open -= {fork for _, fork in forks}
        self._noted |= {(version, member): _reward(each) for (member, _), each in zip(played, verdicts, strict=True)}

    def _entry(self, version: int, member: int, verdict: Verdict) -> Any:
        """Return the request that writes a reward into the ledger."""
        reward = _reward(verdict)
        text = f"reward {reward:g}" if reward is not None else f"invalid, {verdict['failure']['message']}"
        metadata = {_LABEL: {"step": version, "member": member, "reward": reward}}
        content, call_id = f"Fork {member} of version {version}: {text}", f"{version}/{member}"
        return _UNSENT.add_message(self._ledger, "system", content, call_id=call_id, metadata=metadata)

    async def _solve(self, fork: Session, version: int, solution: Solution) -> None:
        """Make the calls of the task's solution that the history up to a version lacks, and submit the answer."""
        history = [each for each in self._path if each["session_id"] != self._id or each["version"] <= version]
        done = [_call_key(each) for each in history if "function" in each and not each["error"]]
        async with self._valuer.agent(fork) as agent:
            for call in solution["calls"]:
                function, kwargs, by = call["function"], call["kwargs"], call["by"]
                if _call_key(call) in done:
                    done.remove(_call_key(call))
                elif by == "agent":
                    await agent.run_function(function, kwargs)
                else:
                    async with self._valuer.agent({**fork, **fork["participants"][by]}) as other:
                        await other.run_function(function, kwargs)
            await agent.submit_answer(solution["answer"])


def _call_key(call: Any) -> tuple[str, Any]:
    """Return a key that is equal for equivalent calls; a number may be written as a text."""
    return call["function"], _by_value(call["kwargs"])


def _by_value(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _by_value(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_by_value(each) for each in value]
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    is_numeral = isinstance(value, str) and re.fullmatch(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?", value)
    return Decimal(str(value)) if is_number or is_numeral else value


def _reward(verdict: Verdict) -> float | None:
    return verdict["reward"] if verdict["valid"] else None


class _Evaluation(Request[Verdict]):
    """A request for a verdict. It makes its batch wait longer for the answer."""

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
    """Return a request that closes a session. It may be repeated, because its answer isn't used."""
    request: Any = _UNSENT.close_session(session_id)
    return replace(request, repeatable=True)


def _calls_of(path: Sequence[Any], trace: Sequence[Any]) -> list[CallRecord]:
    """Return the calls of a history that changed something. The record of each has the version that it created."""
    versions = [0, *(record["version"] for record in trace)]
    changes = {after["index"] for before, after in zip(versions, trace, strict=False) if after["version"] > before}
    return [record for record in path if record["kind"] == "call" and record["index"] in changes]
