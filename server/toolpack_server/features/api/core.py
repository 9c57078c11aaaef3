"""Public names for features that other distributions provide. docs/reference/stability.md says how stable they are.

The server's own features don't use this module, because they can import each name from the module that defines it.
"""

from toolpack_server.base.errors import (
    AnsweredError,
    CallError,
    CallFailedError,
    CallIdReusedError,
    DeadlineError,
    EvaluationError,
    HttpRefusedError,
    InternalError,
    InvalidParamsError,
    OverloadedError,
    ReplyError,
    RequestError,
    SessionNotFoundError,
    SettingsError,
    StartError,
    TooLargeError,
)
from toolpack_server.base.settings import FeatureSettings
from toolpack_server.engine.jobs import StartClock
from toolpack_server.engine.state import Effect, SessionState
from toolpack_server.execution.failure import CallFailure, Failure
from toolpack_server.observability.metrics import MetricFamily
from toolpack_server.protocol.parameters import CallId, ForkRequest, Parameters, SessionId, SessionRequest
from toolpack_server.protocol.results import AddressPaths, CallRecord, PartFailure, Session
from toolpack_server.protocol.senders import AGENT, CLIENT
from toolpack_server.rpc.caller import Caller
from toolpack_server.rpc.codes import REFUSALS, sentence
from toolpack_server.rpc.method import App, Method
from toolpack_server.rpc.methods import CreateSession, ForkSession, ListSessions
from toolpack_server.sessions.addresses import Address
from toolpack_server.sessions.context import SessionContext
from toolpack_server.sessions.hooks import CreationHook, SessionFilter
from toolpack_server.sessions.operation import OperationHook, SessionOperation
from toolpack_server.sessions.recipes import details_of
from toolpack_server.sessions.record_kinds import RecordKind, Shown
from toolpack_server.sessions.repeatable_kind import RepeatableKind
from toolpack_server.stores.base import Head, Record, SessionStore, StoredSession
from toolpack_server.wiring.feature import Feature

FEATURE_API = 1
"""Version of the feature API. Incremented when a name is removed or changes meaning."""

__all__ = [
    "AGENT",
    "CLIENT",
    "FEATURE_API",
    "REFUSALS",
    "Address",
    "AddressPaths",
    "AnsweredError",
    "App",
    "CallError",
    "CallFailedError",
    "CallFailure",
    "CallId",
    "CallIdReusedError",
    "CallRecord",
    "Caller",
    "CreateSession",
    "CreationHook",
    "DeadlineError",
    "Effect",
    "EvaluationError",
    "Failure",
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
    "OperationHook",
    "OverloadedError",
    "Parameters",
    "PartFailure",
    "Record",
    "RecordKind",
    "RepeatableKind",
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
    "StartError",
    "StoredSession",
    "TooLargeError",
    "details_of",
    "sentence",
]
