"""JSON-RPC methods of tasks.

Agents can only read their own task and submit an answer. All other methods are for clients, because they reveal
solutions or verdicts.
"""

from typing import Annotated, Literal

from pydantic import Field

from toolpack_server.base.errors import InvalidParamsError, RequestError
from toolpack_server.features.evaluation.tasks.results import (
    AgentTask,
    Review,
    SessionSummaries,
    Solution,
    TaskDescription,
    TaskPage,
    Verdict,
)
from toolpack_server.features.evaluation.tasks.reviews import Reviews
from toolpack_server.features.evaluation.tasks.service import TaskQuery, Tasks
from toolpack_server.features.evaluation.tasks.summaries import Summaries, omit_if_known
from toolpack_server.features.evaluation.tasks.summary_order import BY_STORE, Order
from toolpack_server.features.evaluation.tasks.validity import evaluation_failure
from toolpack_server.protocol.parameters import MAX_CALL_ID, MAX_COUNT, CallId, Labels, Limit, SessionId, Version
from toolpack_server.protocol.results import Json
from toolpack_server.rpc.caller import Caller
from toolpack_server.rpc.method import App, Method
from toolpack_server.sessions.reader import SessionQuery

MAX_TEXT = 1000  # max characters of a search text
TaskName = Annotated[str, Field(description="The task, as toolpack/name.")]


class ListTasks(Method, result=TaskPage):
    """List tasks, in a fixed order."""

    toolpack: str | None = Field(None, description="List only tasks of this toolpack.")
    split: str | None = Field(None, description="List only tasks of this split.")
    tags: list[str] = Field(default_factory=list, description="List only tasks with all these tags.")
    after: int = Field(
        -1,
        ge=-1,
        le=MAX_COUNT,
        description="List only tasks with a greater `index` (their number in the list of all tasks).",
    )
    limit: Limit

    async def handle(self, caller: Caller, app: App) -> TaskPage:
        query = TaskQuery(self.toolpack, self.split, self.tags)
        return await app.feature(Tasks).list(caller.owner, query, self.after, self.limit)


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
    """Return the agent's prompt, and how many calls the agent has used. Without a task, no prompt is returned."""

    async def handle(self, caller: Caller, app: App) -> AgentTask:
        return await app.feature(Tasks).agent_task(caller.session_id or "", caller.owner, caller.address)


class AddMessage(Method, result=Literal[True]):
    """Record a message of the conversation, for evaluators and trajectories."""

    session_id: SessionId
    role: Literal["system", "user", "assistant"] = Field(description="The role of the sender.")
    content: str = Field(description="The text of the message.")
    call_id: CallId
    metadata: dict[str, Json] | None = Field(
        None,
        description="Further data of the message for trajectories, such as model_name, prompt_tokens or "
        "completion_token_ids.",
    )

    async def handle(self, caller: Caller, app: App) -> bool:
        return await app.feature(Tasks).add_message(
            self.session_id, caller.owner, self.role, self.content, self.call_id, self.metadata
        )


class SubmitAnswer(
    Method,
    result=Literal[True],
    agents="Submit the agent's answer. This ends the agent's part: the agent can make no more calls.",
    positional=("answer",),
):
    """Submit the agent's answer in a session with a task. This ends the agent's part."""

    session_id: SessionId
    answer: str = Field("", description="The answer, for the evaluator.")
    call_id: Annotated[str, Field(min_length=1, max_length=MAX_CALL_ID)] | None = Field(
        None,
        description="Idempotency key of this answer: an answer with the same call_id is a retry. Without a call_id, an "
        "equal answer is a retry.",
    )

    async def handle(self, caller: Caller, app: App) -> bool:
        arguments = self.session_id, caller.owner, caller.by, self.answer, self.call_id
        return await app.feature(Tasks).submit_answer(*arguments)


class EvaluateSession(Method, result=Verdict):
    """Evaluate a session with the evaluator of its task; return the reward and whether it passed."""

    session_id: SessionId
    task: str | None = Field(None, description="A task of one of the session's toolpacks; default: the session's task.")
    version: Version | None = Field(None, description="The version to evaluate; default: the current version.")
    answer: str | None = Field(None, description="The answer to evaluate; default: the recorded answer.")
    record: bool = Field(False, description="Store the verdict as a record of the session, for list_sessions.")
    raise_on_error: bool = Field(
        True,
        description="If true and no reward can be computed, return a JSON-RPC error. If false, return an invalid "
        "verdict.",
    )
    ends: bool = Field(
        False, description="End the agent's part with the recorded verdict, as an answer does. Requires `record`."
    )

    async def handle(self, caller: Caller, app: App) -> Verdict:
        tasks = app.feature(Tasks)
        subject = self.session_id, caller.sees, self.task, self.version
        try:
            return await tasks.evaluate(*subject, self.answer, record=self.record, ends=self.ends)
        except RequestError as error:
            failure = None if self.raise_on_error else evaluation_failure(error)
            if failure is None:
                raise
            return await tasks.without_reward(failure, *subject)


class SummarizeSessions(Method, result=SessionSummaries, positional=("labels",)):
    """List sessions with a summary of each and its verdict, and with the pass rates of their tasks."""

    labels: Labels = Field(default_factory=dict, description="List only sessions with all these labels.")
    after: str = Field(
        "", description="The `next` of the previous page: list the sessions after it. Default: list the first page."
    )
    limit: Annotated[int, Field(1000, ge=1, le=1000, description="The maximum number of sessions.")]
    order: Order = Field(
        "id",
        description="Sort by id, created, task, parent, verdict, calls, last, done or version; `-` means descending.",
    )
    text: Annotated[
        str,
        Field(
            "",
            max_length=MAX_TEXT,
            description="List only sessions with this text in id, task, labels or trace. Case is ignored.",
        ),
    ]
    known: Annotated[
        str | None,
        Field(
            None,
            max_length=64,
            description="The `digest` of the previous result. If nothing has changed since, the new result contains no "
            "sessions. Send an empty string to get the first digest.",
        ),
    ]
    total: bool = Field(False, description="Also count all matching sessions, which requires reading all of them.")
    evaluate: bool = Field(
        False, description="Evaluate each session that has a task; default: return the recorded verdict, if any."
    )
    record: bool = Field(False, description="Store each verdict of `evaluate` as evaluate_session does.")

    async def handle(self, caller: Caller, app: App) -> SessionSummaries:
        if self.record and not self.evaluate:
            raise InvalidParamsError("`record` stores the verdicts of `evaluate`: set both, or neither.")
        if self.evaluate and self.order not in BY_STORE:
            raise InvalidParamsError(
                "`evaluate` works only with the order `id` or `-created`. For another order, first evaluate with "
                "`record`, then list the sessions without `evaluate`."
            )
        newest_first = self.order == "-created"
        query = SessionQuery(caller.sees, self.labels, self.after, self.limit, newest_first=newest_first)
        options = {"total": self.total, "evaluate": self.evaluate, "record": self.record}
        page = await app.feature(Summaries).page(query, self.text, self.order, **options)
        return page if self.known is None else omit_if_known(page, self.known)


class GetSolution(Method, result=Solution):
    """Return a solution of the session's task as calls to run_function, and the calls that the session still lacks."""

    session_id: SessionId
    version: Version | None = Field(
        None, description="`rest` contains the calls missing at this version; default: the current version."
    )

    async def handle(self, caller: Caller, app: App) -> Solution:
        return await app.feature(Tasks).solution(self.session_id, caller.sees, self.version)


class ReviewSession(Method, result=Review):
    """Find the call that lost a rollout, and a continuation that would have won."""

    session_id: SessionId
    record: bool = Field(
        False,
        description="Store the review, and keep the fork with the winning continuation. A stored review is returned at "
        "once, as long as the session gets no further record.",
    )

    async def handle(self, caller: Caller, app: App) -> Review:
        review = app.feature(Reviews).review(self.session_id, caller.sees, record=self.record)
        return await caller.run_while_connected(review)


METHODS: tuple[type[Method], ...] = (
    ListTasks,
    GetTask,
    GetOwnTask,
    AddMessage,
    SubmitAnswer,
    EvaluateSession,
    SummarizeSessions,
    GetSolution,
    ReviewSession,
)
