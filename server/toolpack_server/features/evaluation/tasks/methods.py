"""The methods for tasks.

Evaluators, solutions, rewards and names of tasks are for whoever runs the experiment; an agent's address has
none of them.
"""

from typing import Annotated, Literal

from pydantic import Field

from toolpack_server.base.errors import InvalidParamsError, RequestError
from toolpack_server.features.evaluation.tasks.results import (
    AgentTask,
    SessionSummaries,
    Solution,
    TaskDescription,
    TaskPage,
    Verdict,
)
from toolpack_server.features.evaluation.tasks.service import TaskQuery, Tasks
from toolpack_server.features.evaluation.tasks.summaries import Summaries, unless_known
from toolpack_server.features.evaluation.tasks.summary_order import BY_STORE, Order
from toolpack_server.features.evaluation.tasks.validity import evaluation_failure
from toolpack_server.protocol.parameters import MAX_CALL_ID, MAX_COUNT, CallId, Labels, Limit, SessionId, Version
from toolpack_server.protocol.results import Json
from toolpack_server.rpc.caller import Caller
from toolpack_server.rpc.method import App, Method
from toolpack_server.sessions.reader import SessionQuery

MAX_TEXT = 1000  # characters of a text that is looked for
TaskName = Annotated[str, Field(description="The task, as toolpack/name.")]


class ListTasks(Method, result=TaskPage):
    """List tasks, in a fixed order."""

    toolpack: str | None = Field(None, description="Only those of this toolpack.")
    split: str | None = Field(None, description="Only those of this split.")
    tags: list[str] = Field(default_factory=list, description="Only those that have all these tags.")
    after: int = Field(-1, ge=-1, le=MAX_COUNT, description="List the tasks after this index; default: from the first.")
    limit: Limit

    async def handle(self, caller: Caller, app: App) -> TaskPage:
        wanted = TaskQuery(self.toolpack, self.split, self.tags)
        return await app.feature(Tasks).list(caller.owner, wanted, self.after, self.limit)


class GetTask(Method, result=TaskDescription):
    """Describe a task."""

    task: TaskName

    async def handle(self, caller: Caller, app: App) -> TaskDescription:
        return await app.feature(Tasks).describe(caller.owner, self.task)


class GetOwnTask(
    Method,
    name="get_task",
    result=AgentTask,
    agents_only="answers there with the prompt, and takes no task",
):
    """Get what the agent is asked to do, and how many calls it has used; without a task the prompt is null."""

    async def handle(self, caller: Caller, app: App) -> AgentTask:
        return await app.feature(Tasks).agent_task(caller.session_id or "", caller.owner, caller.address)


class AddMessage(Method, result=Literal[True]):
    """Record a message of the conversation, for evaluators and trajectories."""

    session_id: SessionId
    role: Literal["system", "user", "assistant"] = Field(description="Who says it.")
    content: str = Field(description="What is said.")
    call_id: CallId
    metadata: dict[str, Json] | None = Field(
        None,
        description="What a client knows of it, such as model_name, prompt_tokens or completion_token_ids; "
        "trajectories have it.",
    )

    async def handle(self, caller: Caller, app: App) -> bool:
        return await app.feature(Tasks).add_message(
            self.session_id, caller.owner, self.role, self.content, self.call_id, self.metadata
        )


class SubmitAnswer(
    Method,
    result=Literal[True],
    agents="Submit the agent's answer, which ends its part: it can make no more calls.",
    positional=("answer",),
):
    """Submit the agent's answer in a session with a task; this ends the agent's part."""

    session_id: SessionId
    answer: str = Field("", description="The answer, for the evaluator.")
    call_id: Annotated[str, Field(min_length=1, max_length=MAX_CALL_ID)] | None = Field(
        None, description="An id of this answer: with it, an equal one that has another id is another answer."
    )

    async def handle(self, caller: Caller, app: App) -> bool:
        asked = self.session_id, caller.owner, caller.by, self.answer, self.call_id
        return await app.feature(Tasks).submit_answer(*asked)


class EvaluateSession(Method, result=Verdict):
    """Evaluate a session: the reward of its path, and whether its task counts as done."""

    session_id: SessionId
    task: str | None = Field(None, description="A task of one of its toolpacks; default: the session's own.")
    version: Version | None = Field(None, description="The version to evaluate; default: the current one.")
    answer: str | None = Field(None, description="The answer to evaluate; default: the recorded one.")
    record: bool = Field(False, description="Keep the verdict as a record of the session, for list_sessions.")
    raise_on_error: bool = Field(
        True, description="Answer with a JSON-RPC error if no reward could be had, not with a verdict that isn't valid."
    )
    ends: bool = Field(
        False, description="End the agent's part with the recorded verdict, as an answer does: needs `record`."
    )

    async def handle(self, caller: Caller, app: App) -> Verdict:
        tasks = app.feature(Tasks)
        asked = self.session_id, caller.sees, self.task, self.version
        try:
            return await tasks.evaluate(*asked, self.answer, record=self.record, ends=self.ends)
        except RequestError as error:
            failure = None if self.raise_on_error else evaluation_failure(error)
            if failure is None:
                raise
            return await tasks.without_reward(failure, *asked)


class SummarizeSessions(Method, result=SessionSummaries, positional=("labels",)):
    """List sessions, each with what has happened in it and the verdict on it, and how often their tasks were done."""

    labels: Labels = Field(default_factory=dict, description="Labels, all of which must match.")
    after: str = Field("", description="Go on after this session_id, the last answer's `next`; default: the first.")
    limit: Annotated[int, Field(1000, ge=1, le=1000, description="The maximum number of sessions.")]
    order: Order = Field(
        "id",
        description="By id, created, task, parent, verdict, calls, last, done or version, with `-` from the largest.",
    )
    text: Annotated[
        str,
        Field(
            "",
            max_length=MAX_TEXT,
            description="Only sessions with this text in id, task, labels or trace, in small letters or capitals.",
        ),
    ]
    known: Annotated[
        str | None,
        Field(
            None,
            max_length=64,
            description="The `digest` of the answer that you have, which isn't sent again; without one, an empty text.",
        ),
    ]
    total: bool = Field(False, description="Count all sessions like that, too, which reads them all.")
    evaluate: bool = Field(
        False, description="Evaluate each session that has a task; default: its verdict is the recorded one, if any."
    )
    record: bool = Field(False, description="Keep each verdict that `evaluate` gives, as evaluate_session does.")

    async def handle(self, caller: Caller, app: App) -> SessionSummaries:
        if self.record and not self.evaluate:
            raise InvalidParamsError("`record` keeps the verdicts that `evaluate` gives: set both, or neither.")
        if self.evaluate and self.order not in BY_STORE:
            raise InvalidParamsError("`evaluate` takes sessions by `id` or `-created`: evaluate them, then sort.")
        newest_first = self.order == "-created"
        query = SessionQuery(caller.sees, self.labels, self.after, self.limit, newest_first=newest_first)
        how = {"total": self.total, "evaluate": self.evaluate, "record": self.record}
        found = await app.feature(Summaries).page(query, self.text, self.order, **how)
        return found if self.known is None else unless_known(found, self.known)


class GetSolution(Method, result=Solution):
    """Get one way to do the session's task, as calls that run_function takes."""

    session_id: SessionId

    async def handle(self, caller: Caller, app: App) -> Solution:
        return await app.feature(Tasks).solution(self.session_id, caller.sees)


METHODS: tuple[type[Method], ...] = (
    ListTasks,
    GetTask,
    GetOwnTask,
    AddMessage,
    SubmitAnswer,
    EvaluateSession,
    SummarizeSessions,
    GetSolution,
)
