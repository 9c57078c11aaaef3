"""Reviews of rollouts: the value of each step, the call that lost the rollout, and a continuation that would have won.

A *step* is a version of the session. Its *value* is the best reward that a known continuation reaches from there. The
continuations are:

- stop at the step;
- the calls of the task's solution that the rollout hasn't made yet;
- these calls, without the calls that the rollout made with other arguments;
- the solution again, from its first missing call on;
- the rest of the rollout itself.

Because of the last continuation, values never rise from step to step. So a call is blamed only if no later step could
still win. Each continuation is played in a fork, which is then closed. If no continuation wins, the calls of a
*sibling* serve as the solution. A sibling is a rollout of the same task and run that passed.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

from toolpack_server.base.errors import InvalidParamsError, ReplyError, VersionNotRetainedError
from toolpack_server.features.evaluation.tasks.results import (
    Review,
    ReviewedRecord,
    ReviewLine,
    SessionSummary,
    Solution,
    SolutionCall,
    TaskSolution,
)
from toolpack_server.features.evaluation.tasks.solution_progress import is_made, match_solution
from toolpack_server.features.evaluation.tasks.summaries import REVIEW_LABEL, is_rollout
from toolpack_server.jsonio.strict import dumps
from toolpack_server.protocol.omission import if_set
from toolpack_server.protocol.senders import AGENT, CLIENT, WORLD
from toolpack_server.protocol.steps import Span, spans_of
from toolpack_server.rpc.caller import Caller
from toolpack_server.rpc.codes import CODES
from toolpack_server.rpc.method import App

MAX_STEPS = 40
"""Rollouts with at most this many steps are evaluated at each step. In longer rollouts, a binary search finds the steps
at which the value falls."""

MAX_LISTED = 1000
"""Max sessions that the search for a sibling reads, newest first."""

MAX_EVALUATIONS = 8
"""Max rollouts without a recorded verdict that the search for a sibling evaluates."""

_MAX_PARALLEL = 4  # max steps that are evaluated at the same time
_FORK_SECONDS = 300  # TTL of a continuation's fork; it matters only if the worker dies before it closes the fork
_PAGE = 1000
_MAX_ARGUMENTS = 60  # max length of a call's arguments in the summary
_ID_CHARACTERS = 8  # characters of a session_id in the summary
_ROLLOUT = "rollout"  # the label that numbers the rollouts of a run; all other labels of siblings are equal


@dataclass(frozen=True, slots=True)
class _Step:
    """The best known continuation from a step. The reward is None if the server no longer stores the version."""

    version: int
    reward: float | None
    calls: Sequence[SolutionCall] = ()
    answer: str = ""
    checks: Sequence[Mapping[str, Any]] = ()


class Reviews:
    """Computes reviews, and stores them. The method `review_session` uses it."""

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
    """Computes the review of one rollout. It sends requests to the server's own methods, as the session's owner."""

    def __init__(self, app: App, caller: Caller, session_id: str) -> None:
        self._app, self._caller, self._id = app, caller, session_id
        self._slots = asyncio.Semaphore(_MAX_PARALLEL)
        self._answer: str | None = None
        self._steps: dict[int, _Step] = {}
        self._has_solution = True
        self._sibling: TaskSolution | None = None
        self._path: list[Any] = []
        self._reads: set[str] = set()

    async def _request(self, method: str, **params: Any) -> Any:
        return await self._app.request(self._caller, method, params)

    async def _pages(self, session_id: str, *, path: bool) -> list[Any]:
        """Return all records of a session. With `path`, return all records on its path, including its ancestors'."""
        records: list[Any] = []
        key = "path_index" if path else "index"
        while page := await self._request(
            "get_trace", session_id=session_id, limit=_PAGE, path=path, after=records[-1][key] if records else -1
        ):
            records += page
        return records

    async def review(self, *, record: bool) -> Review:
        """Return the stored review, or compute it.

        With `record`, play the winning continuation in a fork that is kept, and store the review. The review is stored
        as a message in a second fork, the *ledger*, because a record in the session itself would change the rollout.
        """
        session = await self._request("get_session", session_id=self._id)
        if "task" not in session:
            raise InvalidParamsError(
                "The session has no task, so no reward can be lost: review a session that was created with a task."
            )
        trace = await self._pages(self._id, path=False)
        # The labels of the ledger. With the number of records, a review of an older state of the session isn't found.
        stage = {REVIEW_LABEL: self._id, "records": str(len(trace))}
        stored = await self._stored(stage)
        if stored is not None:
            return stored
        functions = (await self._request("list_functions", session_id=self._id))["result"]
        self._reads = {each["name"] for each in functions if each["read_only"]}
        self._path = await self._pages(self._id, path=True)
        spans = spans_of([each for each in self._path if each["session_id"] == self._id], trace)
        task, labels, version = session["task"], session["labels"], session["version"]
        review = await self._compute(task, version, spans)
        if not review["passed"] and review["reward"] is not None and "line" not in review:
            review = await self._compared_with_sibling(task, labels, version, spans) or review
        if record:
            line = review.get("line")
            if line is not None:
                fork = await self._fork(line["version"], {REVIEW_LABEL: self._id, "line": "best"})
                await self._play(fork, line["calls"], line["answer"])
                line["fork"] = fork["session_id"]
            ledger = await self._fork(session["version"], stage)
            await self._store(ledger["session_id"], review)
        return review

    async def _stored(self, stage: Mapping[str, str]) -> Review | None:
        """Return the review that is stored in a fork with these labels, or None.

        A fork with these labels can lack a review, because a user set the labels, or because a worker died before it
        stored the review.
        """
        after = ""
        while forks := await self._request("list_sessions", labels=stage, parent=self._id, after=after, limit=_PAGE):
            for fork in forks:
                for note in await self._request("get_trace", session_id=fork["session_id"], limit=1):
                    review = note.get("metadata", {}).get(REVIEW_LABEL)
                    if isinstance(review, dict) and review.get("session_id") == self._id:
                        return cast("Review", review)
            after = forks[-1]["session_id"]
        return None

    async def _compared_with_sibling(
        self, task: str, labels: Mapping[str, str], version: int, spans: Sequence[Span]
    ) -> Review | None:
        """Return the review that uses a sibling's calls as the solution.

        Return None if no sibling exists, a call in its records was cut, or its calls don't win either.
        """
        sibling = await self._find_sibling(task, {name: labels[name] for name in labels if name != _ROLLOUT})
        path = await self._pages(sibling, path=True) if sibling else []
        ran = [each for each in path if each["kind"] == "call" and each["error"] is None and each["by"] != WORLD]
        answers = [each["answer"] for each in path if each["kind"] == "answer"]
        if sibling is None or b'"$cut"' in dumps([each["kwargs"] for each in ran]):
            return None
        calls: list[SolutionCall] = [
            {"function": each["function"], "kwargs": each["kwargs"], "by": each["by"]} for each in ran
        ]
        self._sibling, self._steps = {"calls": calls, "answer": answers[-1] if answers else ""}, {}
        review = await self._compute(task, version, spans)
        if "line" not in review:
            return None
        review["sibling"] = sibling
        review["summary"] += f" The calls are those of the rollout {sibling[:_ID_CHARACTERS]}, which passed."
        return review

    async def _find_sibling(self, task: str, labels: Mapping[str, str]) -> str | None:
        """Return the session_id of the newest passed rollout with this task and these labels, or None."""
        if not labels:  # nothing tells which other rollouts belong to the same run
            return None
        evaluations = 0
        async for each in self._newest(labels):
            if each.get("task") != task or each["session_id"] == self._id or not is_rollout(each, labels):
                continue
            verdict = each.get("verdict")
            if verdict is None and evaluations < MAX_EVALUATIONS:
                evaluations += 1
                verdict = await self._request("evaluate_session", session_id=each["session_id"], raise_on_error=False)
            if verdict and verdict["passed"]:
                return str(each["session_id"])
        return None

    async def _newest(self, labels: Mapping[str, str]) -> AsyncIterator[SessionSummary]:
        """Yield summaries of the newest sessions with these labels."""
        after: str | None = ""
        left = MAX_LISTED
        while after is not None and left:
            part = await self._request("summarize_sessions", labels=labels, order="-created", after=after, limit=left)
            for each in part["sessions"]:
                yield each
            left -= len(part["sessions"])
            after = part.get("next")

    async def _store(self, ledger: str, review: Review) -> None:
        """Store a review as a message in the fork `ledger`. If the review is too large for a record, close the fork."""
        try:
            await self._request(
                "add_message",
                session_id=ledger,
                role="system",
                content=review["summary"],
                metadata={REVIEW_LABEL: review},
            )
        except ReplyError as error:
            await self._request("close_session", session_id=ledger)
            if error.code != CODES[InvalidParamsError]:
                raise

    async def _compute(self, task: str, version: int, spans: Sequence[Span]) -> Review:
        """Compute the review from the verdict, the values of all steps and the solution.

        Args:
            version: The session's current version.
            spans: The session's calls and its answer, each with the steps before and after it.
        """
        answers = [each.record["answer"] for each in spans if each.record["kind"] == "answer"]
        self._answer = answers[-1] if answers else None
        verdict = await self._request("evaluate_session", session_id=self._id, raise_on_error=False)
        steps = sorted({0, *(step for each in spans for step in (each.before, each.after))})
        values = await self._values(steps)
        solution = await self._solution(version)
        indices = {call["path_index"] for call in solution["calls"] if "path_index" in call} if solution else set()
        own = verdict["reward"] if verdict["valid"] else None
        end = steps[-1]
        rewards = [value for value in values.values() if value is not None]
        # Values never rise, so the first value is the best reward that was possible.
        wins = not verdict["passed"] and own is not None and bool(rewards) and rewards[0] > own
        lost = _largest_fall(spans, values, own) if wins else None
        if lost is not None and lost.record["kind"] == "answer" and self._steps[end].calls:
            lost = None  # the answer isn't to blame: calls were missing, so even another answer wouldn't have won
        records: list[ReviewedRecord] = []
        for span in spans:
            before = values[span.before]
            after = own if span.record["kind"] == "answer" else values[span.after]
            mark: Any = "lost" if span is lost else _mark(span, before, after, indices)
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
                review["never_called"] = [call for call in line["calls"] if "path_index" not in call]
            else:
                review["lost"] = lost.record["index"]
                review["never_called"] = await self._missing_before(lost, solution, line["calls"])
        review["summary"] = _summary(review, lost)
        if not review["passed"]:
            review["lost_at"] = _lost_at(review, lost)
        return review

    async def _missing_before(
        self, lost: Span, solution: Solution | None, line: Sequence[SolutionCall]
    ) -> list[SolutionCall]:
        """Return the solution's calls that should have come before the losing call, but that the rollout hadn't made.

        The result is empty if the losing call isn't a call of the solution.
        """
        calls = solution["calls"] if solution else []
        number = next(
            (number for number, call in enumerate(calls) if call.get("path_index") == lost.record["path_index"]), 0
        )
        if not number:
            return []
        before = (await self._solution(lost.before))["calls"][:number]
        return [call for call in before if "path_index" not in call and call in line]

    async def _values(self, steps: Sequence[int]) -> dict[int, float | None]:
        """Return the value of each step, or None for a step that the server no longer stores.

        A step's value is the highest reward that a continuation reaches from this step or from a later step.
        If `_halve` skipped a step, the values on both sides of it are equal. Because values never rise, the skipped
        step has the same value.
        """
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
        """Evaluate steps from `low` to `high` by binary search, until each fall lies between two adjacent steps."""
        first, last = await asyncio.gather(self._step(steps[low]), self._step(steps[high]))
        if high - low > 1 and (first.reward is None or last.reward is None or first.reward > last.reward):
            middle = (low + high) // 2
            await self._halve(steps, middle, high)
            await self._halve(steps, low, middle)

    async def _step(self, version: int) -> _Step:
        """Return the best continuation from a step, and remember it for the next call.

        If the server no longer stores the version, return a step without a reward.
        """
        if version not in self._steps:
            async with self._slots:
                try:
                    self._steps[version] = await self._best_continuation(version)
                except ReplyError as error:
                    if error.code != CODES[VersionNotRetainedError]:
                        raise
                    self._steps[version] = _Step(version, None)
        return self._steps[version]

    async def _best_continuation(self, version: int) -> _Step:
        """Evaluate the rollout as if it ended here, then play continuations in forks until one passes.

        Return the continuation with the highest reward.
        """
        own = {} if self._answer is None else {"answer": self._answer}
        ended = await self._request(
            "evaluate_session", session_id=self._id, version=version, raise_on_error=False, **own
        )
        best = _Step(version, ended["reward"] if ended["valid"] else 0.0, (), self._answer or "", ended["checks"])
        solution = None if ended["passed"] else await self._solution(version)
        if solution is None:
            return best
        for calls in self._candidates(solution):
            fork = await self._fork(version, {REVIEW_LABEL: self._id}, _FORK_SECONDS)
            try:
                verdict = await self._play(fork, calls, solution["answer"])
            finally:
                await self._request("close_session", session_id=fork["session_id"])
            if verdict["valid"] and verdict["reward"] > (best.reward or 0.0):
                best = _Step(version, verdict["reward"], calls, solution["answer"], ended["checks"])
            if verdict["passed"]:
                break
        return best

    def _candidates(self, solution: Solution) -> list[list[SolutionCall]]:
        """Return the lists of calls to try as continuations, without duplicates. The most promising list comes first.

        Lists without read-only calls come first, because few tasks need read-only calls. The last list repeats the
        solution from its first missing call on, because the rollout's later calls might have had no effect without the
        missing call.
        """
        rest, calls = solution["rest"], solution["calls"]
        first = next((number for number, call in enumerate(calls) if "path_index" not in call), len(calls))
        tried = [self._changing(rest), rest]
        # Each list is also tried without the calls that the rollout made with other arguments (`similar`).
        lists = [
            *(way for each in tried for way in (each, [call for call in each if "similar" not in call])),
            self._changing(calls[first:]),
        ]
        return [way for number, way in enumerate(lists) if way not in lists[:number]]

    def _changing(self, calls: Sequence[SolutionCall]) -> list[SolutionCall]:
        return [call for call in calls if call["function"] not in self._reads]

    async def _solution(self, version: int) -> Any:
        """Return the solution compared with the history up to a version, or None if the task has no solution.

        If a sibling was found, its calls are the solution.
        """
        if self._sibling is not None:
            history = [
                each if each["kind"] == "call" else None
                for each in self._path
                if each["session_id"] != self._id or each["version"] <= version
            ]
            compare = partial(match_solution, history, self._sibling["calls"])
            calls = await self._app.sessions.compute(compare, self._caller.owner or "", "comparison")
            return {
                "calls": calls,
                "answer": self._sibling["answer"],
                "rest": [each for each in calls if not is_made(each)],
            }
        if not self._has_solution:
            return None
        try:
            return await self._request("get_solution", session_id=self._id, version=version)
        except ReplyError as error:
            if error.code != CODES[InvalidParamsError]:
                raise
            self._has_solution = False
            return None

    async def _fork(self, version: int, labels: Mapping[str, str], seconds: float | None = None) -> Any:
        more = {} if seconds is None else {"ttl_seconds": seconds}
        (fork,) = await self._request("fork_session", session_id=self._id, version=version, labels=labels, **more)
        return fork

    async def _play(self, fork: Any, calls: Sequence[SolutionCall], answer: str) -> Any:
        """Make calls in a fork, each at the address of its participant. Submit the answer. Return the verdict."""
        session_id = fork["session_id"]
        for call in calls:
            params = {"function": call["function"], "kwargs": call["kwargs"]}
            caller = Caller(self._caller.owner, session_id, address=call["by"])
            if call["by"] == CLIENT:  # a sibling's call that a client made
                caller, params = self._caller, {**params, "session_id": session_id}
            try:
                await self._app.request(caller, "run_function", params)
            except ReplyError:  # for example, the agent has used all its calls
                break
        try:
            agent = Caller(self._caller.owner, session_id, address=AGENT)
            await self._app.request(agent, "submit_answer", {"answer": answer})
        except ReplyError:  # the agent's part is over, so it can't answer any more
            pass
        return await self._request("evaluate_session", session_id=session_id, raise_on_error=False)


def _fall(span: Span, values: Mapping[int, float | None], own: float | None) -> float:
    """Return how much the value falls at a call or at the answer. `own` is the reward of the rollout."""
    before = values[span.before]
    after = own if span.record["kind"] == "answer" else values[span.after]
    return 0.0 if before is None or after is None else before - after


def _largest_fall(spans: Sequence[Span], values: Mapping[int, float | None], own: float | None) -> Span | None:
    """Return the first call or answer with the largest fall of the value, or None if the value never falls."""
    falls = [_fall(span, values, own) for span in spans]
    return spans[falls.index(max(falls))] if falls and max(falls) > 0 else None


def _mark(span: Span, before: float | None, after: float | None, indices: set[int]) -> Any:
    """Return the mark of a record; `ReviewedRecord` explains the marks.

    Args:
        indices: The path indices of the calls that equal a call of the solution.
    """
    record = span.record
    if record["kind"] == "answer":
        return "end"
    if record["error"] is not None:
        return "failed"
    if span.before == span.after:
        return "read"
    if record["path_index"] in indices:
        return "solution"
    if before is None or after is None:
        return "unknown"
    return "worse" if after < before else "own" if after > 0 else "late"


def _lost_at(review: Review, lost: Span | None) -> str:
    """Describe in a few words where a failed rollout was lost."""
    missing = [call["function"] for call in review["never_called"]]
    if lost is not None:
        name = lost.record.get("function", "the answer")
        return f"{missing[0]} was not made before {name}" if missing else name
    if missing:
        return f"{missing[0]} was never made"
    return "no answer" if "line" in review else "no continuation is known"


def _summary(review: Review, lost: Span | None) -> str:
    """Describe the outcome of a review in one or two sentences."""
    if review["passed"]:
        return f"Passed with the reward {review['reward']:g}: no call lost it."
    if review["reward"] is None:
        return "The rollout has no valid verdict, so no call can be blamed."
    line = review.get("line")
    if line is None:
        return (
            f"Failed with the reward {review['reward']:g}. No known continuation has a higher reward, so no call is "
            "blamed."
        )
    count = len(line["calls"])
    more = f"{count or 'no'} more call{'s' * (count != 1)} and the answer"
    missing = review["never_called"]
    names = _call_text(missing[0]["function"], missing[0]["kwargs"]) if missing else ""
    if len(missing) > 1:
        names += f" and {len(missing) - 1} more call{'s' * (len(missing) != 2)}"  # noqa: PLR2004 - one besides it
    if lost is None and missing:
        return (
            f"No call lost it: {names} {'was' if len(missing) == 1 else 'were'} never made. At the end, {more} would "
            f"have had the reward {line['reward']:g}."
        )
    if lost is None:
        return f"No call lost it: the agent never answered. The answer would have had the reward {line['reward']:g}."
    if lost.record["kind"] == "answer":
        return f"Lost at the answer: the value fell from {line['reward']:.2f} to {review['reward']:.2f}."
    (entry,) = [each for each in review["records"] if each["index"] == lost.record["index"]]
    early = f", made without {names} before it" if missing else ""
    return (
        f"Lost at call {lost.record['index']}, {_call_text(lost.record['function'], lost.record['kwargs'])}{early}: "
        f"the value fell from {entry['before']:.2f} to {entry['after']:.2f}. Until then {more} would have won."
    )


def _call_text(function: str, kwargs: Mapping[str, Any]) -> str:
    """Return a call as text, with its arguments cut to a short length."""
    text = ", ".join(f"{name}={dumps(value).decode()}" for name, value in kwargs.items())
    return f"{function}({text if len(text) <= _MAX_ARGUMENTS else text[:_MAX_ARGUMENTS] + '…'})"
