"""What an evaluator gets, and what it may answer: a `Rollout`, its checks, and an `Evaluation`.

Nothing here runs a function or reads bytes; `evaluation` hands in what does. An answer that means
nothing is the evaluator's fault and never a reward.
"""

import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field
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

PASSED = 1.0  # this reward, and any above it, has passed


class RewardError(ToolpackServerError, ValueError):
    """The reward of an evaluator is infinite, or not a number; clients are told of a `ValueError`."""

    kind = ValueError.__name__


@dataclass(frozen=True, slots=True)
class RolloutCall:
    """A call on the path that is evaluated.

    Attributes:
        index: Its place on the path.
        function: The name of the function.
        kwargs: Its arguments, as JSON values.
        result: Its result, as a JSON value; "" after an error. What was too long for its record is cut.
        error: `ErrorType: message`, or None.
        version: The session's version after it; None in the record of a parent.
        by: Who called: `agent`, at its own address, or `client`.
        perturbed: `{"rules", "run", "agent"}` if it has met rules of perturbations: their names, whether it was run,
            and what the agent has heard instead. Else None.
        parent: The call that it was an argument of, which has the same index and comes later; None if it wasn't nested.
            If that has failed, nothing is kept of what this one has changed.
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


@dataclass(frozen=True, slots=True)
class RolloutMessage:
    """A message on the path that is evaluated; see `RolloutCall` for `index` and `version`.

    Attributes:
        role: `assistant` if the agent has said it, in a session with participants; else as it was recorded.
        by: The participant who has said it, or `client`.
        to: To whom; None: to all others.
    """

    index: int
    role: str
    content: str
    version: int | None
    by: str = CLIENT
    to: str | None = None


@dataclass(frozen=True, slots=True)
class Check:
    """Something that an evaluator has looked at.

    Attributes:
        name: What should be the case.
        passed: It is.
        detail: What was found instead.
    """

    name: str
    passed: bool
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What an evaluator may return if a reward alone says too little.

    Attributes:
        reward: A finite number.
        passed: Whether the task counts as done; None: if the reward is 1 or more.
        checks: What was looked at, besides what `Rollout.check` has noted.
        metrics: Further values, as JSON, by name.
    """

    reward: float
    passed: bool | None = None
    checks: Sequence[Check] = ()
    metrics: Mapping[str, Json] = field(default_factory=dict)


class Worlds(ABC):
    """The environments of a rollout, by toolpack, each time thawed anew from what is committed.

    Attributes:
        plain: The classes whose objects JSON shows as their public attributes.
    """

    plain: Container[type] = ()

    @abstractmethod
    def initial(self) -> dict[str, Any]:
        """Get those with which the family of the session began."""

    @abstractmethod
    def at(self, version: int | None) -> dict[str, Any]:
        """Get those of a version of the session; None: of the one that is evaluated."""

    @abstractmethod
    def replay(self, calls: Sequence[Any], *, raise_on_error: bool) -> dict[str, Any]:
        """Get what calls make of the initial ones."""


class Rollout(Generic[E]):
    """One agent's attempt at a task, as its evaluator sees it. Whatever is done to it reaches nobody.

    Attributes:
        task: The task.
        toolpack: The name of its toolpack.
        options: The options with which this toolpack's environment was built, as they were given.
        calls: The calls on the path, in the order in which they ran, nested ones too.
        messages: The messages on the path, in order.
        answer: The agent's answer: the submitted one, else its last message, else "".
        version: The version that is evaluated.
        checks: What `check` has noted so far.
        plain: See `Worlds`.
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
        self.checks: list[Check] = []

    @cached_property
    def initials(self) -> dict[str, Any]:
        """The environments with which the session began, before any fork, by toolpack."""
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
        """Get the environment of the task's toolpack at an older version of this session.

        Raises:
            VersionNotRetainedError: The version is no longer kept.
        """
        return self._worlds.at(version)[self.toolpack]  # type: ignore[no-any-return] # as above

    def replay(self, calls: Sequence[Any], raise_on_error: bool = True) -> E:
        """Get what calls make of a copy of `initial`.

        Args:
            calls: Each a `FunctionCall` or `(name, arguments)`.
            raise_on_error: Raise if a call fails. Otherwise it changes nothing, and the next one is run.

        Raises:
            ReplayError: A call has failed.
        """
        return self.replay_all(calls, raise_on_error)[self.toolpack]  # type: ignore[no-any-return] # as above

    def replay_all(self, calls: Sequence[Any], raise_on_error: bool = True) -> dict[str, Any]:
        """Get what calls make of a copy of `initials`; see `replay`."""
        return self._worlds.replay(calls, raise_on_error=raise_on_error)

    def check(self, name: str, passed: bool | None, detail: str = "") -> bool:
        """Note whether something is as it should be.

        Args:
            name: What should be the case.
            passed: True if it is; False or None if it isn't.
            detail: What was found instead.

        Raises:
            TypeError: `passed` is anything else, such as a method that wasn't called.
        """
        noted = Check(name, _as_bool(passed, name), detail)
        self.checks.append(noted)
        return noted.passed


Evaluator = Callable[[Any], Any]
"""A plain or async function of one `Rollout`; see docs/write/tasks.md for what it may return."""


def verdict(name: str, version: int, returned: object, checks: Sequence[Check]) -> Verdict:
    """Get the verdict that an evaluator means by what it returned.

    Raises:
        TypeError: It returned nothing that is a verdict.
        RewardError: Its reward is no finite number.
        ResultError: Its metrics have no JSON form.
    """
    evaluation = returned if isinstance(returned, Evaluation) else _evaluation(returned, checks)
    reward = _finite(evaluation.reward)
    passed = reward >= PASSED if evaluation.passed is None else _as_bool(evaluation.passed, "passed")
    return {
        "task": name,
        "version": version,
        "reward": reward,
        "passed": passed,
        "checks": [_check_view(check) for check in [*checks, *evaluation.checks]],
        "metrics": loads(to_json(dict(evaluation.metrics))),
        "valid": True,
        "perturbed": {},
    }


def _evaluation(returned: object, checks: Sequence[Check]) -> Evaluation:
    if returned is None:
        if not checks:
            raise TypeError(
                "it returned None and checked nothing: call rollout.check, or return a bool, a number or an Evaluation"
            )
        return Evaluation(float(all(check.passed for check in checks)))
    if isinstance(returned, Number) or hasattr(returned, "__float__"):
        return Evaluation(returned)  # type: ignore[arg-type] # `_finite` makes it a float
    raise TypeError(
        f"it returned a {type(returned).__name__}: return a bool, a finite number, an Evaluation, or None after checks"
    )


def _finite(reward: Any) -> float:
    if isinstance(reward, str | bytes) or not hasattr(reward, "__float__"):
        raise TypeError(f"its reward is a {type(reward).__name__}: give a finite number")
    number = float(reward)
    if not math.isfinite(number):
        raise RewardError(f"its reward is {number}: give a finite number")
    return number


def _as_bool(passed: Any, name: str) -> bool:
    """Return what a check has found: only true and false say whether something is so."""
    kind = type(passed)
    if passed is None or kind is bool or (kind.__module__ == "numpy" and kind.__name__ in {"bool", "bool_"}):
        return bool(passed)
    advice = "compare it, so that it is True or False"
    if inspect.isawaitable(passed):
        advice = "await it"
    elif callable(passed):
        advice = "call it"
    if inspect.iscoroutine(passed):
        passed.close()  # nobody awaits it any more
    raise TypeError(f"the check {name!r} got a {kind.__name__} instead of True or False: {advice}")


def _check_view(check: Any) -> TaskCheck:
    if not isinstance(check, Check):
        raise TypeError(f"one of its checks is a {type(check).__name__}: use rollout.check, or toolpack_server.Check")
    name, detail = (str(text).encode("utf-8", "replace").decode() for text in (check.name, check.detail))
    return {
        "name": name,
        "passed": _as_bool(check.passed, name),
        "detail": detail,
    }  # JSON can't contain a lone surrogate
