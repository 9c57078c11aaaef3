"""Implementation of the task methods: list and describe tasks, record messages and answers, evaluate sessions.

Author code (loaders, solutions, evaluators) runs in the owner's queue for author code, with a deadline. No method here
changes an environment.
"""

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from toolpack_server.base.errors import (
    ClassesChangedError,
    EvaluationError,
    InvalidParamsError,
    OverloadedError,
    RequestError,
    SessionNotFoundError,
    StateDamagedError,
    shown,
)
from toolpack_server.engine.state import SessionState
from toolpack_server.features.evaluation.episodes.messages import MessageOperation
from toolpack_server.features.evaluation.episodes.progress import Episodes, Progress
from toolpack_server.features.evaluation.episodes.rights import PARTICIPANTS
from toolpack_server.features.evaluation.tasks.answers import AnswerOperation
from toolpack_server.features.evaluation.tasks.evaluation import Evidence, SeenRecord, seen_record
from toolpack_server.features.evaluation.tasks.finding import all_tasks, find_task
from toolpack_server.features.evaluation.tasks.operations import EvaluateTask, SolveTask
from toolpack_server.features.evaluation.tasks.results import (
    AgentTask,
    Solution,
    TaskDescription,
    TaskPage,
    Verdict,
    VerdictFailure,
)
from toolpack_server.features.evaluation.tasks.solution_progress import is_made, match_solution
from toolpack_server.features.evaluation.tasks.task import SEPARATOR, Task
from toolpack_server.features.evaluation.tasks.validity import (
    machine_failure,
    no_reward,
    participant_failure,
    unfinished_failure,
)
from toolpack_server.features.evaluation.tasks.verdicts import VerdictOperation
from toolpack_server.jsonio.strict import dumps
from toolpack_server.packs.toolpack import Toolpack
from toolpack_server.protocol.omission import if_set
from toolpack_server.rpc.method import App
from toolpack_server.sessions.operation import SessionOperation
from toolpack_server.sessions.reader import SessionReader
from toolpack_server.sessions.recipes import Recipe
from toolpack_server.stores.base import Head, StoredSession
from toolpack_server.stores.history import fitting


class TaskQuery(NamedTuple):
    """Filter of `list_tasks`. A field that is None or empty matches every task."""

    toolpack: str | None
    split: str | None
    tags: Sequence[str]


class UnfinishedError(OverloadedError):
    """The session's last call has triggered events that haven't happened yet, so it can't be evaluated now.

    Attributes:
        operations: Operations that run these events. After them, the session can be evaluated.
    """

    def __init__(self, operations: Sequence[SessionOperation]) -> None:
        super().__init__("The session's last call has triggered events that haven't happened yet: try again.")
        self.operations = operations


class Tasks:
    """Implements the task methods. The server creates one instance; `app.feature(Tasks)` returns it."""

    def __init__(self, app: App) -> None:
        self._context = app.context
        self._catalog = app.context.catalog
        self._sessions = app.sessions
        self._episodes = app.feature(Episodes)

    # Tasks alone

    async def list(self, owner: str, query: TaskQuery, after: int, limit: int) -> TaskPage:
        return await self._sessions.run_authors(lambda: self._page(query, after, limit), owner, "tasks")

    async def describe(self, owner: str, name: str) -> TaskDescription:
        """Return the task `name`, with its number in the list of all tasks. This can run loaders."""

        def describe() -> TaskDescription:
            pack, task = find_task(self._catalog, name)
            index = next(index for index, (_, other) in enumerate(all_tasks(self._catalog)) if other is task)
            return _description(index, pack, task)

        return await self._sessions.run_authors(describe, owner, "tasks")

    def _page(self, query: TaskQuery, after: int, limit: int) -> TaskPage:
        """Return a page of the tasks that match a query, and the number of all matching tasks.

        Raises:
            InvalidParamsError: The query names a toolpack that isn't loaded.
        """
        if query.toolpack is not None and query.toolpack not in self._catalog.toolpacks:
            raise InvalidParamsError(
                f"There is no toolpack {shown(query.toolpack)!r}: choose from {', '.join(self._catalog.toolpacks)}."
            )
        splits: Counter[str] = Counter()
        matching = []
        for index, (pack, task) in enumerate(all_tasks(self._catalog)):
            if query.toolpack in {None, pack.name} and set(query.tags) <= {*task.tags}:
                splits[task.split] += 1
                if query.split in {None, task.split}:
                    matching.append((index, pack, task))
        page = (_description(*entry) for entry in [entry for entry in matching if entry[0] > after][:limit])
        tasks = fitting(page, lambda task: len(dumps(task)), self._context.settings.max_list_bytes)
        return {"total": len(matching), "splits": dict(splits), "tasks": tasks}

    # A session's task

    async def agent_task(self, session_id: str, owner: str, name: str) -> AgentTask:
        """Return the task as a participant sees it: prompt, call limit, calls used, and whether its part is over."""

        def describe(reader: SessionReader) -> AgentTask:
            session, head = reader.find(session_id, owner)
            address = self._context.addresses.of(session, name)
            is_episode = self._episodes.concerns(session)
            progress = self._episodes.stored(session, head.index) if is_episode else Progress()
            agent_task: AgentTask = {
                "prompt": address.prompt,
                "max_calls": if_set(address.max_calls),
                "calls": progress.calls.get(name, 0),
                "done": self._episodes.refusal_reason(session_id, address, progress) is not None,
            }
            if PARTICIPANTS in Recipe.of(session).feature_options:
                agent_task["name"], agent_task["others"] = name, [*address.others]
            return agent_task

        return await self._sessions.read(describe, owner)

    def task(self, session: StoredSession) -> Task | None:
        """Return the task of a session, or None if the session has no task. This can run a toolpack's loaders.

        The agent might see the error messages, so they reveal nothing about the task.

        Raises:
            ClassesChangedError: The task is no longer loaded.
            EvaluationError: The task can't be loaded.
        """
        name = Recipe.of(session).feature_options.get("task")
        if name is None:
            return None
        try:
            return find_task(self._catalog, name)[1]
        except InvalidParamsError:
            raise ClassesChangedError(
                "The session's task is no longer loaded. The server's operator can load it again."
            ) from None
        except EvaluationError:
            raise EvaluationError(
                "The session's task can't be loaded; the server's log says why.", EvaluationError.__name__
            ) from None

    async def add_message(
        self,
        session_id: str,
        owner: str,
        role: str,
        content: str,
        call_id: str | None,
        metadata: Mapping[str, Any] | None,
    ) -> bool:
        """Record a message that a client adds, for evaluators and trajectories. Return True."""
        operation = MessageOperation(self._context, session_id, owner, role, content, call_id, metadata)
        return bool(await self._sessions.run(operation))

    async def submit_answer(
        self, session_id: str, owner: str, by: str, answer: str, call_id: str | None = None
    ) -> bool:
        """Record the agent's answer, which ends the agent's part.

        Args:
            by: The participant that sent the answer, or `client`.

        Raises:
            InvalidParamsError: The session has no task.
            AnsweredError: Another answer was submitted before.
        """
        return bool(await self._sessions.run(AnswerOperation(self._context, session_id, owner, answer, by, call_id)))

    async def evaluate(
        self,
        session_id: str,
        owner: str | None,
        name: str | None = None,
        version: int | None = None,
        answer: str | None = None,
        *,
        record: bool = False,
        ends: bool = False,
    ) -> Verdict:
        """Return an evaluator's verdict on a session. `methods.EvaluateSession` describes the parameters.

        If events are due after the session's last call, they happen first. If one of them fails, the verdict is
        invalid. If a version is given, no events are due, because they happen only after the last call.

        Args:
            owner: The owner whose sessions the caller can see. None: the caller can see all sessions.

        Raises:
            InvalidParamsError: The task doesn't exist, the session doesn't use its toolpack, or a verdict with these
                parameters can't be recorded.
            EvaluationError: The evaluator or the solution failed.
        """
        if record and (name, version, answer) != (None, None, None):
            raise InvalidParamsError(
                "A verdict can be recorded only for the session's own task, current version and recorded answer: omit "
                "task, version and answer, or omit record."
            )
        if ends and not record:
            raise InvalidParamsError("Only a recorded verdict ends the agent's part: also set record, or omit ends.")
        request = session_id, owner, name, version, answer
        try:
            return await self._evaluate(*request, record=record, ends=ends, settled=version is not None)
        except UnfinishedError as error:
            failure = await self._finish(error.operations)
            return await self._evaluate(*request, record=record, ends=ends, settled=True, unfinished=failure)

    async def _finish(self, operations: Sequence[SessionOperation]) -> VerdictFailure | None:
        """Run the operations that must precede an evaluation. If one fails, return the failure, else None."""
        try:
            for operation in operations:
                await self._sessions.run(operation)
        except (OverloadedError, SessionNotFoundError):  # these concern the request, so they are no failure of an event
            raise
        except RequestError as error:
            return unfinished_failure(error)
        return None

    async def _evaluate(
        self,
        session_id: str,
        owner: str | None,
        name: str | None,
        version: int | None,
        answer: str | None,
        *,
        record: bool,
        ends: bool,
        settled: bool,
        unfinished: VerdictFailure | None = None,
    ) -> Verdict:
        """Evaluate a session, and trace the evaluation.

        If the verdict is recorded, the evaluation waits in the session's queue, so that no call can change the session
        meanwhile. Otherwise it runs without the queue on the version that it has read.

        Args:
            settled: Whether all events are known to have happened, so that no check is needed.
            unfinished: The failure of an event that couldn't happen. It makes the verdict invalid.
        """
        tracer, began, task = self._sessions.tracer, time.time_ns(), ""  # `task` is set later, for the trace
        heavy = self._sessions.heavy_reader

        def evaluate(state: SessionState, start_clock: Callable[[float], None]) -> Verdict:
            """Evaluate the session's current state in the session's queue, for a recorded verdict."""
            nonlocal task
            head = Head(state.index, state.version, state.parts, last=state.last)
            self._check_finished(state.session, head, settled=settled)
            task, seconds = self._choose_task(state.session, None)
            start_clock(seconds)
            return self._verdict(task, heavy, state.session, head, None, None, unfinished)

        def find(reader: SessionReader) -> tuple[StoredSession, Head, tuple[str, float]]:
            session, head, name_and_seconds = self._find_task_of(reader, session_id, owner, name)
            self._check_finished(session, head, settled=settled)
            return session, head, name_and_seconds

        try:
            if record:
                if owner is None:  # the caller sees all sessions, but an operation needs the session's owner
                    owner = (await self._sessions.read(lambda reader: reader.get(session_id, None)))[0].owner
                operation = VerdictOperation(self._context, session_id, owner, evaluate, ends=ends)
                verdict: Verdict = await self._sessions.run(operation)
            else:
                session, head, (task, seconds) = await self._sessions.read(find, owner or "")
                verdict = await self._sessions.run_authors(
                    lambda: self._verdict(task, heavy, session, head, version, answer, unfinished),
                    *(owner or "", f"evaluate {task}", seconds),
                )
        except RequestError as error:
            if tracer is not None and task:
                tracer.evaluated(session_id, task, began, None, error)
            raise
        if tracer is not None:
            tracer.evaluated(session_id, task, began, verdict, None)
        return verdict

    def _check_finished(self, session: StoredSession, head: Head, *, settled: bool) -> None:
        """Check that all events have happened that the session's last call has triggered.

        Args:
            settled: Whether all events are known to have happened, so that the check is skipped.

        Raises:
            UnfinishedError: Some events haven't happened yet.
        """
        operations = () if settled else self._sessions.unfinished(session, head)
        if operations:
            raise UnfinishedError(operations)

    def _verdict(
        self,
        task: str,
        reader: SessionReader,
        session: StoredSession,
        head: Head,
        version: int | None,
        answer: str | None,
        unfinished: VerdictFailure | None,
    ) -> Verdict:
        """Run the evaluator. Must run on a worker thread, because the evaluator blocks.

        A failure of the host, a participant or an event makes the verdict invalid.
        """
        evidence, failure = self.evidence(reader, session, head, version, answer)
        failure = failure or unfinished
        verdict = self._context.run(EvaluateTask(task, evidence))
        perturbed = Counter(rule for each in evidence.path for rule in _applied_rules(each))
        verdict = {**verdict, "perturbed": dict(perturbed)}
        return {**verdict, "valid": False, "failure": failure} if failure else verdict

    async def without_reward(
        self, failure: VerdictFailure, session_id: str, owner: str | None, name: str | None, version: int | None
    ) -> Verdict:
        """Return an invalid verdict without a reward, after `evaluate` has failed and the client asked for no error."""
        with suppress(StateDamagedError):  # even an unreadable session gets a verdict
            session, head = await self._sessions.read(lambda reader: reader.find(session_id, owner))
            name = name or Recipe.of(session).feature_options.get("task")
            version = head.version if version is None else version
        return no_reward(name or "", version or 0, failure)

    async def solution(self, session_id: str, owner: str | None, version: int | None = None) -> Solution:
        """Return the solution of a session's task, and the calls that the history up to a version still lacks.

        Raises:
            InvalidParamsError: The session has no task, or the task has no solution.
            EvaluationError: The solution failed.
        """
        session, head, (name, _) = await self._sessions.read(
            lambda reader: self._find_task_of(reader, session_id, owner, None)
        )
        heavy = self._sessions.heavy_reader
        at = head.version if version is None else version

        def solve() -> Solution:
            # A solution depends only on the initial environment, so it gets the evidence of version 0.
            solution = self._context.run(SolveTask(name, self.evidence(heavy, session, head, 0, None)[0]))
            path = self.evidence(heavy, session, head, at, None)[0].path
            calls = match_solution([each.call for each in path], solution["calls"])
            return {"calls": calls, "answer": solution["answer"], "rest": [each for each in calls if not is_made(each)]}

        return await self._sessions.run_authors(solve, *(owner or "", "solve"))

    def _find_task_of(
        self, reader: SessionReader, session_id: str, owner: str | None, name: str | None
    ) -> tuple[StoredSession, Head, tuple[str, float]]:
        session, head = reader.find(session_id, owner)
        return session, head, self._choose_task(session, name)

    def _choose_task(self, session: StoredSession, name: str | None) -> tuple[str, float]:
        """Return the name of the task to evaluate, and its evaluator's deadline in seconds.

        Raises:
            InvalidParamsError: `name` is None and the session has no task, or the task doesn't belong to one of the
                session's toolpacks.
        """
        recipe = Recipe.of(session)
        if name is None:
            if "task" not in recipe.feature_options:
                raise InvalidParamsError(
                    "The session has no task: name a task of its toolpacks, or create a session with a task."
                )
            name = str(recipe.feature_options["task"])
        pack, task = find_task(self._catalog, name)
        if pack.name not in recipe.toolpacks:
            raise InvalidParamsError(
                f"The task {shown(name)!r} needs the toolpack {pack.name!r}; the session has "
                f"{', '.join(recipe.toolpacks) or 'none'}."
            )
        return name, task.timeout_seconds or self._context.settings.timeout_seconds

    def evidence(
        self, reader: SessionReader, session: StoredSession, head: Head, version: int | None, answer: str | None
    ) -> tuple[Evidence, VerdictFailure | None]:
        """Return the part of a session's stored state that an evaluator needs.

        Also return a failure of the host or a participant in the session's history, or None.
        """
        at = head.version if version is None else version
        final = reader.snapshot(session.id, head, at)
        first, path = self._context.paths.evidence(session, at)
        recipe = Recipe.of(session)
        runtime = self._context.runtime(recipe.toolpacks)
        kinds = self._context.record_kinds
        failure = machine_failure(
            (each.shown for each in path), lambda name: runtime.plan(name, {}).own_timeout_seconds
        ) or participant_failure(path, kinds)
        evidence = Evidence(
            toolpacks=recipe.toolpacks,
            options=recipe.inputs()[0],
            initial=reader.read_parts(session.id, first),
            final=final,
            version=at,
            path=[seen_record(record, kinds) for record in path],
            answer=answer,
            at=lambda other: reader.snapshot(session.id, head, other),
        )
        return evidence, failure


def _applied_rules(record: SeenRecord) -> Sequence[str]:
    rules: Sequence[str] = ((record.call or {}).get("perturbed") or {}).get("rules", ())
    return rules


def _description(index: int, pack: Toolpack, task: Task) -> TaskDescription:
    """Return a task as clients see it. `index` is its number in the list of all tasks."""
    options = {pack.name: task.options, **task.toolpacks}
    return {
        "task": f"{pack.name}{SEPARATOR}{task.name}",
        "index": index,
        "prompt": prompt_of(task),
        "toolpacks": [*options],
        "options": {toolpack: dict(values) for toolpack, values in options.items() if values},
        "functions": if_set(None if task.functions is None else [*task.functions]),
        "max_calls": if_set(task.max_calls),
        "participants": {name: {**rights} for name, rights in task.participants.items()},
        "split": task.split,
        "tags": [*task.tags],
        "metadata": dict(task.metadata),
        "has_solution": task.solution is not None,
        "variants": [*task.variants],
    }


def prompt_of(task: Task) -> Any:
    """Return the prompt as JSON: a string, or a list of messages."""
    return task.prompt if isinstance(task.prompt, str) else [dict(message) for message in task.prompt]
