"""Tasks of toolpacks: their definition, registration and loading.

A toolpack registers `Task` objects, or *loaders*: functions that return tasks and run once in each process. The error
for an invalid task names the file and line of the task or its loader.
"""

import copy
import re
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import cached_property
from typing import Any, Self, TypeVar

from typing_extensions import TypedDict, Unpack, override

from toolpack_server.base.errors import EvaluationError, InvalidParamsError, RegistrationError, ResultError, shown
from toolpack_server.base.logger import log
from toolpack_server.base.thread_labels import labelled
from toolpack_server.features.evaluation.episodes.rights import check_rights, is_prompt, merge_rights
from toolpack_server.features.evaluation.event_rules import read_event_rules
from toolpack_server.features.evaluation.rules import read_rules
from toolpack_server.features.evaluation.tasks.rollouts import Evaluator
from toolpack_server.features.evaluation.tasks.solutions import answer_texts, check_callers, plain_calls
from toolpack_server.functions_runtime import error_text
from toolpack_server.jsonio.strict import dumps, loads
from toolpack_server.packs.registration import located
from toolpack_server.packs.toolpack import Toolpack
from toolpack_server.protocol.senders import AGENT

Plain = TypeVar("Plain", bound=Callable[..., Any])
Prompt = str | Sequence[Mapping[str, str]]
Solution = Sequence[Any] | Callable[[Any], Sequence[Any]]
Loader = Callable[[], Iterable["Task"]]

SEPARATOR = "/"  # separates the toolpack's name from the task's name in a task's full name

_NAME = re.compile(r"[A-Za-z0-9_.@:+-]{1,128}")


class TaskSettings(TypedDict, total=False):
    """The keyword arguments of `Task`, which describes them."""

    options: Mapping[str, Any]
    toolpacks: Mapping[str, Mapping[str, Any]]
    functions: Sequence[str] | None
    max_calls: int | None
    participants: Mapping[str, Mapping[str, Any]]
    solution: Solution | None
    answer: str | Sequence[str]
    split: str
    tags: Sequence[str]
    metadata: Mapping[str, Any]
    data: Any
    nop_passes: bool
    timeout_seconds: float | None
    variants: Mapping[str, Sequence[Mapping[str, Any]]]
    events: Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True, eq=False)
class Task:
    """A task for an agent in a toolpack's environment.

    Attributes:
        name: 1-128 letters, digits or `_.@:+-`; unique in its toolpack.
        prompt: The agent's instructions: a string, or messages with `role` and `content`.
        evaluate: The evaluator. Default: `reached_solution()`, which compares the agent's environment with the
            environment after the solution.
        options: The options of the task's toolpack.
        toolpacks: Further toolpacks of the task's sessions: for each name a dict of its options.
        functions: The functions that the agent can call. Default: all functions.
        max_calls: Maximum number of the agent's calls, including nested and failed calls. Default: no limit.
        participants: Further participants: for each name a dict with any of `functions`, `max_calls`, `prompt` and
            `answers`. The agent is always a participant; an entry `agent` overrides the attributes above.
        solution: One way to do the task: calls, or a function that accepts the initial environment and returns calls.
            A call is a `FunctionCall`, `(name, arguments)` or `(name, arguments, participant)`. Without a
            participant, the agent makes the call.
        answer: The agent's answer in this solution. If you give several strings, the answer must contain each string.
        split: The data split of the task, such as `train`.
        tags: Words by which clients can filter tasks.
        metadata: JSON values that clients can read, such as a difficulty.
        data: Any value for the evaluator; clients and agents don't see it. Each evaluation gets its own copy, made by
            `copy.deepcopy`.
        nop_passes: Whether an agent that does nothing passes. `check --tasks` verifies this.
        timeout_seconds: Deadline of the evaluator in seconds. Default: the deadline of a call.
        variants: Named lists of perturbation rules. A client can create a session of the task with one of them.
            `toolpack_server.perturbations` contains functions that create rules.
        events: Event rules, in addition to the toolpacks' rules.

    Raises:
        RegistrationError: An attribute is invalid.
    """

    name: str
    prompt: Prompt
    evaluate: Evaluator | None = None
    _: KW_ONLY
    options: Mapping[str, Any] = field(default_factory=dict)
    toolpacks: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    functions: Sequence[str] | None = None
    max_calls: int | None = None
    participants: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    solution: Solution | None = None
    answer: str | Sequence[str] = ""
    split: str = "test"
    tags: Sequence[str] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict)
    data: Any = None
    nop_passes: bool = False
    timeout_seconds: float | None = None
    variants: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)
    events: Sequence[Mapping[str, Any]] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not _NAME.fullmatch(self.name):
            raise RegistrationError(
                f"{shown(str(self.name))!r} isn't a valid task name: use 1-128 letters, digits or `_.@:+-`."
            )
        problem = self._problem()
        if problem:
            raise RegistrationError(f"task {self.name!r}: {problem}.")

    def _problem(self) -> str | None:
        """Return an error message for the first invalid attribute, or None.

        Only problems that don't depend on the toolpack are found here.
        """
        if not is_prompt(self.prompt):
            return "its prompt must be a string, or a list of {role, content} with the role system, user or assistant"
        if not (self.evaluate is None or callable(self.evaluate)):
            return "its evaluator isn't callable: give a function that takes a Rollout"
        if not isinstance(self.split, str):
            return f"its split is {self.split!r}: give a string"
        if self.max_calls is not None and (type(self.max_calls) is not int or self.max_calls < 0):
            return f"its max_calls is {self.max_calls!r}: give a number of calls"
        if self.timeout_seconds is not None and not self.timeout_seconds > 0:
            return f"its timeout_seconds is {self.timeout_seconds}: give a number of seconds above 0"
        return self._list_problem() or self._json_problem() or self._participant_problem() or self._variant_problem()

    def _list_problem(self) -> str | None:
        """Return an error message for a list with invalid items, or None."""
        if not (self.solution is None or callable(self.solution) or isinstance(self.solution, list | tuple)):
            return "its solution is neither a list of calls nor a function that returns one"
        for name in ("tags", "functions", "answer"):
            value = getattr(self, name) or ()
            if name == "answer" and isinstance(value, str):
                continue
            is_list = isinstance(value, Collection) and not isinstance(value, str)
            if not is_list or not all(isinstance(text, str) for text in value):
                return f"its {name} must be a list of strings"
        return None

    def _variant_problem(self) -> str | None:
        """Return an error message for an invalid variant or event rule, or None."""
        for name, rules in self.variants.items():
            if not isinstance(name, str) or not _NAME.fullmatch(name):
                return f"{shown(str(name))!r} isn't a valid name of a variant: use 1-128 letters, digits or `_.@:+-`"
            try:
                read_rules(rules)
            except ValueError as error:
                return f"variant {name!r}: {error}"
        try:
            read_event_rules(self.events, complete=False)
        except ValueError as error:
            return str(error)
        return None

    def _json_problem(self) -> str | None:
        """Return an error message for an attribute that isn't JSON, or None."""
        for name in ("options", "toolpacks", "metadata", "participants", "variants"):
            value = getattr(self, name)
            if not isinstance(value, Mapping):
                return f"its {name} is a {type(value).__name__}: give a dict"
            if not _is_json(dict(value)):
                return f"its {name} can't be converted to JSON: use strings, numbers, lists and dicts"
        if not _is_json([self.prompt, self.split, *self.tags, *answer_texts(self.answer)]):
            return "one of its strings contains a lone surrogate, which UTF-8 can't encode: remove it"
        return None

    def _participant_problem(self) -> str | None:
        """Return an error message for invalid rights, or for a call by an unknown participant, or None."""
        try:
            check_rights(self.participants)
            if isinstance(self.solution, list | tuple):
                check_callers(plain_calls(self.solution), self.participants)
        except InvalidParamsError as error:
            return str(error).rstrip(".")
        except (TypeError, ResultError):
            # An invalid call is reported only when the solution is used, because a solution can also be a function.
            return None
        return None

    def own(self) -> Self:
        """Return a copy for one evaluation, which the evaluator can change.

        Raises:
            TypeError: `data` can't be copied.
        """
        # deepcopy doesn't copy the objects in its memo again, so the copy shares the functions with this task. The
        # variants are copied as JSON, because deepcopy is slow for many small dicts.
        memo = {id(each): each for each in (self.evaluate, self.solution) if callable(each)}
        memo[id(self.variants)] = loads(dumps(dict(self.variants)))
        own = object.__new__(type(self))
        try:
            for name in self.__dataclass_fields__:
                object.__setattr__(own, name, copy.deepcopy(getattr(self, name), memo))
        except Exception as error:
            raise TypeError(
                f"the task's data can't be copied ({error_text(error)}): give the class that copy.deepcopy can't copy "
                "a __deepcopy__ method, which may return the object itself"
            ) from error
        return own

    def rights(self) -> dict[str, dict[str, Any]]:
        """Return the rights of the participants, including the agent. Return {} if `participants` is empty."""
        own = {"functions": self.functions, "max_calls": self.max_calls, "prompt": self.prompt}
        return merge_rights({AGENT: own}, self.participants)


def _is_json(value: Any) -> bool:
    try:
        dumps(value)
    except (TypeError, ValueError, RecursionError):
        return False
    return True


class TaskList:
    """The tasks of one toolpack, in the order of registration. They come from `add` and from loaders.

    Loaders run only when the tasks are first needed, because they can be slow, for example read large files.
    """

    def __init__(self, toolpack: str) -> None:
        self._toolpack = toolpack
        self._sources: list[Task | Loader] = []
        self._names: set[str] = set()
        self._loaded: dict[str, Task] | None = None
        self._lock = threading.RLock()

    def __bool__(self) -> bool:
        return bool(self._sources)

    def add(self, task: Task) -> None:
        """Add a task.

        Raises:
            RegistrationError: `task` isn't a `Task`, or its name is in use.
        """
        if not isinstance(task, Task):
            raise RegistrationError(f"a {type(task).__name__} isn't a task: create a toolpack_server.Task.")
        if task.name in self._names:
            raise RegistrationError(f"toolpack {self._toolpack!r} has a task {task.name!r} already: rename one.")
        self._names.add(task.name)
        self._sources.append(task)

    def add_loader(self, loader: Loader) -> None:
        """Add a loader. It is called when the toolpack's tasks are first used."""
        self._sources.append(loader)

    @property
    def is_loaded(self) -> bool:
        """Whether the loaders have run, so that `all` runs no author code."""
        return self._loaded is not None

    def all(self) -> Mapping[str, Task]:
        """Return all tasks by name, in order. The first call runs the loaders.

        Raises:
            EvaluationError: A loader raised an exception or returned an invalid value. The log contains the traceback.
        """
        with self._lock:
            if self._loaded is None:
                self._loaded = self._load()
            return self._loaded

    def count(self) -> int:
        """Return the number of tasks. If a loader fails, count only the tasks that `add` has added."""
        try:
            return len(self.all())
        except EvaluationError:
            return sum(isinstance(source, Task) for source in self._sources)

    def _load(self) -> dict[str, Task]:
        """Run the loaders and return all tasks, in order of registration. Raise `EvaluationError` if a loader fails."""
        tasks: dict[str, Task] = {}
        for source in self._sources:
            if isinstance(source, Task):
                tasks[source.name] = source
                continue
            try:
                with labelled(f"The loader `{_name(source)}` of toolpack {self._toolpack!r}"):
                    for task in source():
                        if not isinstance(task, Task):
                            raise TypeError(f"it returned a {type(task).__name__}: return Task objects")
                        if task.name in tasks or task.name in self._names:
                            raise ValueError(f"the toolpack has a task {task.name!r} already: rename one")
                        tasks[task.name] = task
            except Exception as error:
                log.warning("The tasks of toolpack %r can't be loaded", self._toolpack, exc_info=error)
                raise EvaluationError(
                    f"The tasks of toolpack {self._toolpack!r} can't be loaded: `{_name(source)}` failed: "
                    f"{error_text(error)}",
                    type(error).__name__,
                ) from error
        return tasks


def _name(loader: Loader) -> str:
    return getattr(loader, "__qualname__", type(loader).__qualname__)


class TaskAuthor(Toolpack):
    """The methods of `Toolpack` that register tasks."""

    @cached_property
    def task_list(self) -> TaskList:
        return TaskList(self.name)

    @property
    def task_count(self) -> int:
        return self.task_list.count()

    @override
    def details(self) -> Mapping[str, Any]:
        return {**super().details(), "tasks": self.task_count}

    def task(self, name: str, prompt: Prompt, **settings: Unpack[TaskSettings]) -> Callable[[Plain], Plain]:
        """Register the decorated function as the evaluator of a new task, and return it unchanged.

        `Task` describes the arguments.

        Raises:
            RegistrationError: The task is invalid; the message says what to change.
        """

        def register(evaluate: Plain) -> Plain:
            with located(evaluate):
                self.task_list.add(Task(name, prompt, evaluate, **settings))
            return evaluate

        return register

    def tasks(self, loader: Plain) -> Plain:
        """Register the decorated function as a loader of tasks, and return it unchanged.

        A loader is called without arguments and returns or yields tasks. It runs once in each process, when tasks are
        first used. It must return the same tasks in the same order in every process.
        """
        self.task_list.add_loader(loader)
        return loader

    def add_task(self, task: Task) -> Task:
        """Register a task and return it.

        Raises:
            RegistrationError: A task of the toolpack already has this name.
        """
        self.task_list.add(task)
        return task
