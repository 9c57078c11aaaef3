"""The Python client: `Client` for a server, `AgentClient` for an agent, their async forms, and the result types.

This package imports only result types and errors from the server. No part of the server imports this package.
"""

try:
    import httpx  # noqa: F401 - imported first, so that the error names the extra to install
except ImportError:
    raise ImportError("The Python client needs httpx: pip install 'toolpack-server[client]'.", name="httpx") from None

from toolpack_server.client.batches import Reply
from toolpack_server.client.clients import AgentClient, AsyncAgentClient, AsyncClient, Client
from toolpack_server.client.methods import CallRecord, Session
from toolpack_server.client.requests import Request
from toolpack_server.client.values import CallValue, SessionValues, StepValue
from toolpack_server.protocol.results import (
    Envelope,
    Export,
    FunctionList,
    Parent,
    Record,
    ResetRecord,
    ToolpackDescription,
)

__all__ = [
    "AgentClient",
    "AsyncAgentClient",
    "AsyncClient",
    "CallRecord",
    "CallValue",
    "Client",
    "Envelope",
    "Export",
    "FunctionList",
    "Parent",
    "Record",
    "Reply",
    "Request",
    "ResetRecord",
    "Session",
    "SessionValues",
    "StepValue",
    "ToolpackDescription",
]
