"""What tasks add to the server."""

from server.features.api import CreateSession, Feature, ListSessions, Session
from server.features.tasks.creation_hook import TaskCreationHook, TaskRequest
from server.features.tasks.methods import METHODS
from server.features.tasks.notes import AnswerKind
from server.features.tasks.operations import OPERATIONS
from server.features.tasks.results import SessionTask
from server.features.tasks.service import Tasks
from server.features.tasks.summaries import Summaries
from server.features.tasks.verdicts import VerdictFilter, VerdictKind, VerdictRequest


class TasksFeature(Feature):
    name = "tasks"
    needs = ("episodes",)
    services = (Tasks, Summaries)
    methods = METHODS
    record_kinds = (AnswerKind, VerdictKind)
    parameters = {CreateSession: TaskRequest, ListSessions: VerdictRequest}
    results = {Session: SessionTask}
    creation_hooks = (TaskCreationHook,)
    filters = (VerdictFilter,)
    operations = OPERATIONS
    views = {"runs": "server.features.tasks:console/runs.js"}
