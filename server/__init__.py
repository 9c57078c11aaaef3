"""What the author of a toolpack imports.

The rule: this package imports no web framework, so that a toolpack can be written and tested without a server. Names
are imported when they are used: whoever imports a module of the server waits for that module alone.
"""

from importlib import import_module
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from server.base.errors import ToolNotFoundError
    from server.features.parts.database import Database
    from server.features.parts.files import Files
    from server.features.tasks.rollouts import Check, Evaluation, Rollout
    from server.features.tasks.solutions import reached_solution
    from server.features.tasks.task import Task
    from server.features.tasks.text_search import says
    from server.features.toolpack import Toolpack
    from server.functions.content import Content
    from server.functions_runtime import (
        Depends,
        EmptyEnv,
        Function,
        FunctionCall,
        FunctionsRuntime,
        TaskEnvironment,
        make_function,
    )

__all__ = [
    "Check",
    "Content",
    "Database",
    "Depends",
    "EmptyEnv",
    "Evaluation",
    "Files",
    "Function",
    "FunctionCall",
    "FunctionsRuntime",
    "Rollout",
    "Task",
    "TaskEnvironment",
    "ToolNotFoundError",
    "Toolpack",
    "make_function",
    "reached_solution",
    "says",
]

_MODULES = {
    "Check": "features.tasks.rollouts",
    "Content": "functions.content",
    "Database": "features.parts.database",
    "Evaluation": "features.tasks.rollouts",
    "Files": "features.parts.files",
    "Rollout": "features.tasks.rollouts",
    "Task": "features.tasks.task",
    "ToolNotFoundError": "base.errors",
    "Toolpack": "features.toolpack",
    "reached_solution": "features.tasks.solutions",
    "says": "features.tasks.text_search",
}


def __getattr__(name: str) -> Any:
    if name not in __all__ and name != "perturbations":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "perturbations":
        found = import_module("server.features.perturbations.authors")
    else:
        found = resolve_name(f"server.{_MODULES.get(name, 'functions_runtime')}:{name}")
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
