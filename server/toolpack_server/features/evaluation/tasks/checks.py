"""Checks of tasks for `toolpack-server check --tasks`.

Each task is checked in sessions of an in-memory service. A session where nothing was done must not pass, unless the
task sets `nop_passes`. The task's solution must run without an error and pass. Both sessions are evaluated twice,
alternately. If the second verdicts differ, the evaluator isn't a pure function, so the check reports the evaluator
instead of the solution.
"""

import inspect
import logging
from collections.abc import Iterator, Sequence
from typing import Any

import click
from typing_extensions import override

from toolpack_server.base.errors import EvaluationError, RequestError, for_author
from toolpack_server.base.logger import log
from toolpack_server.base.settings import Settings
from toolpack_server.cli.progress import progress
from toolpack_server.cli.requests import local
from toolpack_server.execution.call import Outcome
from toolpack_server.execution.nested import read_nested
from toolpack_server.features.evaluation.tasks.finding import tasks_of
from toolpack_server.features.evaluation.tasks.results import Verdict
from toolpack_server.features.evaluation.tasks.service import Tasks
from toolpack_server.features.evaluation.tasks.task import SEPARATOR, Task
from toolpack_server.functions.tracebacks import traceback_text
from toolpack_server.packs.catalog import Catalog
from toolpack_server.packs.pack_function import is_offered
from toolpack_server.packs.registration import location_of
from toolpack_server.packs.toolpack import Toolpack
from toolpack_server.protocol.results import Session
from toolpack_server.rpc.caller import Caller
from toolpack_server.wiring.service import Service

UNSTABLE = (
    "a second evaluation gives another verdict: its evaluator isn't pure. It must not read the clock, use random "
    "numbers, or keep state between evaluations."
)
_NO_ANSWER = '; it submits no answer: if the evaluator reads one, give the task answer="..."'
_OWN_PACKAGE = "toolpack_server."  # no source location is printed for evaluators of this package: it helps no author


async def check_tasks(settings: Settings, catalog: Catalog, names: Sequence[str] = ()) -> tuple[int, list[str]]:
    """Check all tasks, or only the tasks in `names`. Return the number of checked tasks, and the problems."""
    tracebacks = _TracebackHandler()
    log.addHandler(tracebacks)
    try:
        return await _check_tasks(settings, catalog, names, tracebacks)
    finally:
        log.removeHandler(tracebacks)


async def _check_tasks(
    settings: Settings, catalog: Catalog, names: Sequence[str], tracebacks: "_TracebackHandler"
) -> tuple[int, list[str]]:
    """Check tasks as `check_tasks` does. To each problem, add the traceback that its check has logged."""
    problems: list[str] = []
    tasks: list[tuple[Toolpack, Task]] = []
    for pack in catalog.toolpacks.values():
        try:
            tasks += [(pack, task) for task in tasks_of(pack).all().values()]
        except EvaluationError as error:
            problems.append(f"{error}{tracebacks.take()}")
    if names:
        named = {f"{pack.name}{SEPARATOR}{task.name}": (pack, task) for pack, task in tasks}
        example = f", such as {next(iter(named))}" if named else ""
        advice = f"give toolpack/task{example}."
        problems += [f"there is no task {name!r}: {advice}" for name in names if name not in named]
        tasks = [named[name] for name in names if name in named]
    checks = _Checks(settings, catalog)
    with progress("Checking tasks", len(tasks)) as advance:
        for pack, task in tasks:
            name = f"{pack.name}{SEPARATOR}{task.name}"
            try:
                unknown = next(_unknown_functions(catalog, pack, task), None)
                problem = unknown or await checks.problem(name, task)
            except click.ClickException as error:
                problem = error.format_message()
            details = tracebacks.take()
            if problem:
                problems.append(f"{_location_prefix(task)}task {name!r}: {problem}{details}")
            advance(1)
    return len(tasks), problems


def _location_prefix(task: Task) -> str:
    evaluator = inspect.unwrap(task.evaluate) if task.evaluate else None
    plain = inspect.isfunction(evaluator) and not evaluator.__module__.startswith(_OWN_PACKAGE)
    return f"{location_of(evaluator)}: " if plain else ""


def _unknown_functions(catalog: Catalog, pack: Toolpack, task: Task) -> Iterator[str]:
    """Yield a problem for each name in a task's `functions` that isn't a function of the task's sessions."""
    missing = [name for name in task.toolpacks if name not in catalog.toolpacks]
    if missing:
        yield f"it needs the toolpack {missing[0]!r}, which isn't loaded: also load that toolpack."
        return
    functions = catalog.listed([pack.name, *task.toolpacks])
    for name in task.functions or ():
        if not any(is_offered(function, frozenset({name})) for function in functions):
            yield f"its `functions` has {name!r}, but its sessions have no such function: correct the name."


class _TracebackHandler(logging.Handler):
    """Log handler that remembers the last logged exception, so that a problem can include its traceback."""

    def __init__(self) -> None:
        super().__init__()
        self._error: BaseException | None = None

    @override
    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info:
            self._error = record.exc_info[1]

    def take(self) -> str:
        """Return the traceback of the last exception as indented lines, and forget the exception.

        Each line begins with a line break, so that the result can be appended to a message.
        """
        error, self._error = self._error, None
        text = traceback_text(error) if error else None
        return "".join(f"\n    {line}" for line in (text or "").splitlines())


class _Checks:
    """Checks tasks one by one, in sessions of its own service in memory, which no client can reach."""

    def __init__(self, settings: Settings, catalog: Catalog) -> None:
        self._raised_at: str | None = None  # the source location where the last call raised an exception
        self._service = Service(settings, catalog, on_call=self._store_location)
        self._request = local(self._service, Caller())
        self._catalog = catalog

    def _store_location(self, _request: object, outcome: Outcome) -> None:
        self._raised_at = outcome.failure.raised_at if outcome.failure else None

    async def _send(self, method: str, **params: Any) -> Any:
        return await self._request(method, params)

    async def problem(self, name: str, task: Task) -> str | None:
        """Return the first problem with a task, or None.

        The check evaluates a session where the solution was played, and a session where nothing was done.
        """
        if task.evaluate is None and task.solution is None:
            return "it has neither an evaluator nor a solution: give one."
        await self._try_variants(name, task)
        solved = await self._send("create_session", task=name)
        untouched = await self._send("create_session", task=name)
        try:
            problem = None if task.solution is None else await self._solve(solved, task)
            if problem and task.evaluate is None:
                return problem  # the default evaluator runs the solution, which fails, so the task can't be evaluated
            sessions = [untouched] if problem or task.solution is None else [solved, untouched]
            verdicts = [await self._verdict(session) for session in sessions]
            try:
                if verdicts != [await self._verdict(session) for session in sessions]:
                    return UNSTABLE
            except click.ClickException:  # the first evaluation succeeded, so a failure is also another verdict
                return UNSTABLE
            nop_problem = _nop_problem(verdicts.pop(), task)  # the last verdict is about the untouched session
            return nop_problem or problem or (_solution_problem(verdicts[0], task) if verdicts else None)
        finally:
            for session in (solved, untouched):
                await self._send("close_session", session_id=session["session_id"])

    async def _verdict(self, session: Session) -> Verdict:
        try:
            return await self._service.feature(Tasks).evaluate(session["session_id"], "")
        except RequestError as error:
            raise click.ClickException(for_author(error)) from None

    async def _try_variants(self, name: str, task: Task) -> None:
        """Create a session with each variant, because the creation checks the variant's rules.

        Raises:
            click.ClickException: A rule can't be used in the session.
        """
        for variant, rules in task.variants.items():
            if not any("delay" in rule for rule in rules):  # `delay` needs a pinned clock, which these sessions lack
                session = await self._send("create_session", task=name, perturbations={"variant": variant})
                await self._send("close_session", session_id=session["session_id"])

    async def _solve(self, session: Session, task: Task) -> str | None:
        """Run the solution in a session. Return the problem if a call fails or calls are too many, or None."""
        session_id = session["session_id"]
        solution = await self._send("get_solution", session_id=session_id)
        for call in solution["calls"]:
            envelope = await self._run(session, **call)
            if envelope["error"] is not None:
                by = f" by {call['by']}" if session.get("participants") else ""
                raised = f" (raised at {self._raised_at})" if self._raised_at else ""
                return f"the call of `{call['function']}`{by} in its solution fails: {envelope['error']}{raised}"
        if solution["answer"]:
            await self._send("submit_answer", session_id=session_id, answer=solution["answer"])
        calls = sum(1 + len(read_nested(call["kwargs"])[1]) for call in solution["calls"])
        if task.max_calls is not None and calls > task.max_calls:
            return f"its solution makes more calls than max_calls allows: {calls}, not {task.max_calls}."
        return None

    async def _run(self, session: Session, function: str, kwargs: dict[str, Any], by: str) -> Any:
        """Run a call of a solution. In a session with participants, run the call at the address of `by`."""
        params, session_id = {"function": function, "kwargs": kwargs}, session["session_id"]
        if not session.get("participants"):
            return await self._send("run_function", session_id=session_id, **params)
        return await local(self._service, Caller(session_id=session_id, address=by))("run_function", params)


def _nop_problem(verdict: Verdict, task: Task) -> str | None:
    """Return the problem if the verdict on an untouched session is unexpected, or None."""
    if verdict["passed"] and not task.nop_passes:
        return "it passes with nothing done: tighten the evaluator, or set nop_passes=True."
    if task.nop_passes and not verdict["passed"]:
        return f"it has nop_passes=True, but a session with nothing done doesn't pass{_failed_check(verdict)}."
    return None


def _solution_problem(verdict: Verdict, task: Task) -> str | None:
    """Return the problem if the solution doesn't pass, or None."""
    if verdict["passed"]:
        return None
    return f"its solution doesn't pass{_failed_check(verdict)}{'' if task.answer else _NO_ANSWER}."


def _failed_check(verdict: Verdict) -> str:
    """Describe the first failed check, or the reward if no check failed."""
    failed = [check for check in verdict["checks"] if not check["passed"]]
    if not failed:
        return f" (reward {verdict['reward']:g})"
    detail = f": {failed[0]['detail']}" if failed[0]["detail"] else ""
    return f" ({failed[0]['name']}{detail})"
