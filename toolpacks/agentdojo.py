"""The suites of AgentDojo and its family as toolpacks, such as `agentdojo-workspace` and `agentdojo-banking`.

A benchmark of the family, such as AgentDyn, is installed in place of AgentDojo and adds its suites to `get_suites`.

Functions, environments, tasks and evaluators come unchanged from the installed `agentdojo`. This module only checks the
options first, so that errors list the valid values.
"""

import ast
import contextlib
import importlib.util
import re
import sys
import threading
from collections.abc import Iterable, Iterator
from functools import partial
from importlib.abc import SourceLoader
from types import ModuleType
from typing import Any, Literal

from toolpack_server import Rollout, Task, Toolpack, ToolpackUnavailable

if importlib.util.find_spec("agentdojo") is None:
    raise ToolpackUnavailable(
        "The toolpacks agentdojo-workspace, -travel, -banking and -slack need the package agentdojo: "
        "pip install 'toolpack-server[agentdojo]'"
    )


class _Deferred(ModuleType):
    """A module that runs its code at the first read of an attribute that isn't a constant.

    AgentDojo's suites import modules that import the clients of all model vendors, which takes seconds. The suites
    need only a constant of these modules, and the package as the parent of its submodules.
    """

    def __getattr__(self, name: str) -> Any:
        # Code that inspects all modules reads special names (`__warningregistry__`); that must not run this module.
        if name.startswith("__") and name != "__all__":
            raise AttributeError(name)
        with _deferred_lock:
            spec = self.__spec__
            if type(self) is _Deferred and spec is not None and isinstance(spec.loader, SourceLoader):
                with contextlib.suppress(LookupError):
                    return _constant(spec.loader.get_source(spec.name) or "", name)
                self.__class__ = ModuleType  # type: ignore[assignment] # from now on an ordinary module
                try:
                    spec.loader.exec_module(self)
                except BaseException:
                    self.__class__ = _Deferred
                    raise
        return getattr(self, name)


_deferred_lock = threading.RLock()


def _constant(source: str, name: str) -> Any:
    """Return the value of a constant from a module's source. Raise `LookupError` if the source doesn't assign it."""
    for line in ast.parse(source).body:
        match line:
            case ast.Assign(targets=[ast.Name(id=target)], value=ast.Constant(value=value)) if target == name:
                return value
    raise LookupError(name)


def _defer(name: str) -> None:
    """Register a module without running it, unless it is imported already or doesn't exist in this version."""
    try:
        spec = None if name in sys.modules else importlib.util.find_spec(name)
    except ModuleNotFoundError:  # the parent package doesn't exist, either
        spec = None
    if spec is None:
        return
    module = importlib.util.module_from_spec(spec)
    module.__class__ = _Deferred
    sys.modules[name] = module
    package, _, last = name.rpartition(".")
    setattr(sys.modules[package], last, module)  # an import sets this attribute of the package, too


_defer("agentdojo.agent_pipeline")
_defer("agentdojo.agent_pipeline.llms.google_llm")

import yaml  # type: ignore[import-untyped] # noqa: E402 - comes with agentdojo
from agentdojo.functions_runtime import FunctionCall as AgentDojoCall  # noqa: E402 - fast only after `_defer`
from agentdojo.task_suite.load_suites import _SUITES, get_suites  # noqa: E402 - as above
from agentdojo.types import text_content_block_from_string  # noqa: E402 - as above

# Only the keys of `_SUITES` list AgentDojo's versions. A request for an unknown version leaves an empty entry there.
_NUMBERS = {v: [int(n) for n in v[1:].split(".")] for v in _SUITES if _SUITES[v] and re.fullmatch(r"v\d+(\.\d+)*", v)}
VERSIONS = tuple(sorted(_NUMBERS, key=_NUMBERS.__getitem__))
NEWEST = VERSIONS[-1]


def _names(user: Iterable[int] = (), injection: Iterable[int] = ()) -> set[str]:
    return {*(f"user_task_{number}" for number in user), *(f"injection_task_{number}" for number in injection)}


# In the newest version: tasks that pass if the agent does nothing, and tasks whose own solution doesn't pass.
NOP_PASSES = {"banking": _names(user=(5, 6, 8, 9, 10))}
UNSOLVED = {
    "workspace": _names(injection=range(6, 14)),
    "shopping": _names(user=range(20), injection=range(9)),  # a suite of AgentDyn, as are the next two
    "github": _names(user=(2, 3, 4, 5, 7, 8, 9, 11, 12, 13, 17, 18, 19), injection=range(9)),
    "dailylife": _names(user=(5, 6, 7, 10), injection=(2, 6)),
}


def make_toolpack(suite_name: str) -> Toolpack:
    """Create the toolpack of a suite.

    Args:
        suite_name: The suite's name in AgentDojo.
    """
    newest = get_suites(NEWEST)[suite_name]

    def build(
        benchmark_version: str = NEWEST, injections: dict[str, str] | None = None, user_task: str | None = None
    ) -> Any:
        """Build the suite's environment, as AgentDojo does before it runs a task.

        Args:
            benchmark_version: The version of the benchmark, which may change the user task.
            injections: Texts to place in the environment, by injection vector; other vectors keep their defaults.
            user_task: The user task, like `user_task_0`, that may prepare the environment for itself.
        """
        suite, injections = get_suites(benchmark_version)[suite_name], injections or {}
        if injections:
            _check("injection vector", injections, suite.get_injection_vector_defaults())
        if user_task is not None:
            _check(f"user task of {benchmark_version}", [user_task], suite.user_tasks)
        try:
            environment = suite.load_and_inject_default_environment(injections)
        except yaml.YAMLError as error:
            raise ValueError(
                "an injection breaks the environment's YAML, as it is inserted between double quotes unchanged: write "
                r"\" for a quote and \\ for a backslash"
            ) from error
        return environment if user_task is None else suite.user_tasks[user_task].init_environment(environment)

    build.__annotations__ |= {"benchmark_version": Literal[VERSIONS], "return": newest.environment_type}
    pack = Toolpack(f"agentdojo-{suite_name}", build, newest.tools, opt_in=True)
    pack.tasks(lambda: _tasks(suite_name))
    return pack


def _tasks(suite_name: str) -> Iterator[Task]:
    """Return a suite's user tasks and injection tasks. An injection task's reward is 1 if the attack succeeds."""
    suite, judge = get_suites(NEWEST)[suite_name], partial(_judge, suite_name)
    for tag, tasks in (("user", suite.user_tasks), ("injection", suite.injection_tasks)):
        for name, task in tasks.items():
            solved = name not in UNSOLVED.get(suite_name, ())
            yield Task(
                name,
                task.PROMPT if tag == "user" else task.GOAL,
                judge,
                options={"user_task": name} if tag == "user" else {},
                solution=task.ground_truth if solved else None,
                answer=task.GROUND_TRUTH_OUTPUT if solved else "",
                tags=[tag, task.DIFFICULTY.name.lower()],
                nop_passes=name in NOP_PASSES.get(suite_name, ()),
            )


def _judge(suite_name: str, rollout: Rollout[Any]) -> bool:
    """Evaluate a rollout with AgentDojo's own code, in the session's version of the benchmark."""
    suite = get_suites(rollout.options.get("benchmark_version", NEWEST))[suite_name]
    name = rollout.task.name
    task = suite.user_tasks[name] if name in suite.user_tasks else suite.injection_tasks[name]
    output = [text_content_block_from_string(rollout.answer)]
    calls = [AgentDojoCall(function=call.function, args=dict(call.kwargs)) for call in rollout.calls]
    return bool(suite._check_task_result(task, output, rollout.initial, rollout.environment, calls))  # noqa: SLF001


def _check(kind: str, names: Iterable[str], choices: Iterable[str]) -> None:
    """Raise an error that lists the choices if a name isn't one of them."""
    for name in names:
        if name not in choices:
            raise ValueError(f"{name!r} is no {kind}: choose from {', '.join(choices)}")


globals().update(
    {name: make_toolpack(name) for name in get_suites(NEWEST)}
)  # the server looks for toolpacks in a module's global variables
