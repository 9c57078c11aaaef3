"""The Python client: `Client`, `AsyncClient` with the same methods as coroutines, and the types of their results.

The rule: it imports the server's result types, snapshots, JSON and errors, and nothing else of it. `remote_runtime`
implements AgentDojo's runtime, and needs the package `agentdojo`.
"""

from server.client.clients import AsyncClient, Client
from server.client.methods import Request
from server.results import (
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
    "AsyncClient",
    "CallRecord",
    "Client",
    "Envelope",
    "Export",
    "FunctionList",
    "Parent",
    "Record",
    "Request",
    "ResetRecord",
    "Session",
    "ToolpackDescription",
]
