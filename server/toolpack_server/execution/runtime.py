"""Runtime of a session: plans calls to its functions and runs them.

Values that depend only on the functions are computed once, when the runtime is created, so that planning a call is
fast.
"""

import copy
from collections.abc import Mapping
from types import CoroutineType
from typing import Any

from toolpack_server.execution.nested import has_nested, read_nested
from toolpack_server.execution.parts import footprint
from toolpack_server.execution.plan import Footprint, Plan
from toolpack_server.execution.read_only_checks import ReadOnlyChecks
from toolpack_server.execution.world import World
from toolpack_server.functions.content import is_content
from toolpack_server.functions.steps import Awaiting, Steps, WrappedStopIteration
from toolpack_server.functions_runtime import FunctionCall, FunctionsRuntime
from toolpack_server.packs.pack_function import PackFunction, is_offered


class SessionRuntime(FunctionsRuntime):
    """The functions of a session's toolpacks, each acting on its own toolpack's environment in a `World`.

    Args:
        functions: The functions by their names in the session; see `Catalog.functions`.
        timeout_seconds: Timeout of functions that declare no timeout.
        tracebacks: If a function raises, include the traceback in the call's outcome.
        offered: The names of the functions that the session offers. None: all functions.
    """

    def __init__(
        self,
        functions: Mapping[str, PackFunction],
        timeout_seconds: float,
        read_only_checks: ReadOnlyChecks | None = None,
        *,
        tracebacks: bool = False,
        offered: frozenset[str] | None = None,
    ) -> None:
        super().__init__()
        if offered is not None:
            functions = {name: function for name, function in functions.items() if is_offered(function, offered)}
        self.offered = offered
        self.functions = {name: function.function for name, function in functions.items()}
        self._registered = functions
        self._read_only_checks = read_only_checks = read_only_checks or ReadOnlyChecks()
        self._tracebacks = tracebacks
        self._trusted = frozenset(
            name
            for name, function in functions.items()
            if function.read_only and read_only_checks.is_trusted(function.toolpack, function.registered_name)
        )
        self.distrusted = tuple(  # the functions that are declared read-only, but were caught changing an environment
            name for name, function in functions.items() if function.read_only and name not in self._trusted
        )
        self._timeout_seconds = timeout_seconds
        self._footprints: dict[str, Footprint] = {
            name: {function.toolpack: footprint(function.function)} if function.function.dependencies else {}
            for name, function in functions.items()
        }
        self._content = {name for name, function in functions.items() if is_content(function.function.return_type)}

    def plan(self, name: str, kwargs: Mapping[str, Any], timeout_seconds: float | None = None) -> Plan:
        """Create the plan of a call. A plan is also created if there is no function with this name.

        Args:
            timeout_seconds: The timeout of this call. It can shorten the function's own timeout, but not extend it.
        """
        function = self._registered.get(name)
        own = (function and function.timeout_seconds) or self._timeout_seconds
        plan = Plan(
            runtime=self,
            function=name,
            arguments=kwargs,
            toolpack=function.toolpack if function else "",
            registered_name=function.registered_name if function else name,
            footprint=self._footprints.get(name, {}),
            content=name in self._content,
            read_only=name in self._trusted,
            timeout_seconds=own if timeout_seconds is None else min(own, timeout_seconds),
            own_timeout_seconds=own,
            trusted=self._trusted,
            tracebacks=self._tracebacks,
        )
        if plan.read_only:
            plan.compares = self._read_only_checks.is_due(plan.toolpack, plan.registered_name)
        if dict in map(type, kwargs.values()) and has_nested(kwargs):  # the first test is faster, and usually False
            plan.arguments, plan.nested = read_nested(kwargs)
            self._include_nested(plan, plan.arguments)
        return plan

    def registered_as(self, name: str) -> tuple[str, str]:
        registered = self._registered[name]
        return registered.toolpack, registered.registered_name

    def _include_nested(self, plan: Plan, arguments: Mapping[str, Any]) -> None:
        """Update a plan for nested calls: extend its footprint, and decide anew whether it is read-only and checked."""
        for argument in arguments.values():
            if isinstance(argument, FunctionCall):
                function = self._registered.get(argument.function)
                plan.footprint = _united(plan.footprint, self._footprints.get(argument.function, {}))
                is_read_only = argument.function in self._trusted
                plan.read_only &= is_read_only
                if function is not None and is_read_only:
                    plan.compares |= self._read_only_checks.is_due(function.toolpack, function.registered_name)
                self._include_nested(plan, argument.args)

    def dependencies(self, env: World, function: Any) -> dict[str, Any]:
        """Return a function's dependencies, taken from its own toolpack's environment.

        Unless the function is read-only, also mark the environment as changed, so that it is stored after the call.
        """
        registered = self._registered[function.name]
        if not function.dependencies:
            return {}
        environment = env.environment(registered.toolpack)
        if function.name not in env.plan.trusted:
            env.may_change(registered.toolpack)
        values = {}
        try:
            for name, dependency in function.dependencies.items():
                values[name] = dependency.extract_dep_from_env(environment)
        except BaseException:
            env.raised = True  # a callable in `Depends` is also the toolpack's code
            raise
        return values

    def nested_result(self, env: World, outer: str, call: FunctionCall, depth: int) -> Steps[Any]:
        """Run a nested call and return its result.

        If the functions belong to two toolpacks, return a copy of the result, because toolpacks must share no objects.
        """
        result = yield from super().nested_result(env, outer, call, depth)
        env.add_nested_result(result)
        toolpack = self._registered[outer].toolpack
        if toolpack != self._registered[call.function].toolpack:
            return copy.deepcopy(result)
        # The result might be an object in the environment, which the outer function can change without a `Depends`.
        if outer not in env.plan.trusted:
            env.may_change(toolpack)
        return result

    def run(self, env: World, function: Any, arguments: dict[str, Any]) -> Steps[Any]:
        """Run the plain function and return its result. Set `env.raised` if the function's own code raised.

        If the function is async, this generator yields the coroutine. Its caller awaits it, and sends the result.

        Raises:
            ReadOnlyError: The function is declared read-only but has changed its environment.
        """
        check = env.check if env.check is not None and function.name in env.plan.trusted else None
        before = check.before(env, self._registered[function.name].toolpack) if check is not None else None
        try:
            with env.context.interruptible:
                result = function.run(**arguments)
        except BaseException as error:
            env.raised = True
            if isinstance(error, StopIteration):
                raise WrappedStopIteration(error) from None
            raise
        if isinstance(result, CoroutineType):
            registered = self._registered[function.name]
            awaited = yield Awaiting(f"{registered.toolpack}.{registered.registered_name}", result)
            if awaited.raised is not None:
                env.raised = True
                raise awaited.raised
            result = awaited.returned
        if check is not None:
            check.after(env, function.name, self.registered_as(function.name), before)
        return result


def _united(footprint: Footprint, other: Footprint) -> Footprint:
    """Return the attributes in either footprint. They are unknown (None) if they are unknown in one footprint."""
    united = dict(footprint)
    for toolpack, names in other.items():
        own_names = united.get(toolpack, frozenset())
        united[toolpack] = None if own_names is None or names is None else own_names | names
    return united
