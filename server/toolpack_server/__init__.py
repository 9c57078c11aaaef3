"""What programs that use Toolpack Server import: what authors of toolpacks need, and the Python client.

The rule: here is what only programs that use a server need, such as the client; all else is in the package `server`,
a name that programs often have for a file of their own. This package says so where such a file is in the way, and its
names are imported when they are used.
"""

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from toolpack_server import (
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
        says,
    )
    from toolpack_server.base.errors import (
        CallError,
        ClientError,
        NoReplyError,
        RemoteFunctionError,
        ReplyError,
        ToolpackServerError,
        ToolpackUnavailable,
    )
    from toolpack_server.client import AgentClient, AsyncAgentClient, AsyncClient, Client
    from toolpack_server.training import rollouts

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
    "says",
]

_OWN = Path(__file__).parent.parent / "server"
_MODULES = {
    **dict.fromkeys(("AgentClient", "AsyncAgentClient", "AsyncClient", "Client"), "toolpack_server.client"),
    "rollouts": "toolpack_server.training",
    **dict.fromkeys(
        (
            "CallError",
            "ClientError",
            "NoReplyError",
            "RemoteFunctionError",
            "ReplyError",
            "ToolpackServerError",
            "ToolpackUnavailable",
        ),
        "toolpack_server.base.errors",
    ),
}  # of those names that aren't of `server` itself


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(_imported(_MODULES.get(name, "server")), name)
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
