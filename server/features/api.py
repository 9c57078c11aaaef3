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
    TooLargeError,
)
from server.base.settings import FeatureSettings
from server.engine.jobs import StartClock
from server.engine.state import Effect, SessionState
from server.execution.failure import CallFailure
from server.observability.metrics import MetricFamily
from server.protocol.parameters import CallId, ForkRequest, Parameters, SessionId, SessionRequest
from server.protocol.results import AddressPaths, CallRecord, PartFailure, Session
from server.protocol.senders import AGENT, CLIENT
from server.rpc.caller import Caller
from server.rpc.method import App, Method
from server.rpc.methods import CreateSession, ForkSession, ListSessions
from server.sessions.addresses import Address, NamedAddresses
from server.sessions.context import SessionContext
from server.sessions.hooks import CreationHook, SessionFilter
from server.sessions.operation import OperationHook, SessionOperation
from server.sessions.recipes import details_of
from server.sessions.record_kinds import RecordKind, Shown
from server.stores.base import Head, Record, SessionStore, StoredSession
from server.wiring.feature import Feature

FEATURE_API = 1
"""The number of this interface: one that takes something away, or changes what it means, has the next."""

__all__ = [
    "AGENT",
    "CLIENT",
    "FEATURE_API",
    "Address",
    "AddressPaths",
    "App",
    "CallFailure",
    "CallId",
    "CallRecord",
    "Caller",
    "CreateSession",
    "CreationHook",
    "Effect",
    "Feature",
    "FeatureSettings",
    "ForkRequest",
    "ForkSession",
    "Head",
    "HttpRefusedError",
    "InternalError",
    "InvalidParamsError",
    "ListSessions",
    "Method",
    "MetricFamily",
    "NamedAddresses",
    "OperationHook",
    "OverloadedError",
    "Parameters",
    "PartFailure",
    "Record",
    "RecordKind",
    "ReplyError",
    "RequestError",
    "Session",
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
    "StoredSession",
    "TooLargeError",
    "details_of",
]
