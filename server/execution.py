"""One call: from an environment as bytes and a function call to an outcome and the next bytes.

The rule: no I/O, no locks, no clock but the deadline that is handed in. Whatever a function does, this answers with an
`Outcome`; and as long as nobody commits that, the call has not happened.
"""

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from pydantic import BaseModel
from pydantic_core import ValidationError

from server.errors import RequestError, TooLargeError, ToolNotFoundError
from server.functions_runtime import MAX_LISTED_ERRORS, FunctionCall, FunctionsRuntime, error_text
from server.json_view import to_json
from server.parts import reach
from server.toolpack import PackFunction
from server.world import Codec, World


class Failure(StrEnum):
    """Why a call failed: what the envelope's text alone doesn't tell for sure."""

    NOT_FOUND = "not_found"
    ARGUMENTS = "arguments"
    RAISED = "raised"
    TOO_LARGE = "too_large"
    DEADLINE = "deadline"


@dataclass(slots=True)
class Outcome:
    """What came of a call.

    Attributes:
        result: The result as JSON text; None after an error.
        error: `ErrorType: message`, or None.
        failure: Why it failed, or None.
        errors: What is wrong with the arguments, each {loc, msg, type}.
        changes: The call may change the environment, so the version moves on.
        blobs: The new bytes of each part of an environment that it may have changed.
        live: The parts that it took, which equal their bytes.
        toolpack: The toolpack of the function; "" where there is no such function.
    """

    result: bytes | None = None
    error: str | None = None
    failure: Failure | None = None
    errors: list[dict[str, Any]] | None = None
    changes: bool = False
    blobs: dict[str, bytes] = field(default_factory=dict)
    live: dict[str, BaseModel] = field(default_factory=dict)
    toolpack: str = ""


class SessionRuntime(FunctionsRuntime):
    """The functions of a session's toolpacks, each acting on its own toolpack's environment in a `World`.

    Args:
        functions: The functions.
    """

    def __init__(self, functions: Mapping[str, PackFunction]) -> None:
        super().__init__([function.function for function in functions.values()])
        self.registered = functions
        self._reach = {name: reach(function.function) for name, function in functions.items()}

    def reach(self, name: str, arguments: Mapping[str, Any]) -> dict[str, frozenset[str] | None]:
        """Get, for each toolpack, the attributes of its environment that a call and all that it nests take."""
        function = self.registered.get(name)
        reached: dict[str, frozenset[str] | None] = {}
        if function is not None and function.function.dependencies:
            reached[function.toolpack] = self._reach[name]
        for argument in arguments.values():
            if isinstance(argument, FunctionCall):
                for toolpack, more in self.reach(argument.function, argument.args).items():
                    known = reached.get(toolpack, frozenset())
                    reached[toolpack] = None if known is None or more is None else known | more
        return reached

    def dependencies(self, env: World, function: Any) -> dict[str, Any]:
        """Take a function's dependencies from its own toolpack's environment."""
        registered = self.registered[function.name]
        if not function.dependencies:
            return {}
        environment = env.environment(registered.toolpack)
        if not registered.read_only:
            env.may_change(registered.toolpack)
        return super().dependencies(environment, function)

    def nested_result(self, env: World, outer: str, call: FunctionCall, depth: int) -> Any:
        """Run an inner call; between two toolpacks its result is copied, since nothing is shared across them."""
        result = super().nested_result(env, outer, call, depth)
        toolpack = self.registered[outer].toolpack
        if toolpack != self.registered[call.function].toolpack:
            return copy.deepcopy(result)
        # The result may be a part of the environment, which the outer function can then change without a `Depends`.
        if not self.registered[outer].read_only:
            env.may_change(toolpack)
        return result

    def run(self, env: World, function: Any, arguments: dict[str, Any]) -> Any:
        """Run the plain function, and note whether it was that which raised."""
        try:
            with env.interruptible:
                return super().run(env, function, arguments)
        except BaseException:
            env.raised = True
            raise

    def read_only(self, name: str, arguments: Mapping[str, Any]) -> bool:
        """Whether a call and all that it nests promise to leave the environment unchanged."""
        function = self.registered.get(name)
        return (
            function is not None
            and function.read_only
            and all(self.read_only(a.function, a.args) for a in arguments.values() if isinstance(a, FunctionCall))
        )

    def toolpack_of(self, name: str) -> str:
        """Get the toolpack of a function; "" where there is no such function."""
        function = self.registered.get(name)
        return function.toolpack if function else ""

    def timeout(self, name: str, default: float, shorter: float | None) -> float:
        """Get the deadline of a call in seconds: the function's own or the default, which the caller may shorten."""
        function = self.registered.get(name)
        seconds = (function and function.timeout_seconds) or default
        return seconds if shorter is None else min(seconds, shorter)


def nested_calls(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Replace each argument that is exactly `{"$call": {"function": …, "args": {…}}}` by a `FunctionCall`."""
    return {
        name: _nested_call(value) if type(value) is dict and "$call" in value else value
        for name, value in arguments.items()
    }


def _nested_call(value: dict[str, Any]) -> Any:
    call = value["$call"]
    if len(value) != 1 or type(call) is not dict or call.keys() != {"function", "args"}:
        return value
    if not isinstance(call["function"], str) or not isinstance(call["args"], dict):
        return value
    return FunctionCall.model_construct(function=call["function"], args=nested_calls(call["args"]))


def call(
    runtime: SessionRuntime, world: World, codec: Codec, function: str, calls: Mapping[str, Any], max_result_bytes: int
) -> Outcome:
    """Run a function and freeze what it may have changed.

    Args:
        runtime: The session's functions.
        world: The environments, opened for this very call.
        codec: Writes them.
        function: The function's name.
        calls: Its arguments, with `FunctionCall` where a call is nested.
        max_result_bytes: The largest result, as JSON.

    Raises:
        RequestError: The stored environment can't be used; the call has not begun.
    """
    try:
        value = runtime.call(world, function, calls)
        result = to_json(value)
        if len(result) > max_result_bytes:
            raise TooLargeError(f"the result has {len(result)} bytes as JSON; {max_result_bytes} are allowed.")
        blobs = {part: codec.encode(part, world.touched[part]) for part in world.dirty}
        return Outcome(result, changes=not world.read_only, blobs=blobs, live=world.touched)
    # BaseException: SystemExit and KeyboardInterrupt out of a function are that function's failure, not the server's.
    except BaseException as error:
        if isinstance(error, RequestError) and not world.raised:
            raise
        return failed(error, world)


def failed(error: BaseException, world: World) -> Outcome:
    """Describe a failed call."""
    errors = None
    if world.raised:
        failure = Failure.RAISED
    elif isinstance(error, ToolNotFoundError):
        failure = Failure.NOT_FOUND
    elif isinstance(error, TooLargeError):
        failure = Failure.TOO_LARGE
    elif isinstance(error, ValidationError):
        failure = Failure.ARGUMENTS
        listed = error.error_count() <= MAX_LISTED_ERRORS
        errors = (
            [
                {"loc": list(problem["loc"]), "msg": problem["msg"], "type": problem["type"]}
                for problem in error.errors(include_url=False, include_context=False, include_input=False)
            ]
            if listed
            else []
        )
    else:
        failure = Failure.RAISED
    return Outcome(error=error_text(error), failure=failure, errors=errors)
