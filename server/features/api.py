"""What a feature may import: these names, of which docs/stability.md says what holds.

The rule: nothing is defined here. The server's own features import from here what they can.
"""

from server.base.errors import (
    HttpRefusedError,
    InternalError,
    InvalidParamsError,
    OverloadedError,
    ReplyError,
    RequestError,
    SessionNotFoundError,
    SettingsError,
)
from server.base.settings import FeatureSettings
from server.engine.jobs import StartClock
from server.engine.state import Effect, SessionState
from server.execution.failure import CallFailure
from server.observability.metrics import MetricFamily
from server.protocol.parameters import CallId, ForkRequest, Parameters, SessionId, SessionRequest
from server.rpc.caller import Caller
from server.rpc.method import App, Method
from server.rpc.methods import CreateSession, ForkSession, ListSessions
from server.sessions.context import SessionContext
from server.sessions.creation_hooks import CreationHook
from server.sessions.filters import SessionFilter
from server.sessions.operation import OperationHook, SessionOperation
from server.sessions.recipes import details_of
from server.sessions.record_kinds import RecordKind, Shown
from server.stores.base import SessionStore
from server.wiring.feature import Feature

FEATURE_API = 1
"""The number of this interface: one that takes something away, or changes what it means, has the next."""

__all__ = [
    "FEATURE_API",
    "App",
    "CallFailure",
    "CallId",
    "Caller",
    "CreateSession",
    "CreationHook",
    "Effect",
    "Feature",
    "FeatureSettings",
    "ForkRequest",
    "ForkSession",
    "HttpRefusedError",
    "InternalError",
    "InvalidParamsError",
    "ListSessions",
    "Method",
    "MetricFamily",
    "OperationHook",
    "OverloadedError",
    "Parameters",
    "RecordKind",
    "ReplyError",
    "RequestError",
    "SessionContext",
    "SessionFilter",
    "SessionId",
    "SessionNotFoundError",
    "SessionOperation",
    "SessionRequest",
    "SessionState",
    "SessionStore",
    "SettingsError",
    "Shown",
    "StartClock",
    "details_of",
]
