"""What programs that use Toolpack Server import: what authors of toolpacks need, and the Python client.

The rule: nothing is defined here. The code is in the package `server`, a name that programs often have for a file of
their own; this package says so where such a file is in the way, and its names are imported when they are used.
"""

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from server import (
        Check,
        Content,
        Database,
        Depends,
        EmptyEnv,
        Evaluation,
        Files,
        Function,
        FunctionCall,
        FunctionsRuntime,
        Rollout,
        Task,
        TaskEnvironment,
        ToolNotFoundError,
        Toolpack,
        make_function,
        reached_solution,
    )
    from server.base.errors import (
        CallError,
        ClientError,
        NoReplyError,
        RemoteFunctionError,
        ReplyError,
        ToolpackServerError,
        ToolpackUnavailable,
    )
    from server.client import AgentClient, AsyncAgentClient, AsyncClient, Client, rollouts

__all__ = [
    "AgentClient",
    "AsyncAgentClient",
    "AsyncClient",
    "CallError",
    "Check",
    "Client",
    "ClientError",
    "Content",
    "Database",
    "Depends",
    "EmptyEnv",
    "Evaluation",
    "Files",
    "Function",
    "FunctionCall",
    "FunctionsRuntime",
    "NoReplyError",
    "RemoteFunctionError",
    "ReplyError",
    "Rollout",
    "Task",
    "TaskEnvironment",
    "ToolNotFoundError",
    "Toolpack",
    "ToolpackServerError",
    "ToolpackUnavailable",
    "make_function",
    "reached_solution",
    "rollouts",
]

_OWN = Path(__file__).parent.parent / "server"
_OF_CLIENT = {"AgentClient", "AsyncAgentClient", "AsyncClient", "Client", "rollouts"}
_ERRORS = {
    "CallError",
    "ClientError",
    "NoReplyError",
    "RemoteFunctionError",
    "ReplyError",
    "ToolpackServerError",
    "ToolpackUnavailable",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = "server.client" if name in _OF_CLIENT else "server.base.errors" if name in _ERRORS else "server"
    found = globals()[name] = getattr(_imported(module), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def _imported(module: str) -> Any:
    server = import_module("server")
    if [*getattr(server, "__path__", ())] != [str(_OWN)]:
        raise ImportError(
            f"{getattr(server, '__file__', None) or 'A folder called `server`'} is imported instead of the package "
            "`server` of Toolpack Server: rename it."
        )
    return import_module(module)
