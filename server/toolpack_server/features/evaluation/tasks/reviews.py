"""Reviews of rollouts: the value of each step, the call that lost the rollout, and a continuation that would have won.

The value of a step is the best reward that a known continuation reaches from there: the end, the rest of the task's
solution, the same without calls that were made with other arguments, or the rollout itself. So values never rise, and
a call is blamed only if nothing that came after it could still win. Forks play the continuations, and are closed.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from toolpack_server.base.errors import InvalidParamsError, ReplyError, VersionNotRetainedError
from toolpack_server.features.evaluation.tasks.results import Review, ReviewedRecord, ReviewLine, SolutionCall
from toolpack_server.jsonio.strict import dumps
from toolpack_server.protocol.omission import if_set
from toolpack_server.protocol.senders import AGENT
from toolpack_server.rpc.caller import Caller
from toolpack_server.rpc.codes import CODES
from toolpack_server.rpc.method import App

LABEL = "review"
"""The label of a review's forks; its value is the session_id of the rollout."""

MAX_STEPS = 40
"""Steps that are all evaluated. In longer rollouts, the steps at which the value falls are searched by halving."""

_AT_ONCE = 4  # steps
_FORK_SECONDS = 300  # TTL of a fork that is played and closed, in case the worker dies
_PAGE = 1000
_SHOWN = 60  # characters of a call's arguments in the summary


@dataclass(frozen=True, slots=True)
class _Step:
    """The best known continuation of a step. Without a reward the server no longer has its version."""

    version: int
    reward: float | None
    calls: Sequence[SolutionCall] = ()
    answer: str = ""
    checks: Sequence[Mapping[str, Any]] = ()


class Reviews:
    """Computes reviews, and stores them."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def review(self, session_id: str, owner: str | None, *, record: bool) -> Review:
        """Return the review of a rollout; see `methods.ReviewSession`.

        Raises:
            InvalidParamsError: The session has no task.
        """
        session, _ = await self._app.sessions.read(lambda reader: reader.find(session_id, owner))
        return await _Reviewer(self._app, Caller(session.owner), session_id).review(record=record)


class _Reviewer:
    """A rollout under review."""

    def __init__(self, app: App, caller: Caller, session_id: str) -> None:
        self._app, self._caller, self._id = app, caller, session_id
        self._slots = asyncio.Semaphore(_AT_ONCE)
        self._answer: str | None = None
        self._steps: dict[int, _Step] = {}
        self._has_solution = True
        self._reads: set[str] = set()

    async def _ask(self, method: str, **params: Any) -> Any:
        return await self._app.request(self._caller, method, params)

    async def _pages(self, *, path: bool) -> list[Any]:
        found: list[Any] = []
        key = "place" if path else "index"
        while page := await self._ask(
            "get_trace", session_id=self._id, limit=_PAGE, path=path, after=found[-1][key] if found else -1
        ):
            found += page
        return found

    async def review(self, *, record: bool) -> Review:
        session = await self._ask("get_session", session_id=self._id)
        if "task" not in session:
            raise InvalidParamsError(
                "The session has no task, so no reward can be lost: review a session that was created with a task."
            )
        trace = await self._pages(path=False)
        stage = {LABEL: self._id, "records": str(len(trace))}
        for found in await self._ask("list_sessions", labels=stage, limit=1):
            for note in await self._ask("get_trace", session_id=found["session_id"], limit=1):
                stored: Review = note["metadata"][LABEL]
                return stored
        functions = (await self._ask("list_functions", session_id=self._id))["result"]
        self._reads = {each["name"] for each in functions if each["read_only"]}
        own = [each for each in await self._pages(path=True) if each["session_id"] == self._id]
        review = await self._compute(session["task"], session["version"], _spans(own, trace))
        if record:
            line = review.get("line")
            if line is not None:
                fork = await self._fork(line["version"], {LABEL: self._id, "line": "best"})
                await self._play(fork, line["calls"], line["answer"])
                line["fork"] = fork["session_id"]
            ledger = await self._fork(session["version"], stage)
            await self._note(ledger["session_id"], review)
        return review

    async def _note(self, ledger: str, review: Review) -> None:
        """Store a review. One that is too large for a record isn't stored."""
        try:
            await self._ask(
                "add_message",
                session_id=ledger,
                role="system",
                content=review["summary"],
                metadata={LABEL: review},
            )
        except ReplyError as error:
            await self._ask("close_session", session_id=ledger)
            if error.code != CODES[InvalidParamsError]:
                raise

    async def _compute(self, task: str, version: int, spans: Sequence["_Span"]) -> Review:
        answers = [each.record["answer"] for each in spans if each.record["kind"] == "answer"]
        self._answer = answers[-1] if answers else None
        verdict = await self._ask("evaluate_session", session_id=self._id, raise_on_error=False)
        steps = sorted({0, *(step for each in spans for step in (each.before, each.after))})
        values = await self._values(steps)
        made = await self._solution(version)
        places = {call["place"] for call in made["calls"] if "place" in call} if made else set()
        own = verdict["reward"] if verdict["valid"] else None
        end = steps[-1]
        known = [value for value in values.values() if value is not None]
        wins = not verdict["passed"] and own is not None and bool(known) and known[0] > own
        lost = _largest_fall(spans, values, own) if wins else None
        if lost is not None and lost.record["kind"] == "answer" and self._steps[end].calls:
            lost = None  # calls are missing, whatever the answer is
        records: list[ReviewedRecord] = []
        for span in spans:
            before = values[span.before]
            after = own if span.record["kind"] == "answer" else values[span.after]
            mark: Any = "lost" if span is lost else _mark(span, before, after, places)
            records.append(
                {"index": span.record["index"], "before": if_set(before), "after": if_set(after), "mark": mark}
            )
        review: Review = {
            "session_id": self._id,
            "task": task,
            "reward": own,
            "passed": verdict["passed"],
            "summary": "",
            "records": records,
            "steps": [
                {
                    "version": step,
                    "value": if_set(values[step]),
                    "checks": [{"name": each["name"], "passed": each["passed"]} for each in self._steps[step].checks],
                }
                for step in steps
                if step in self._steps
            ],
            "checks": verdict["checks"],
            "never_called": [],
        }
        if wins:
            at = self._steps[end if lost is None else lost.before]
            line: ReviewLine = {
                "version": at.version,
                "calls": [*at.calls],
                "answer": at.answer,
                "reward": at.reward or 0.0,
            }
            review["line"] = line
            if lost is None:
                review["never_called"] = line["calls"]
            else:
                review["lost"] = lost.record["index"]
        review["summary"] = _summary(review, lost)
        return review

    async def _values(self, steps: Sequence[int]) -> dict[int, float | None]:
        """Return the value of each step. Values never rise, so equal ends of a span have equal values between."""
        if len(steps) <= MAX_STEPS:
            await asyncio.gather(*map(self._step, steps))
        else:
            await self._halve(steps, 0, len(steps) - 1)
        values: dict[int, float | None] = {}
        best: float | None = None
        for step in reversed(steps):
            reward = self._steps[step].reward if step in self._steps else best
            best = max((each for each in (best, reward) if each is not None), default=None)
            values[step] = None if step in self._steps and reward is None else best
        return {step: values[step] for step in steps}

    async def _halve(self, steps: Sequence[int], low: int, high: int) -> None:
        """Evaluate steps from `low` to `high` until each fall of the value is between two neighbours."""
        first, last = await asyncio.gather(self._step(steps[low]), self._step(steps[high]))
        if high - low > 1 and (first.reward is None or last.reward is None or first.reward > last.reward):
            middle = (low + high) // 2
            await self._halve(steps, middle, high)
            await self._halve(steps, low, middle)

    async def _step(self, version: int) -> _Step:
        """Return the best continuation of a step."""
        if version not in self._steps:
            async with self._slots:
                try:
                    self._steps[version] = await self._continued(version)
                except ReplyError as error:
                    if error.code != CODES[VersionNotRetainedError]:
                        raise
                    self._steps[version] = _Step(version, None)
        return self._steps[version]

    async def _continued(self, version: int) -> _Step:
        own = {} if self._answer is None else {"answer": self._answer}
        ended = await self._ask("evaluate_session", session_id=self._id, version=version, raise_on_error=False, **own)
        best = _Step(version, ended["reward"] if ended["valid"] else 0.0, (), self._answer or "", ended["checks"])
        solution = None if ended["passed"] else await self._solution(version)
        if solution is None:
            return best
        for calls in self._ways(solution["rest"]):
            fork = await self._fork(version, {LABEL: self._id}, _FORK_SECONDS)
            try:
                verdict = await self._play(fork, calls, solution["answer"])
            finally:
                await self._ask("close_session", session_id=fork["session_id"])
            if verdict["valid"] and verdict["reward"] > (best.reward or 0.0):
                best = _Step(version, verdict["reward"], calls, solution["answer"], ended["checks"])
            if verdict["passed"]:
                break
        return best

    def _ways(self, rest: Sequence[SolutionCall]) -> list[list[SolutionCall]]:
        """Return different lists of calls that may finish a task, the most likely ones first.

        Calls that only read come last, because few tasks need them.
        """
        changing = [call for call in rest if call["function"] not in self._reads]
        ways: list[list[SolutionCall]] = []
        for calls in (changing, [*rest]):
            for way in (calls, [call for call in calls if "similar" not in call]):
                if way not in ways:
                    ways.append(way)
        return ways

    async def _solution(self, version: int) -> Any:
        if not self._has_solution:
            return None
        try:
            return await self._ask("get_solution", session_id=self._id, version=version)
        except ReplyError as error:
            if error.code != CODES[InvalidParamsError]:
                raise
            self._has_solution = False
            return None

    async def _fork(self, version: int, labels: Mapping[str, str], seconds: float | None = None) -> Any:
        more = {} if seconds is None else {"ttl_seconds": seconds}
        (fork,) = await self._ask("fork_session", session_id=self._id, version=version, labels=labels, **more)
        return fork

    async def _play(self, fork: Any, calls: Sequence[SolutionCall], answer: str) -> Any:
        """Make calls in a fork at the addresses of those who make them, submit the answer, and return the verdict."""
        session_id = fork["session_id"]
        for call in calls:
            caller = Caller(self._caller.owner, session_id, address=call["by"])
            params = {"function": call["function"], "kwargs": call["kwargs"]}
            try:
                await self._app.request(caller, "run_function", params)
            except ReplyError:  # no calls are left
                break
        try:
            agent = Caller(self._caller.owner, session_id, address=AGENT)
            await self._app.request(agent, "submit_answer", {"answer": answer})
        except ReplyError:  # its part is over, so it answers nothing
            pass
        return await self._ask("evaluate_session", session_id=session_id, raise_on_error=False)


@dataclass(frozen=True, slots=True)
class _Span:
    """A call or the answer, and the steps before and after it."""

    record: Mapping[str, Any]
    before: int
    after: int


def _spans(path: Sequence[Any], trace: Sequence[Any]) -> list[_Span]:
    """Return the calls and the answer of a history. A record that changed nothing has one step on both sides."""
    versions = [0, *(record["version"] for record in trace)]
    changed = {after["index"] for before, after in zip(versions, trace, strict=False) if after["version"] > before}
    spans: list[_Span] = []
    step = 0
    for record in path:
        if record["kind"] == "call" and record["index"] in changed:
            step = record["version"]
            spans.append(_Span(record, step - 1, step))
        elif record["kind"] in {"call", "answer"}:
            spans.append(_Span(record, step, step))
    return spans


def _fall(span: _Span, values: Mapping[int, float | None], own: float | None) -> float:
    before = values[span.before]
    after = own if span.record["kind"] == "answer" else values[span.after]
    return 0.0 if before is None or after is None else before - after


def _largest_fall(spans: Sequence[_Span], values: Mapping[int, float | None], own: float | None) -> _Span | None:
    """Return the call or the answer at which the value falls most, the first of several."""
    falls = [_fall(span, values, own) for span in spans]
    return spans[falls.index(max(falls))] if falls and max(falls) > 0 else None


def _mark(span: _Span, before: float | None, after: float | None, places: set[int]) -> Any:
    record = span.record
    if record["kind"] == "answer":
        return "end"
    if record["error"] is not None:
        return "failed"
    if span.before == span.after:
        return "read"
    if record["place"] in places:
        return "solution"
    if before is None or after is None:
        return "unknown"
    return "worse" if after < before else "own" if after > 0 else "late"


def _summary(review: Review, lost: _Span | None) -> str:
    """Describe the outcome of a review in one or two sentences."""
    if review["passed"]:
        return f"Passed with the reward {review['reward']:g}: no call lost it."
    if review["reward"] is None:
        return "The rollout has no valid verdict, so no call can be blamed."
    line = review.get("line")
    if line is None:
        return (
            f"Failed with the reward {review['reward']:g}. No continuation is known that would have had more, so no "
            "call is named."
        )
    count = len(line["calls"])
    more = f"{count or 'no'} more call{'s' * (count != 1)} and the answer"
    if review["never_called"]:
        (first, *rest) = review["never_called"]
        others = f" and {len(rest)} more call{'s' * (len(rest) != 1)} were" if rest else " was"
        return (
            f"No call lost it: {_written(first['function'], first['kwargs'])}{others} never made. At the end, {more} "
            f"would have had the reward {line['reward']:g}."
        )
    if lost is None:
        return f"No call lost it: the agent never answered. The answer would have had the reward {line['reward']:g}."
    if lost.record["kind"] == "answer":
        return f"Lost at the answer: the value fell from {line['reward']:.2f} to {review['reward']:.2f}."
    (entry,) = [each for each in review["records"] if each["index"] == lost.record["index"]]
    return (
        f"Lost at call {lost.record['index']}, {_written(lost.record['function'], lost.record['kwargs'])}: the value "
        f"fell from {entry['before']:.2f} to {entry['after']:.2f}. Until then {more} would have won."
    )


def _written(function: str, kwargs: Mapping[str, Any]) -> str:
    """Return a call as text, with its arguments in short."""
    text = ", ".join(f"{name}={dumps(value).decode()}" for name, value in kwargs.items())
    return f"{function}({text if len(text) <= _SHOWN else text[:_SHOWN] + '…'})"
