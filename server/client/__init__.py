"""The Python client: `Client` for a server, `AgentClient` for an agent, both also async, and their results' types.

The rule: it imports the server's result types, snapshots, JSON and errors, and nothing else of it. `remote_runtime`
implements AgentDojo's runtime, and needs the package `agentdojo`.
"""

try:
    import httpx  # noqa: F401 - imported here to say clearly what is missing
except ImportError:
    raise ImportError("The Python client needs httpx: pip install 'toolpack-server[client]'.", name="httpx") from None

from server.client.batches import Reply
from server.client.clients import AgentClient, AsyncAgentClient, AsyncClient, Client
from server.client.requests import Request
from server.client.rollouts import RolloutResult, rollouts
from server.protocol.results import (
    CallRecord,
    Envelope,
    Export,
    FunctionList,
    Parent,
    Record,
    ResetRecord,
    Session,
    ToolpackDescription,
)

__all__ = [
    "AgentClient",
    "AsyncAgentClient",
    "AsyncClient",
    "CallRecord",
    "Client",
    "Envelope",
    "Export",
    "FunctionList",
    "Parent",
    "Record",
    "Reply",
    "Request",
    "ResetRecord",
    "RolloutResult",
    "Session",
    "ToolpackDescription",
    "rollouts",
]
