"""Arguments and return values of evaluators: `Rollout`, `Check` and `Evaluation`.

This module runs no functions and reads no stored bytes, because the module `evaluation` implements `Worlds` for it. If
an evaluator returns an invalid value, the evaluation fails; an invalid value never becomes a reward.
"""

import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from numbers import Number
from typing import Any, Generic, TypeVar

from toolpack_server.base.errors import ToolpackServerError
from toolpack_server.features.evaluation.tasks.results import TaskCheck, Verdict
from toolpack_server.jsonio.strict import loads
from toolpack_server.jsonio.view import to_json
from toolpack_server.protocol.results import Json
from toolpack_server.protocol.senders import CLIENT

E = TypeVar("E")

PASSED = 1.0  # smallest reward that passes by default


class RewardError(ToolpackServerError, ValueError):
    """The evaluator's reward is infinite or NaN. Clients see this error as a `ValueError`."""

    kind = ValueError.__name__


@dataclass(frozen=True, slots=True)
class RolloutCall:
    """A call in the history that is evaluated.

    Attributes:
        index: Position of the call's record in the history.
        function: The name of the function.
        kwargs: The arguments, as JSON values.
        result: The result, as a JSON value; "" after an error. A result that is too long for its record is cut.
        error: `ErrorType: message`, or None if the call succeeded.
        version: The session's version after the call. None if the call was made in the session's parent.
        by: The caller: `agent` or the name of another participant if the call came to its address, `client` for a
            client, or `world` for an event.
        perturbed: `{"rules", "run", "agent"}` if perturbation rules matched the call: the names of the rules, whether
            the function ran, and the result that the agent got instead. Otherwise None.
        parent: For a nested call, the call that contains it as an argument. Both calls have the same index, and the
            parent comes later in `Rollout.calls`. If the parent failed, the nested call's changes were discarded.
        at: The time of the call in a session with events, otherwise None.
        event: The name of the event that made the call, or None. An event that calls no function appears as a call to
            the function "".
    """

    index: int
    function: str
    kwargs: Mapping[str, Json]
    result: Json
    error: str | None
    version: int | None
    by: str
    perturbed: Mapping[str, Json] | None = None
    parent: "RolloutCall | None" = None
    at: datetime | None = None
    event: str | None = None


@dataclass(frozen=True, slots=True)
class RolloutMessage:
    """A message in the history that is evaluated; see `RolloutCall` for `index` and `version`.

    Attributes:
        role: The recorded role. In a session with participants, the agent's messages have the role `assistant`.
        content: The text of the message.
        by: The participant that sent the message, or `client`.
        to: The recipient. None: all other participants.
    """

    index: int
    role: str
    content: str
    version: int | None
    by: str = CLIENT
    to: str | None = None


@dataclass(frozen=True, slots=True)
class Check:
    """A named condition that an evaluator checked.

    Attributes:
        name: The condition, such as "the order is paid".
        passed: Whether the condition holds.
        detail: An explanation, such as the actual value.
    """

    name: str
    passed: bool
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The return value of an evaluator that reports more than a reward.

    Attributes:
        reward: A finite number.
        passed: Whether the rollout passed. Default: True if the reward is 1 or more.
        checks: Further checks, in addition to the checks that `Rollout.check` has added.
        metrics: JSON values by name, which are stored with the verdict, such as the number of retries.
    """

    reward: float
    passed: bool | None = None
    checks: Sequence[Check] = ()
    metrics: Mapping[str, Json] = field(default_factory=dict)


class Worlds(ABC):
    """Loader of a rollout's environments. Each method returns new copies, by toolpack.

    Attributes:
        plain: The classes of plain objects. Their objects are converted to JSON as dicts of their public attributes.
    """

    plain: Container[type] = ()

    @abstractmethod
    def initial(self) -> dict[str, Any]:
        """Return the environments at the beginning of the session, before any fork."""

    @abstractmethod
    def at(self, version: int | None) -> dict[str, Any]:
        """Return the environments at a version of the session. None: the version that is evaluated."""

    @abstractmethod
    def replay(self, calls: Sequence[Any], *, raise_on_error: bool) -> dict[str, Any]:
        """Run calls on the initial environments, and return the environments after the calls."""


class Rollout(Generic[E]):
    """An agent's attempt at a task: the argument of an evaluator.

    All its values are copies, so an evaluator can change them without changing the session.

    Attributes:
        task: A copy of the task.
        toolpack: The name of the task's toolpack.
        options: The options that the toolpack's environment was created with.
        calls: The calls in the history, including nested calls, in order of execution.
        messages: The messages in the history, in order.
        answer: The submitted answer. If no answer was submitted, the agent's last message or "".
        version: The version of the session that is evaluated.
        reactions: For each event, the seconds from when it first happened until the agent's next call that changed the
            environment. Events after which the agent changed nothing are missing.
        checks: The checks that `check` has added so far.
        plain: The classes of plain objects. Their objects are converted to JSON as dicts of their public attributes.
    """

    def __init__(
        self,
        worlds: Worlds,
        toolpack: str,
        task: Any,
        *,
        options: Mapping[str, Json],
        calls: Sequence[RolloutCall],
        messages: Sequence[RolloutMessage],
        answer: str,
        version: int,
        reactions: Mapping[str, float] | None = None,
    ) -> None:
        self._worlds = worlds
        self.plain = worlds.plain
        self.toolpack = toolpack
        self.task = task
        self.options = options
        self.calls = calls
        self.messages = messages
        self.answer = answer
        self.version = version
        self.reactions = reactions or {}
        self.checks: list[Check] = []

    @cached_property
    def initials(self) -> dict[str, Any]:
        """The environments at the beginning of the session, before any fork, by toolpack."""
        return self._worlds.initial()

    @cached_property
    def environments(self) -> dict[str, Any]:
        """The environments of the version that is evaluated, by toolpack."""
        return self._worlds.at(None)

    @property
    def initial(self) -> E:
        """The environment of the task's toolpack at the beginning."""
        return self.initials[self.toolpack]  # type: ignore[no-any-return] # only the task's author knows its class

    @property
    def environment(self) -> E:
        """The environment of the task's toolpack at the version that is evaluated."""
        return self.environments[self.toolpack]  # type: ignore[no-any-return] # as above

    def at(self, version: int) -> E:
        """Return the environment of the task's toolpack at an older version of this session.

        Raises:
            VersionNotRetainedError: The server no longer stores this version.
        """
        return self._worlds.at(version)[self.toolpack]  # type: ignore[no-any-return] # as above

    def replay(self, calls: Sequence[Any], raise_on_error: bool = True) -> E:
        """Run calls on a copy of the initial environments and return the environment of the task's toolpack.

        Args:
            calls: `FunctionCall` objects or tuples `(name, arguments)`.
            raise_on_error: Whether a failed call raises an error. If False, it changes nothing, and the next call runs.

        Raises:
            ReplayError: A call failed.
        """
        return self.replay_all(calls, raise_on_error)[self.toolpack]  # type: ignore[no-any-return] # as above

    def replay_all(self, calls: Sequence[Any], raise_on_error: bool = True) -> dict[str, Any]:
        """Run calls on a copy of the initial environments, and return all environments by toolpack; see `replay`."""
        return self._worlds.replay(calls, raise_on_error=raise_on_error)

    def check(self, name: str, passed: bool | None, detail: str = "") -> bool:
        """Add a check to `checks`, and return whether it passed.

        If the evaluator returns None, the rollout passes if all checks passed.

        Args:
            name: The condition, such as "the order is paid".
            passed: Whether the condition holds. None counts as False.
            detail: An explanation, such as the actual value.

        Raises:
            TypeError: `passed` isn't a bool or None, for example because you passed a method instead of calling it.
        """
        check = Check(name, _as_bool(passed, name), detail)
        self.checks.append(check)
        return check.passed


Evaluator = Callable[[Any], Any]
"""A plain or async function that accepts a `Rollout`. docs/write/tasks.md lists its possible return values."""


def verdict(
    name: str,
    version: int,
    returned: object,
    checks: Sequence[Check],
    reactions: Mapping[str, float] | None = None,
) -> Verdict:
    """Return the verdict for the return value and the checks of an evaluator.

    Raises:
        TypeError: The evaluator returned a value of another type.
        RewardError: The reward is infinite or NaN.
        ResultError: The metrics can't be converted to JSON.
    """
    evaluation = returned if isinstance(returned, Evaluation) else _evaluation(returned, checks)
    reward = _finite(evaluation.reward)
    passed = reward >= PASSED if evaluation.passed is None else _as_bool(evaluation.passed, "passed")
    judged: Verdict = {
        "task": name,
        "version": version,
        "reward": reward,
        "passed": passed,
        "checks": [_check_view(check) for check in [*checks, *evaluation.checks]],
        "metrics": loads(to_json(dict(evaluation.metrics))),
        "valid": True,
        "perturbed": {},  # `Tasks` fills this in, and whether the verdict is valid
    }
    if reactions:
        judged["reactions"] = dict(reactions)
    return judged


def _evaluation(returned: object, checks: Sequence[Check]) -> Evaluation:
    """Convert an evaluator's return value to an `Evaluation`. None means: the rollout passes if all checks passed.

    Raises:
        TypeError: The value has another type, or it is None without any check.
    """
    if returned is None:
        if not checks:
            raise TypeError(
                "it returned None and checked nothing: call rollout.check, or return a bool, a number or an "
                "Evaluation. To compare the environment with the solution's, use toolpack.add_task without an evaluator"
            )
        return Evaluation(float(all(check.passed for check in checks)))
    if isinstance(returned, Number) or hasattr(returned, "__float__"):
        return Evaluation(returned)  # type: ignore[arg-type] # `_finite` makes it a float
    raise TypeError(
        f"it returned a {type(returned).__name__}: return a bool, a finite number, an Evaluation, or None after checks"
    )


def _finite(reward: Any) -> float:
    """Return a reward as a float. Raise `TypeError` or `RewardError` if it isn't a finite number."""
    if isinstance(reward, str | bytes) or not hasattr(reward, "__float__"):
        raise TypeError(f"its reward is a {type(reward).__name__}: give a finite number")
    number = float(reward)
    if not math.isfinite(number):
        raise RewardError(f"its reward is {number}: give a finite number")
    return number


def _as_bool(passed: Any, name: str) -> bool:
    """Return `passed` as a bool.

    Other types are refused, because an author who forgets a call or an `await` passes a method or a coroutine, which is
    always truthy.

    Raises:
        TypeError: `passed` isn't a bool or None.
    """
    kind = type(passed)
    if passed is None or kind is bool or (kind.__module__ == "numpy" and kind.__name__ in {"bool", "bool_"}):
        return bool(passed)
    advice = "compare it, so that it is True or False"
    if inspect.isawaitable(passed):
        advice = "await it"
    elif callable(passed):
        advice = "call it"
    if inspect.iscoroutine(passed):
        passed.close()  # avoids Python's warning that the coroutine was never awaited
    raise TypeError(f"the check {name!r} got a {kind.__name__} instead of True or False: {advice}")


def _check_view(check: Any) -> TaskCheck:
    """Return a check as JSON."""
    if not isinstance(check, Check):
        raise TypeError(f"one of its checks is a {type(check).__name__}: use rollout.check, or toolpack_server.Check")
    # `errors="replace"` removes lone surrogates, which JSON in UTF-8 can't contain.
    name, detail = (str(text).encode("utf-8", "replace").decode() for text in (check.name, check.detail))
    return {"name": name, "passed": _as_bool(check.passed, name), "detail": detail}
