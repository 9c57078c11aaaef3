"""The values of a rollout's steps: the rewards that forks get which begin there and are played to their end.

A fork that has ended is noted in the rollout's ledger, a session of its own, and closed. So no more forks are
open than there are slots, and a program that has died goes on: what is noted counts, and a fork that is still open was
cut off, is closed, and made again.
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
"""How many forks are open at the same time, unless the caller says otherwise."""

_LABEL = "values"  # has the rollout's session_id
_OWN_LABELS = {_LABEL, "finish", "step", "member"}
_PAGE = 1000
_OVERLOADED = -32006
_NOT_FOUND = -32001
_PARTS = 8  # groups of forks that are made together, and are open at the same time
_EVALUATED = 8  # forks by one request, one after the other


@dataclass(frozen=True, slots=True)
class StepValue:
    """The value of a step: the mean reward of forks that have begun there.

    Attributes:
        session_id: The rollout's session.
        version: Its version at which the forks have begun.
        rewards: Their rewards.
        invalid: How many forks had a verdict that isn't valid: they are in no mean.
        errors: What `finish` has raised, in forks that are in no mean either.
    """

    session_id: str
    version: int
    rewards: tuple[float, ...]
    invalid: int = 0
    errors: tuple[Exception, ...] = ()

    @property
    def n(self) -> int:
        """How many forks count."""
        return len(self.rewards)

    @property
    def mean(self) -> float | None:
        """The value, in units of the reward; None if no fork counts."""
        return fmean(self.rewards) if self.rewards else None

    @property
    def standard_error(self) -> float | None:
        """The standard error of the mean; None if fewer than two forks count, as then it isn't known."""
        return stdev(self.rewards) / sqrt(self.n) if self.n > 1 else None


@dataclass(frozen=True, slots=True)
class CallValue:
    """What a call was worth.

    Attributes:
        record: The call's record, which has its `function`, its `kwargs`, and as `by` who has called.
        before: The value of the step before it.
        after: The value of the step after it, which is that before the next call.
    """

    record: CallRecord
    before: StepValue
    after: StepValue

    @property
    def advantage(self) -> float | None:
        """By how much the call has changed the value, in units of the reward; None if either value isn't known."""
        before, after = self.before.mean, self.after.mean
        return None if before is None or after is None else after - before

    @property
    def standard_error(self) -> float | None:
        """The standard error of the advantage; None if that of either value isn't known."""
        before, after = self.before.standard_error, self.after.standard_error
        return None if before is None or after is None else hypot(before, after)


@dataclass(frozen=True, slots=True)
class SessionValues:
    """The values of a rollout.

    Attributes:
        session_id: The rollout's session.
        steps: The values of its steps, in order.
        calls: What its calls were worth, in order: those that have changed something, between two of the steps.
    """

    session_id: str
    steps: list[StepValue]
    calls: list[CallValue]


class _Unsent(ClientMethods):
    """Makes requests, and sends none."""

    def add(self, request: Request[T]) -> Request[T]:
        return request


_UNSENT: Any = _Unsent()


class Valuer:
    """Finds the values of rollouts, with so many forks open at the same time.

    Args:
        client: An `AsyncClient`, or what sends requests as it does.
        agent: Gets the client of a session's agent, in a block that begins with `async with`.
        k: How many forks of each step.
        finish: How a fork is finished.
        labels: Further labels of the forks.
        progress: Called with the value of each step.
        concurrency: How many forks are open at the same time.

    Raises:
        ValueError: One of them is wrong.
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
            raise ValueError(f"labels can't have {min(wrong)!r}, which the forks have already: choose another name")
        named = finish if isinstance(finish, str) else getattr(finish, "__name__", type(finish).__name__)
        self.client, self.agent, self.k, self.finish = client, agent, k, finish
        self.labels = {**(labels or {}), "finish": "nothing" if finish is None else named}
        self.progress = progress or (lambda _value: None)
        self.slots = asyncio.Semaphore(concurrency)
        self.turn = asyncio.Lock()  # of who takes slots: one at a time, so that each gets enough for all of its forks
        self.together = max(concurrency // _PARTS, 1)

    async def values(self, session_id: str, steps: Iterable[int] | None = None) -> SessionValues:
        """Get the values of a rollout; see `Client.values`."""
        session = await self.client.get_session(session_id)
        if "task" not in session:
            raise ValueError(f"session {session_id} has no task, so nothing gives a reward: create it with one")
        path = [record async for record in self._pages("get_trace", session_id, key="place", path=True)]
        trace = [record async for record in self._pages("get_trace", session_id, key="index")]
        calls = _calls_of([each for each in path if each["session_id"] == session_id], trace)
        known = sorted({0, *(version for each in calls for version in (each["version"] - 1, each["version"]))})
        chosen = known if steps is None else sorted(set(steps))
        for version in chosen:
            if version not in known:
                raise ValueError(
                    f"version {version!r} is no step of session {session_id}: they are {', '.join(map(str, known))}"
                )
        solution = await self.client.get_solution(session_id) if self.finish == "solution" else None
        values = await _Rollout(self, session, path, solution).values(chosen)
        found = [
            CallValue(call, values[call["version"] - 1], values[call["version"]])
            for call in calls
            if {call["version"] - 1, call["version"]} <= values.keys()
        ]
        return SessionValues(session_id, [values[version] for version in chosen], found)

    async def _pages(self, method: str, *args: Any, key: str, **more: Any) -> Any:
        page = await getattr(self.client, method)(*args, limit=_PAGE, **more)
        while page:
            for each in page:
                yield each
            page = await getattr(self.client, method)(*args, limit=_PAGE, after=page[-1][key], **more)

    async def ledger(self, session_id: str, labels: dict[str, str]) -> tuple[str, dict[tuple[int, int], float | None]]:
        """Get a rollout's ledger and what is noted there: by step and member the reward, None if it was invalid.

        Forks that are still open were cut off, and are closed.
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
        """Send requests together; those for which the server had no room then go once more, each for itself."""
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
    """The forks of one rollout."""

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
        """Make the forks of a step that are missing."""
        most = self._valuer.together
        missing = [member for member in range(self._valuer.k) if (version, member) not in self._noted]
        parts = [missing[start : start + most] for start in range(0, len(missing), most)]
        playing = [self._tasks.create_task(self._play(version, part)) for part in parts]
        errors = [error for part in playing for error in await part]
        ended = [reward for (step, _), reward in sorted(self._noted.items(), key=itemgetter(0)) if step == version]
        rewards = tuple(reward for reward in ended if reward is not None)
        value = StepValue(self._id, version, rewards, len(ended) - len(rewards), tuple(errors))
        self._valuer.progress(value)
        return value

    async def _play(self, version: int, members: Sequence[int]) -> list[Exception]:
        """Make forks, and play them to their end; those that have ended meanwhile are evaluated together."""
        slots, held = self._valuer.slots, 0
        running: dict[asyncio.Task[Exception | None], tuple[int, str]] = {}
        errors: list[Exception] = []
        try:
            async with self._valuer.turn:
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
        asked = []
        for member in members:
            labels = {**self._labels, "step": str(version), "member": str(member)}
            chance = self._chance(f"{version}/{member}")
            asked.append(_UNSENT.fork_session(self._id, version=version, labels=labels, **chance))
        forks = [fork for (fork,) in await self._valuer.send(asked)]
        self._open |= {fork["session_id"] for fork in forks}
        return forks

    def _chance(self, seed: str) -> Any:
        """Get what makes a fork meet chance of its own, where the rollout's is drawn from a seed."""
        chance: dict[str, Any] = {"seed": seed} if "seed" in self._session else {}
        if rules := self._session.get("perturbations", {}).get("rules"):
            chance["perturbations"] = {"rules": rules, "seed": seed}
        return chance

    async def _finish(self, fork: Session, version: int) -> Exception | None:
        """Play a fork to its end; get what that has raised."""
        try:
            if self._solution:
                await self._solve(fork, version, self._solution)
            elif callable(self._valuer.finish):
                async with self._valuer.agent(fork) as agent:
                    await self._valuer.finish(agent, fork)
        except Exception as error:  # noqa: BLE001 - whatever it is, the other forks go on
            return error
        return None

    async def _end(self, version: int, forks: Mapping[tuple[int, str], bool]) -> None:
        """Evaluate forks that were played to their end, note their rewards, and close all."""
        played = [each for each, is_played in forks.items() if is_played]
        parts = [played[start : start + _EVALUATED] for start in range(0, len(played), _EVALUATED)]
        evaluating = [self._valuer.send([_evaluating(fork) for _, fork in part]) for part in parts]
        verdicts = [verdict for part in await asyncio.gather(*evaluating) for verdict in part]
        notes = [self._note(version, member, each) for (member, _), each in zip(played, verdicts, strict=True)]
        await self._valuer.send([*notes, *(closing(fork) for _, fork in forks)])
        self._open -= {fork for _, fork in forks}
        self._noted |= {(version, member): _reward(each) for (member, _), each in zip(played, verdicts, strict=True)}

    def _note(self, version: int, member: int, verdict: Verdict) -> Any:
        reward = _reward(verdict)
        said = f"reward {reward:g}" if reward is not None else f"invalid, {verdict['failure']['message']}"
        note = {_LABEL: {"step": version, "member": member, "reward": reward}}
        content, call_id = f"Fork {member} of version {version}: {said}", f"{version}/{member}"
        return _UNSENT.add_message(self._ledger, "system", content, call_id=call_id, metadata=note)

    async def _solve(self, fork: Session, version: int, solution: Solution) -> None:
        """Make the calls of the task's solution that the path of a version doesn't have yet, and answer."""
        on_path = [each for each in self._path if each["session_id"] != self._id or each["version"] <= version]
        made = [_alike(each) for each in on_path if "function" in each and not each["error"]]
        async with self._valuer.agent(fork) as agent:
            for call in solution["calls"]:
                function, kwargs, by = call["function"], call["kwargs"], call["by"]
                if _alike(call) in made:
                    made.remove(_alike(call))
                elif by == "agent":
                    await agent.run_function(function, kwargs)
                else:
                    async with self._valuer.agent({**fork, **fork["participants"][by]}) as other:
                        await other.run_function(function, kwargs)
            await agent.submit_answer(solution["answer"])


def _alike(call: Any) -> tuple[str, Any]:
    """Get what is the same of calls that are alike: a number may be written as a text."""
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
    """An evaluation, which makes the batch that it is in wait for longer."""

    wait_seconds = 30.0


def _evaluating(session_id: str) -> Any:
    request = _UNSENT.evaluate_session(session_id, raise_on_error=False)
    return _Evaluation(request.method, request.params, fits=request.fits)


def check_counts(**numbers: int) -> None:
    """Raise `ValueError` for the first of these arguments, by name, that is no number from 1 on."""
    for name, number in numbers.items():
        if not isinstance(number, int) or number < 1:
            raise ValueError(f"{name} must be a number from 1 on, not {number!r}")


def check_async(**functions: Any) -> None:
    """Raise `TypeError` for the first of these arguments, by name, that isn't called as a coroutine function."""
    for name, function in functions.items():
        called = inspect.unwrap(function), type(function).__call__
        if not any(map(inspect.iscoroutinefunction, called)):
            raise TypeError(f"{name} must be a coroutine function, made with `async def`, not {function!r}")


def closing(session_id: str) -> Any:
    """Make a request that closes a session; sent again it does no harm, as nobody looks at its answer."""
    request: Any = _UNSENT.close_session(session_id)
    return replace(request, repeatable=True)


def _calls_of(path: Sequence[Any], trace: Sequence[Any]) -> list[CallRecord]:
    """Get the calls on a path that have changed something: each has made the version that its record has."""
    versions = [0, *(record["version"] for record in trace)]
    made = {after["index"] for before, after in zip(versions, trace, strict=False) if after["version"] > before}
    return [record for record in path if record["kind"] == "call" and record["index"] in made]
