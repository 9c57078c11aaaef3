"""Declaration of the feature `tasks`."""

from toolpack_server.features.evaluation.tasks.addresses import TaskAddresses
from toolpack_server.features.evaluation.tasks.answer_tool import AnswerTool
from toolpack_server.features.evaluation.tasks.answers import AnswerKind
from toolpack_server.features.evaluation.tasks.creation_hook import TaskCreationHook, TaskRequest
from toolpack_server.features.evaluation.tasks.methods import METHODS
from toolpack_server.features.evaluation.tasks.operations import OPERATIONS
from toolpack_server.features.evaluation.tasks.results import SessionTask
from toolpack_server.features.evaluation.tasks.reviews import Reviews
from toolpack_server.features.evaluation.tasks.service import Tasks
from toolpack_server.features.evaluation.tasks.summaries import Summaries
from toolpack_server.features.evaluation.tasks.verdicts import VerdictFilter, VerdictKind, VerdictRequest
from toolpack_server.protocol.results import Session
from toolpack_server.rpc.methods import CreateSession, ListSessions
from toolpack_server.wiring.feature import Feature


class TasksFeature(Feature):
    name = "tasks"
    needs = ("episodes",)
    services = (Tasks, Summaries, Reviews)
    methods = METHODS
    record_kinds = (AnswerKind, VerdictKind)
    parameters = {CreateSession: TaskRequest, ListSessions: VerdictRequest}
    results = {Session: SessionTask}
    creation_hooks = (TaskCreationHook,)
    filters = (VerdictFilter,)
    address_hooks = (TaskAddresses,)
    address_tools = (AnswerTool,)
    operations = OPERATIONS
    views = {"runs": "toolpack_server.features.evaluation.tasks:console/runs.js"}
