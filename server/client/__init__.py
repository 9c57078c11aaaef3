"""The Python client: `Client`, `AsyncClient` with the same methods to await, and the types of their results.

The rule: it knows the results' shapes, snapshots, JSON and errors, and nothing else of the server. `remote_runtime` has
AgentDojo's runtime, and needs the package `agentdojo`.
"""

from server.client.clients import AsyncClient, Client
from server.client.methods import Request
from server.results import CallRecord, Envelope, Export, FunctionList, Parent, Record, ResetRecord, Session

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
]
