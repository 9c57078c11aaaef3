"""Tasks: what there is to do in a toolpack's environment, and how they are registered and loaded.

A task says nothing about sessions. What a loader gives is fixed after its first use in a process; a mistake
is reported with the place where the task, or its loader, is defined.
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
from toolpack_server.features.evaluation.rules import read_rules
from toolpack_server.features.evaluation.tasks.rollouts import Evaluator
from toolpack_server.features.evaluation.tasks.solutions import answer_texts, check_callers, plain_calls
from toolpack_server.functions_runtime import error_text
from toolpack_server.jsonio.strict import dumps
from toolpack_server.packs.registration import located
from toolpack_server.packs.toolpack import Toolpack
from toolpack_server.protocol.senders import AGENT

Plain = TypeVar("Plain", bound=Callable[..., Any])
Prompt = str | Sequence[Mapping[str, str]]
Solution = Sequence[Any] | Callable[[Any], Sequence[Any]]
Loader = Callable[[], Iterable["Task"]]

SEPARATOR = "/"  # in a task's full name, after its toolpack's

_NAME = re.compile(r"[A-Za-z0-9_.@:+-]{1,128}")


class TaskSettings(TypedDict, total=False):
    """Everything about a task but its name, its prompt and its evaluator; `Task` describes each."""

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


@dataclass(frozen=True, slots=True, eq=False)
class Task:
    """Something to do in a toolpack's environment.

    Attributes:
        name: 1-128 letters, digits or `_.@:+-`; unique in its toolpack.
        prompt: What the agent is asked: a text, or messages with `role` and `content`.
        evaluate: The evaluator; None: `reached_solution()`.
        options: The options of its toolpack.
        toolpacks: The options of the other toolpacks that its sessions have, by name.
        functions: The functions that the agent's address has; None: all.
        max_calls: How many calls the agent has, nested ones and failed ones too; None: any number.
        participants: Who takes part, by name, and what each may do: an object of `functions`, `max_calls`, `prompt` and
            `answers`. The agent is one of them in any case, with what is said of it here or else above.
        solution: One way to do it: calls, or a function of the initial environment that returns calls. A call is a
            `FunctionCall`, `(name, arguments)` or `(name, arguments, participant)`, by default the agent's.
        answer: What the agent says in this solution; of several texts each must occur.
        split: Which part of the tasks it belongs to, such as `train`.
        tags: Words to find it by.
        metadata: Anything for clients, as JSON.
        data: Anything for the evaluator, which nobody else sees. Each evaluation gets its own copy, by `copy.deepcopy`.
        nop_passes: An agent that does nothing is right.
        timeout_seconds: The evaluator's deadline, in seconds; None: that of a call.
        variants: Rules of perturbations by name, to try the task with; `toolpack_server.perturbations` has functions
            for them.

    Raises:
        RegistrationError: One of these can't be used.
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

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not _NAME.fullmatch(self.name):
            raise RegistrationError(
                f"{shown(str(self.name))!r} isn't a valid task name: use 1-128 letters, digits or `_.@:+-`."
            )
        problem = self._problem()
        if problem:
            raise RegistrationError(f"task {self.name!r}: {problem}.")

    def _problem(self) -> str | None:
        """Say what is wrong with the task as far as that can be seen without its toolpack."""
        if not is_prompt(self.prompt):
            return "its prompt is neither a text nor a list of {role, content}, the role system, user or assistant"
        if not (self.evaluate is None or callable(self.evaluate)):
            return "its evaluator can't be called: give a function of one Rollout"
        if not isinstance(self.split, str):
            return f"its split is {self.split!r}: give a text"
        if self.max_calls is not None and (type(self.max_calls) is not int or self.max_calls < 0):
            return f"its max_calls is {self.max_calls!r}: give a number of calls"
        if self.timeout_seconds is not None and not self.timeout_seconds > 0:
            return f"its timeout_seconds is {self.timeout_seconds}: give a number of seconds above 0"
        return self._no_list() or self._no_json() or self._no_participants() or self._no_rules()

    def _no_list(self) -> str | None:
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

    def _no_rules(self) -> str | None:
        for name, rules in self.variants.items():
            if not isinstance(name, str) or not _NAME.fullmatch(name):
                return f"{shown(str(name))!r} isn't a valid name of a variant: use 1-128 letters, digits or `_.@:+-`"
            try:
                read_rules(rules)
            except ValueError as error:
                return f"variant {name!r}: {error}"
        return None

    def _no_json(self) -> str | None:
        for name in ("options", "toolpacks", "metadata", "participants", "variants"):
            value = getattr(self, name)
            if not isinstance(value, Mapping):
                return f"its {name} is a {type(value).__name__}: give a dict"
            if not _is_json(dict(value)):
                return f"its {name} has no JSON form: use texts, numbers, lists and dicts"
        if not _is_json([self.prompt, self.split, *self.tags, *answer_texts(self.answer)]):
            return "one of its texts has half of a surrogate pair: give texts that UTF-8 can hold"
        return None

    def _no_participants(self) -> str | None:
        try:
            check_rights(self.participants)
            if isinstance(self.solution, list | tuple):
                check_callers(plain_calls(self.solution), self.participants)
        except InvalidParamsError as error:
            return str(error).rstrip(".")
        except (TypeError, ResultError):
            return None  # a call that is none is told with the others of its kind, when the solution is used
        return None

    def own(self) -> Self:
        """Get a copy for one evaluation, which may change whatever it holds.

        Raises:
            TypeError: Its data can't be copied.
        """
        code = {id(each): each for each in (self.evaluate, self.solution) if callable(each)}
        own = object.__new__(type(self))
        try:
            for name in self.__dataclass_fields__:
                object.__setattr__(own, name, copy.deepcopy(getattr(self, name), code))
        except Exception as error:
            raise TypeError(
                f"the task's data can't be copied ({error_text(error)}): give what copy.deepcopy can't copy a "
                "__deepcopy__, which may return it as it is"
            ) from error
        return own

    def rights(self) -> dict[str, dict[str, Any]]:
        """Get the rights of its participants, the agent's among them; none if it has no participants."""
        own = {"functions": self.functions, "max_calls": self.max_calls, "prompt": self.prompt}
        return merge_rights({AGENT: own}, self.participants)


def _is_json(value: Any) -> bool:
    try:
        dumps(value)
    except (TypeError, ValueError, RecursionError):
        return False
    return True


class TaskList:
    """The tasks of one toolpack: those that were given, then those of its loaders, in the order of registration."""

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
            RegistrationError: There is a task of this name already, or it isn't a task.
        """
        if not isinstance(task, Task):
            raise RegistrationError(f"a {type(task).__name__} isn't a task: make a toolpack_server.Task of it.")
        if task.name in self._names:
            raise RegistrationError(f"toolpack {self._toolpack!r} has a task {task.name!r} already: rename one.")
        self._names.add(task.name)
        self._sources.append(task)

    def add_loader(self, loader: Loader) -> None:
        """Add a function that gives tasks; it is called when somebody first asks for tasks."""
        self._sources.append(loader)

    @property
    def is_loaded(self) -> bool:
        """Whether `all` runs no loader any more."""
        return self._loaded is not None

    def all(self) -> Mapping[str, Task]:
        """Get all tasks by name, in their order; the loaders run at the first time.

        Raises:
            EvaluationError: A loader raised, or gave what can't be used; the log has its traceback.
        """
        with self._lock:
            if self._loaded is None:
                self._loaded = self._load()
            return self._loaded

    def count(self) -> int:
        """Count the tasks; where a loader fails, only those that were given otherwise."""
        try:
            return len(self.all())
        except EvaluationError:
            return sum(isinstance(source, Task) for source in self._sources)

    def _load(self) -> dict[str, Task]:
        found: dict[str, Task] = {}
        for source in self._sources:
            if isinstance(source, Task):
                found[source.name] = source
                continue
            try:
                with labelled(f"The loader `{_name(source)}` of toolpack {self._toolpack!r}"):
                    for task in source():
                        if not isinstance(task, Task):
                            raise TypeError(f"it gave a {type(task).__name__}: give Task objects")
                        if task.name in found or task.name in self._names:
                            raise ValueError(f"there is a task {task.name!r} already: rename one")
                        found[task.name] = task
            except Exception as error:
                log.warning("The tasks of toolpack %r can't be loaded", self._toolpack, exc_info=error)
                raise EvaluationError(
                    f"The tasks of toolpack {self._toolpack!r} can't be loaded: `{_name(source)}` failed: "
                    f"{error_text(error)}",
                    type(error).__name__,
                ) from error
        return found


def _name(loader: Loader) -> str:
    return getattr(loader, "__qualname__", type(loader).__qualname__)


class TaskAuthor(Toolpack):
    """The part of `Toolpack` for the author of its tasks."""

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
        """Decorator: register a task with its evaluator, and return the evaluator unchanged; see `Task`.

        Raises:
            RegistrationError: The task can't be used; the text says what to change.
        """

        def register(evaluate: Plain) -> Plain:
            with located(evaluate):
                self.task_list.add(Task(name, prompt, evaluate, **settings))
            return evaluate

        return register

    def tasks(self, loader: Plain) -> Plain:
        """Decorator: register a function without arguments that gives tasks, and return it unchanged.

        It runs once in each process, when somebody first asks for tasks, and must give the same tasks in the same
        order everywhere.
        """
        self.task_list.add_loader(loader)
        return loader

    def add_task(self, task: Task) -> Task:
        """Register a task and return it.

        Raises:
            RegistrationError: There is a task of this name already.
        """
        self.task_list.add(task)
        return task
