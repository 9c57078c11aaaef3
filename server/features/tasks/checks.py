"""The checks of tasks for `toolpack-server check --tasks`.

The rule: tasks are checked as agents meet them, in sessions of a service in memory. Doing nothing must not pass, unless
the task says that it does; the solution must run without an error, and pass; a second evaluation must equal the first.
"""

import inspect
from collections.abc import Iterator, Sequence
from typing import Any

import click

from server.cli.progress import progress
from server.cli.send import local
from server.errors import EvaluationError
from server.execution.nested import read_nested
from server.features.tasks.finding import tasks_of
from server.features.tasks.task import SEPARATOR, Task
from server.packs.catalog import Catalog
from server.packs.pack_function import is_offered
from server.packs.registration import place
from server.packs.toolpack import Toolpack
from server.results import Session
from server.rpc.caller import Caller
from server.service import Service
from server.settings import Settings

UNSTABLE = (
    "a second evaluation gives another verdict: an evaluator must neither look at the clock nor draw random numbers."
)
_OURS = "server."  # evaluators of this package have no place that helps an author


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
    checks = _Checks(Service(settings, catalog), catalog)
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

    def __init__(self, service: Service, catalog: Catalog) -> None:
        self._service = service
        self._request = local(service, Caller())
        self._catalog = catalog

    async def _send(self, method: str, **params: Any) -> Any:
        return await self._request(method, params)

    async def problem(self, name: str, task: Task) -> str | None:
        if task.evaluate is None and task.solution is None:
            return "it has neither an evaluator nor a solution: give one."
        await self._try_variants(name, task)
        session = await self._send("create_session", task=name)
        session_id = session["session_id"]
        try:
            problem = await self._untouched(session_id, task)
            return problem if problem or task.solution is None else await self._solved(session, task)
        finally:
            await self._send("close_session", session_id=session_id)

    async def _try_variants(self, name: str, task: Task) -> None:
        """Begin a session with each variant, which raises if its rules don't fit the session."""
        for variant, rules in task.variants.items():
            if not any("delay" in rule for rule in rules):  # for which a session needs a clock
                begun = await self._send("create_session", task=name, perturbations={"variant": variant})
                await self._send("close_session", session_id=begun["session_id"])

    async def _untouched(self, session_id: str, task: Task) -> str | None:
        """Say what is wrong with the verdict on nothing done."""
        verdict = await self._send("evaluate_session", session_id=session_id)
        if verdict != await self._send("evaluate_session", session_id=session_id):
            return UNSTABLE
        if verdict["passed"] and not task.nop_passes:
            return "it passes with nothing done: tighten the evaluator, or set nop_passes=True."
        if task.nop_passes and not verdict["passed"]:
            return f"it has nop_passes=True, but nothing done doesn't pass{_failed(verdict)}."
        return None

    async def _solved(self, session: Session, task: Task) -> str | None:
        """Run the solution, and say what is wrong with it or with the verdict on it."""
        session_id = session["session_id"]
        solution = await self._send("get_solution", session_id=session_id)
        for call in solution["calls"]:
            envelope = await self._run(session, **call)
            if envelope["error"] is not None:
                by = f" by {call['by']}" if session["participants"] else ""
                return f"the call of `{call['function']}`{by} in its solution fails: {envelope['error']}"
        if solution["answer"]:
            await self._send("submit_answer", session_id=session_id, answer=solution["answer"])
        verdict = await self._send("evaluate_session", session_id=session_id)
        if not verdict["passed"]:
            return f"its solution doesn't pass{_failed(verdict)}."
        if verdict != await self._send("evaluate_session", session_id=session_id):
            return UNSTABLE
        calls = sum(1 + len(read_nested(call["kwargs"])[1]) for call in solution["calls"])
        if task.max_calls is not None and calls > task.max_calls:
            return f"its solution has {calls} calls, and max_calls is {task.max_calls}."
        return None

    async def _run(self, session: Session, function: str, kwargs: dict[str, Any], by: str) -> Any:
        """Run a call of a solution: where there are participants, with the rights of whoever makes it."""
        params, session_id = {"function": function, "kwargs": kwargs}, session["session_id"]
        if not session["participants"]:
            return await self._send("run_function", session_id=session_id, **params)
        return await local(self._service, Caller(session_id=session_id, address=by))("run_function", params)


def _failed(verdict: dict[str, Any]) -> str:
    failed = [check for check in verdict["checks"] if not check["passed"]]
    if not failed:
        return f" (reward {verdict['reward']:g})"
    detail = f": {failed[0]['detail']}" if failed[0]["detail"] else ""
    return f" ({failed[0]['name']}{detail})"
