"""The checks of tasks for `toolpack-server check --tasks`.

Tasks are checked as agents meet them, in sessions of a service in memory. Doing nothing must not pass, unless
the task says that it does; the solution must run without an error, and pass. What was done is evaluated first, then
nothing done, and then both again: what an evaluator keeps of one evaluation shows in the next, and isn't blamed on the
solution.
"""

import inspect
from collections.abc import Iterator, Sequence
from typing import Any

import click

from toolpack_server.base.errors import EvaluationError, RequestError, for_author
from toolpack_server.base.settings import Settings
from toolpack_server.cli.progress import progress
from toolpack_server.cli.requests import local
from toolpack_server.execution.call import Outcome
from toolpack_server.execution.nested import read_nested
from toolpack_server.features.evaluation.tasks.finding import tasks_of
from toolpack_server.features.evaluation.tasks.results import Verdict
from toolpack_server.features.evaluation.tasks.service import Tasks
from toolpack_server.features.evaluation.tasks.task import SEPARATOR, Task
from toolpack_server.packs.catalog import Catalog
from toolpack_server.packs.pack_function import is_offered
from toolpack_server.packs.registration import place
from toolpack_server.packs.toolpack import Toolpack
from toolpack_server.protocol.results import Session
from toolpack_server.rpc.caller import Caller
from toolpack_server.wiring.service import Service

UNSTABLE = (
    "a second evaluation gives another verdict: its evaluator isn't pure. It must neither look at the clock, nor draw "
    "random numbers, nor keep anything for the next time."
)
_OURS = "toolpack_server."  # evaluators of this package have no place that helps an author


async def check_tasks(settings: Settings, catalog: Catalog, names: Sequence[str] = ()) -> tuple[int, list[str]]:
    """Check all tasks, or those of these names; get their number, and what is wrong with them."""
    problems: list[str] = []
    tasks: list[tuple[Toolpack, Task]] = []
    for pack in catalog.toolpacks.values():
        try:
            tasks += [(pack, task) for task in tasks_of(pack).all().values()]
        except EvaluationError as error:
            problems.append(str(error))
    if names:
        named = {f"{pack.name}{SEPARATOR}{task.name}": (pack, task) for pack, task in tasks}
        such = f", such as {next(iter(named))}" if named else ""
        problems += [f"there is no task {name!r}: name toolpack and task{such}." for name in names if name not in named]
        tasks = [named[name] for name in names if name in named]
    checks = _Checks(settings, catalog)
    with progress("Checking tasks", len(tasks)) as go_on:
        for pack, task in tasks:
            name = f"{pack.name}{SEPARATOR}{task.name}"
            try:
                unknown = next(_unknown_functions(catalog, pack, task), None)
                problem = unknown or await checks.problem(name, task)
            except click.ClickException as error:
                problem = error.format_message()
            if problem:
                problems.append(f"{_place(task)}task {name!r}: {problem}")
            go_on(1)
    return len(tasks), problems


def _place(task: Task) -> str:
    evaluator = inspect.unwrap(task.evaluate) if task.evaluate else None
    plain = inspect.isfunction(evaluator) and not evaluator.__module__.startswith(_OURS)
    return f"{place(evaluator)}: " if plain else ""


def _unknown_functions(catalog: Catalog, pack: Toolpack, task: Task) -> Iterator[str]:
    """Find names among a task's `functions` that no function of its sessions has."""
    missing = [name for name in task.toolpacks if name not in catalog.toolpacks]
    if missing:
        yield f"it needs the toolpack {missing[0]!r}, which isn't loaded: load it, too."
        return
    functions = catalog.listed([pack.name, *task.toolpacks])
    for name in task.functions or ():
        if not any(is_offered(function, frozenset({name})) for function in functions):
            yield f"its functions name {name!r}, which its sessions don't have: correct the name."


class _Checks:
    """Checks single tasks."""

    def __init__(self, settings: Settings, catalog: Catalog) -> None:
        self._raised_at: str | None = None  # by the last call
        self._service = Service(settings, catalog, on_call=self._note)
        self._request = local(self._service, Caller())
        self._catalog = catalog

    def _note(self, _request: object, outcome: Outcome) -> None:
        self._raised_at = outcome.failure.raised_at if outcome.failure else None

    async def _send(self, method: str, **params: Any) -> Any:
        return await self._request(method, params)

    async def problem(self, name: str, task: Task) -> str | None:
        if task.evaluate is None and task.solution is None:
            return "it has neither an evaluator nor a solution: give one."
        await self._try_variants(name, task)
        solved = await self._send("create_session", task=name)
        nothing = await self._send("create_session", task=name)
        try:
            problem = None if task.solution is None else await self._do(solved, task)
            if problem and task.evaluate is None:
                return problem  # without its solution the task can't be judged
            judged = [nothing] if problem or task.solution is None else [solved, nothing]
            verdicts = [await self._verdict(session) for session in judged]
            try:
                if verdicts != [await self._verdict(session) for session in judged]:
                    return UNSTABLE
            except click.ClickException:
                return UNSTABLE
            return _untouched(verdicts.pop(), task) or problem or (_solved(*verdicts) if verdicts else None)
        finally:
            for session in (solved, nothing):
                await self._send("close_session", session_id=session["session_id"])

    async def _verdict(self, session: Session) -> Verdict:
        try:
            return await self._service.feature(Tasks).evaluate(session["session_id"], "")
        except RequestError as error:
            raise click.ClickException(for_author(error)) from None

    async def _try_variants(self, name: str, task: Task) -> None:
        """Begin a session with each variant, which raises if its rules don't fit the session."""
        for variant, rules in task.variants.items():
            if not any("delay" in rule for rule in rules):  # for which a session needs a clock
                begun = await self._send("create_session", task=name, perturbations={"variant": variant})
                await self._send("close_session", session_id=begun["session_id"])

    async def _do(self, session: Session, task: Task) -> str | None:
        """Do what the solution does, and say what is wrong with it."""
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
        """Run a call of a solution: where there are participants, with the rights of whoever makes it."""
        params, session_id = {"function": function, "kwargs": kwargs}, session["session_id"]
        if not session.get("participants"):
            return await self._send("run_function", session_id=session_id, **params)
        return await local(self._service, Caller(session_id=session_id, address=by))("run_function", params)


def _untouched(verdict: Verdict, task: Task) -> str | None:
    """Say what is wrong with the verdict on nothing done."""
    if verdict["passed"] and not task.nop_passes:
        return "it passes with nothing done: tighten the evaluator, or set nop_passes=True."
    if task.nop_passes and not verdict["passed"]:
        return f"it has nop_passes=True, but nothing done doesn't pass{_failed(verdict)}."
    return None


def _solved(verdict: Verdict) -> str | None:
    """Say what is wrong with the verdict on the solution."""
    return None if verdict["passed"] else f"its solution doesn't pass{_failed(verdict)}."


def _failed(verdict: Verdict) -> str:
    failed = [check for check in verdict["checks"] if not check["passed"]]
    if not failed:
        return f" (reward {verdict['reward']:g})"
    detail = f": {failed[0]['detail']}" if failed[0]["detail"] else ""
    return f" ({failed[0]['name']}{detail})"
