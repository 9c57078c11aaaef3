"""The shapes of tasks, answers, verdicts, summaries of sessions and solutions.

Types only, as in `server/toolpack_server/protocol/results.py`.
"""

from typing import Literal, NotRequired

from typing_extensions import TypedDict  # pydantic needs this one before Python 3.12

from toolpack_server.protocol.results import Json, Message, SessionOutline


class SessionTask(TypedDict):
    """`task` names its task."""

    task: NotRequired[str]


class AnswerRecord(TypedDict):
    """The record of the agent's answer, which ends its part."""

    index: int
    kind: Literal["answer"]
    call_id: NotRequired[str]
    answer: str
    by: NotRequired[str]
    version: int
    started_at: str
    duration_ms: float


class TaskCheck(TypedDict):
    """Something that an evaluator has looked at."""

    name: str
    passed: bool
    detail: str


class VerdictFailure(TypedDict):
    """Why a verdict says nothing of the agent.

    `evaluator`, `deadline` and `world` (what is stored can't be used): no reward could be had. `infrastructure`: a call
    of the agent's was given up at its deadline, or has lost its process; `participant`: one has failed, `type` says for
    which reason. For both there is a reward all the same.
    """

    kind: Literal["evaluator", "deadline", "world", "infrastructure", "participant"]
    type: str
    message: str


class Verdict(TypedDict):
    """The verdict on a session: its reward, and whether the task counts as done.

    If it isn't `valid` it says nothing of the agent, because of its `failure`; `reward` is null if none could be had.
    `perturbed` counts the calls that have met each rule of the session's perturbations.
    """

    task: str
    version: int
    reward: float | None
    passed: bool
    checks: list[TaskCheck]
    metrics: dict[str, Json]
    valid: bool
    failure: NotRequired[VerdictFailure]
    perturbed: dict[str, int]


class VerdictRecord(TypedDict):
    """The record of a verdict on the session's task; one that `ends` it is the end of the agent's part."""

    index: int
    kind: Literal["verdict"]
    task: str
    reward: float
    passed: bool
    checks: list[TaskCheck]
    metrics: dict[str, Json]
    valid: NotRequired[bool]
    failure: NotRequired[VerdictFailure]
    perturbed: NotRequired[dict[str, int]]
    ends: NotRequired[bool]
    version: int
    started_at: str
    duration_ms: float


class TaskDescription(TypedDict):
    """A task; `toolpacks` and `options` are those of its sessions, `functions` those of the agent's address.

    `participants` has, by name, what each participant may do, as far as the task says it.
    """

    task: str
    index: int
    prompt: str | list[Message]
    toolpacks: list[str]
    options: dict[str, dict[str, Json]]
    functions: NotRequired[list[str]]
    max_calls: NotRequired[int]
    participants: dict[str, dict[str, Json]]
    split: str
    tags: list[str]
    metadata: dict[str, Json]
    has_solution: bool
    variants: list[str]


class TaskPage(TypedDict):
    """Some tasks; `total` counts all that match, `splits` those of each split."""

    total: int
    splits: dict[str, int]
    tasks: list[TaskDescription]


class AgentTask(TypedDict):
    """What an agent sees of its task; `calls` counts those that it has used, and `done` says that its part is over.

    In a session with participants there are its own `name` and those of the others.
    """

    prompt: NotRequired[str | list[Message]]
    max_calls: NotRequired[int]
    calls: int
    done: bool
    name: NotRequired[str]
    others: NotRequired[list[str]]


class TaskRate(TypedDict):
    """How often a task was done: in so many of its rollouts with this variant, with this mean reward."""

    task: str
    variant: NotRequired[str]
    rollouts: int
    passed: int
    mean_reward: float


class SessionSummary(SessionOutline, SessionTask):
    """What has happened in a session: in its own records, without those of a parent.

    `records` counts them, `calls` those that are calls, and `errors` the calls that failed; `duration_ms` is the time
    that they took. `done` says that the answer was submitted. `verdict` is the one that was asked for, or else the
    recorded one, unless there is none or the session has gone on since. `problem` says why records can't be read, and
    the others are counted up to there, or why the session can't be evaluated.
    """

    variant: NotRequired[str]
    records: int
    calls: int
    errors: int
    last_function: NotRequired[str]
    duration_ms: float
    done: bool
    verdict: NotRequired[Verdict]
    problem: NotRequired[str]


class SessionSummaries(TypedDict):
    """Some sessions, as few as fit into the answer and its time; `next` is the one after which to go on, if any.

    `rates` is what the verdicts on them come to that are valid, without those on sessions that the console has made.
    `total` counts all sessions that are like these, wherever a page begins, if they were read. `digest` is there if one
    was sent as `known`.
    """

    sessions: list[SessionSummary]
    rates: list[TaskRate]
    next: NotRequired[str]
    total: NotRequired[int]
    digest: NotRequired[str]


class SolutionCall(TypedDict):
    """A call as `run_function` takes it, and the name of the participant who makes it."""

    function: str
    kwargs: dict[str, Json]
    by: str


class Solution(TypedDict):
    """One way to do a task."""

    calls: list[SolutionCall]
    answer: str
